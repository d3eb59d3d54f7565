"""vLLM's OpenAI API in a process of its own: a base, its adapters, and the ways in which it fails.

What it says is decided by its settings (`Settings`), which a test changes while it runs; what it was
asked is kept for the test to look at. Shapes and texts of answers and errors are those of vLLM's
entrypoints (`chat_completion/protocol.py`, `models/serving.py`, `engine/protocol.py`, version 0.33):
fields that nobody asked for stand there with null, the first piece of a stream holds the role and
no text, the last one before the end its usage and no choice, and an error in mid-stream is a piece.
A client that goes away cancels its request, as vLLM aborts what nobody waits for.

    with start_vllm(adapters=["Ada"], reply="Good evening.") as vllm:
        vllm.url, vllm.seen(), vllm.configure(delay=0.1), vllm.state()
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from aiohttp import web

BASE = "tiny/Base-Instruct"


@dataclass
class Settings:
    """What the server holds, and how it behaves.

    Attributes:
        adapters: served under these names, beside the base.
        reply: what every model says; `{model}` is the name under which it was asked.
        piece: characters of a token.
        delay: seconds before each token; `first`: before the first one.
        context: tokens (words) of prompt and answer together.
        token: `--api-key`; None: everybody may ask.
        runtime_lora: VLLM_ALLOW_RUNTIME_LORA_UPDATING.
        status: answered to every completion, with `message` and `retry_after`; None: as it goes.
        cut_after: the connection breaks behind so many tokens.
        end_after: the stream ends behind so many tokens, as if that were all.
        error_after: an error is told in mid-stream.
        malformed_after: a piece that is no JSON.
        bytewise: each byte of the stream is sent by itself, so characters come in parts.
        comments: keep-alive comments between the pieces.
        carriage: lines end in CR LF.
        finish: the reason given at the end; None: stop or length, as it was.
        raw: a stream of exactly these bytes (in Latin-1).
        healthy: what /health answers.
        redirect: completions are elsewhere, at this address.
        echo: errors repeat the header of authorisation, as some proxies do.
    """

    adapters: list[str] = field(default_factory=list)
    reply: str = "I am {model}. Good evening."
    piece: int = 4
    delay: float = 0.0
    first: float = 0.0
    context: int = 8192
    token: str | None = None
    runtime_lora: bool = False
    status: int | None = None
    message: str = "the server is overloaded"
    retry_after: int | None = None
    cut_after: int | None = None
    end_after: int | None = None
    error_after: int | None = None
    malformed_after: int | None = None
    bytewise: bool = False
    comments: bool = False
    carriage: bool = False
    finish: str | None = None
    raw: str | None = None
    healthy: bool = True
    redirect: str | None = None
    echo: bool = False


class Vllm:
    """The server's state, shared by its requests."""

    def __init__(self, settings: Settings) -> None:
        self.open = 0
        self.begin(settings)

    def begin(self, settings: Settings) -> None:
        """Forget what was, but for the requests that are open."""
        self.settings = settings
        self.paths: dict[str, str] = {name: f"/adapters/{name}" for name in settings.adapters}
        self.seen: list[dict[str, Any]] = []
        self.peak = self.finished = self.aborted = 0

    # What tests ask ---------------------------------------------------------------------------

    async def state(self, _request: web.Request) -> web.Response:
        counts = {n: getattr(self, n) for n in ("open", "peak", "finished", "aborted")}
        return web.json_response({**counts, "adapters": self.paths})

    async def asked(self, _request: web.Request) -> web.Response:
        return web.json_response(self.seen)

    async def configure(self, request: web.Request) -> web.Response:
        for name, value in (await request.json()).items():
            getattr(self.settings, name)  # a setting that there is
            setattr(self.settings, name, value)
            if name == "adapters":
                self.paths = {one: f"/adapters/{one}" for one in value}
        return web.json_response({})

    async def reset(self, request: web.Request) -> web.Response:
        self.begin(Settings(**await request.json()))
        return web.json_response({})

    # What vLLM answers ------------------------------------------------------------------------

    async def health(self, _request: web.Request) -> web.Response:
        return web.Response(status=200 if self.settings.healthy else 503)

    async def models(self, _request: web.Request) -> web.Response:
        def card(name: str, root: str, parent: str | None, length: int | None) -> dict[str, Any]:
            return {
                "id": name,
                "object": "model",
                "created": 1763600000,
                "owned_by": "vllm",
                "root": root,
                "parent": parent,
                "max_model_len": length,
                "permission": [
                    {
                        "id": "modelperm-0",
                        "object": "model_permission",
                        "created": 1763600000,
                        "allow_sampling": True,
                        "organization": "*",
                        "group": None,
                        "is_blocking": False,
                    }
                ],
            }

        data = [card(BASE, BASE, None, self.settings.context)]
        data += [card(name, path, BASE, None) for name, path in self.paths.items()]
        return web.json_response({"object": "list", "data": data})

    async def load(self, request: web.Request) -> web.Response:
        if not self.settings.runtime_lora:
            return web.json_response({"detail": "Not Found"}, status=404)
        asked = await request.json()
        name, path = asked.get("lora_name"), asked.get("lora_path")
        if not name or not path:
            return _error(
                400, "InvalidUserInput", "Both 'lora_name' and 'lora_path' must be provided."
            )
        if name in self.paths and not asked.get("load_inplace"):
            return _error(
                400,
                "InvalidUserInput",
                f"The lora adapter '{name}' has already been loaded. If you want to load the "
                "adapter in place, set 'load_inplace' to True.",
            )
        if not (Path(path) / "adapter_config.json").is_file():
            return _error(
                404, "NotFoundError", f"Loading lora {name} failed: No adapter found for {path}"
            )
        self.paths[name] = path
        return web.Response(text=f"Success: LoRA adapter '{name}' added successfully.")

    async def complete(self, request: web.Request) -> web.StreamResponse:
        self.open += 1
        self.peak = max(self.peak, self.open)
        try:
            answered = await self._complete(request)
            self.finished += 1
        except (asyncio.CancelledError, ConnectionError):
            self.aborted += 1
            raise
        else:
            return answered
        finally:
            self.open -= 1

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        settings = self.settings
        if settings.redirect is not None:
            raise web.HTTPTemporaryRedirect(settings.redirect)
        if settings.status is not None:
            message = settings.message
            if settings.echo:
                message += f" ({request.headers.get('Authorization')})"
            headers = {}
            if settings.retry_after is not None:
                headers["Retry-After"] = str(settings.retry_after)
            return _error(settings.status, "InternalServerError", message, headers=headers)
        body = await request.json()
        if refused := self._refused(body):
            return refused
        said, finish, stopped = self._said(body)
        if not body.get("stream"):
            await asyncio.sleep(settings.first + settings.delay * len(said))
            return web.json_response(self._whole(body, said, finish, stopped))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        async for data in self._pieces(body, said, finish, stopped):
            if data is None:
                assert request.transport is not None
                request.transport.abort()
                return response
            end = "\r\n" if settings.carriage else "\n"
            raw = data if isinstance(data, bytes) else f"data: {data}{end}{end}".encode()
            if settings.comments:
                raw = f": keep-alive{end}{end}".encode() + raw
            for part in (raw[n : n + 1] for n in range(len(raw))) if settings.bytewise else (raw,):
                await response.write(part)
                if settings.bytewise:
                    await asyncio.sleep(0)
        await response.write_eof()
        return response

    def _refused(self, body: dict[str, Any]) -> web.Response | None:
        model, messages = body.get("model"), body.get("messages")
        if model not in (BASE, *self.paths):
            return _error(
                404, "NotFoundError", f"The model `{model}` does not exist.", param="model"
            )
        if not isinstance(messages, list) or not messages:
            return _error(400, "BadRequestError", "Input should be a valid list", param="messages")
        if (temperature := body.get("temperature")) is not None and temperature < 0:
            return _error(
                400,
                "BadRequestError",
                f"temperature must be non-negative, got {temperature}.",
                param="temperature",
            )
        tokens = _prompt_tokens(body)
        wanted, context = body.get("max_tokens") or 0, self.settings.context
        if tokens + wanted > context:
            return _error(
                400,
                "BadRequestError",
                f"This model's maximum context length is {context} tokens. However, you requested "
                f"{wanted} output tokens and your prompt contains {tokens} input tokens, for a "
                f"total of {tokens + wanted} tokens. Please reduce the length of the input prompt "
                "or the number of requested output tokens.",
                param="input_tokens",
            )
        return None

    def _said(self, body: dict[str, Any]) -> tuple[list[str], str, str | None]:
        text, stopped = self.settings.reply.replace("{model}", body["model"]), None
        given = body.get("stop") or []
        stops = [given] if isinstance(given, str) else given
        found = [(text.index(stop), stop) for stop in stops if stop in text]
        if found:
            at, stopped = min(found)
            text = text[:at]
        tokens = [
            text[n : n + self.settings.piece] for n in range(0, len(text), self.settings.piece)
        ]
        most = body.get("max_tokens") or len(tokens)
        if len(tokens) > most:
            return tokens[:most], "length", None
        return tokens, self.settings.finish or "stop", stopped

    def _whole(
        self, body: dict[str, Any], said: list[str], finish: str, stopped: str | None
    ) -> dict[str, Any]:
        message = {
            "role": "assistant",
            "content": "".join(said),
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
            "reasoning": None,
        }
        choice = {
            "index": 0,
            "message": message,
            "logprobs": {"content": [_logprob(t, body) for t in said]}
            if body.get("logprobs")
            else None,
            "finish_reason": finish,
            "stop_reason": stopped,
            "token_ids": None,
            "routed_experts": None,
        }
        return {
            "id": "chatcmpl-0",
            "object": "chat.completion",
            "created": 1763600000,
            "model": body["model"],
            "choices": [choice],
            "service_tier": None,
            "system_fingerprint": None,
            "usage": _usage(body, len(said), details=True),
            "prompt_logprobs": None,
            "prompt_token_ids": None,
            "kv_transfer_params": None,
        }

    async def _pieces(
        self, body: dict[str, Any], said: list[str], finish: str, stopped: str | None
    ) -> AsyncIterator[str | bytes | None]:
        """The data of each event, bytes as they are; None: the connection breaks."""
        settings = self.settings
        if settings.raw is not None:
            yield settings.raw.encode("latin-1")
            return
        options = body.get("stream_options") or {}
        always = options.get("include_usage") and options.get("continuous_usage_stats")

        def piece(delta: dict[str, Any], done: int, **more: Any) -> str:
            choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None, **more}
            return json.dumps(
                {
                    "id": "chatcmpl-0",
                    "object": "chat.completion.chunk",
                    "created": 1763600000,
                    "model": body["model"],
                    "choices": [choice],
                    **({"usage": _usage(body, done)} if always else {}),
                },
                ensure_ascii=False,
            )

        await asyncio.sleep(settings.first)
        yield piece({"role": "assistant", "content": ""}, 0)
        for n, token in enumerate(said):
            await asyncio.sleep(settings.delay)
            if n == settings.cut_after:
                yield None
                return
            if n == settings.end_after:
                return
            if n == settings.malformed_after:
                yield '{"id": "chatcmpl-0", "choices": [{"delta": {"cont'
            if n == settings.error_after:
                yield json.dumps(_trouble(500, "InternalServerError", "EngineCore died", None))
                yield "[DONE]"
                return
            more: dict[str, Any] = {}
            if body.get("logprobs"):
                more["logprobs"] = {"content": [_logprob(token, body)]}
            if n == len(said) - 1:
                more |= {"finish_reason": finish, "stop_reason": stopped}
            yield piece({"content": token}, n + 1, **more)
        if options.get("include_usage"):
            usage = _usage(body, len(said), details=True)
            yield json.dumps(
                {
                    "id": "chatcmpl-0",
                    "object": "chat.completion.chunk",
                    "created": 1763600000,
                    "model": body["model"],
                    "choices": [],
                    "usage": usage,
                }
            )
        yield "[DONE]"


def _prompt_tokens(body: dict[str, Any]) -> int:
    return sum(len(m["content"].split()) + 1 for m in body["messages"])


def _usage(body: dict[str, Any], done: int, *, details: bool = False) -> dict[str, Any]:
    prompt = _prompt_tokens(body)
    counts: dict[str, Any] = {
        "prompt_tokens": prompt,
        "total_tokens": prompt + done,
        "completion_tokens": done,
    }
    # With --enable-prompt-tokens-details; in half of the blocks of 16 tokens, say.
    return (
        {**counts, "prompt_tokens_details": {"cached_tokens": prompt // 2}} if details else counts
    )


def _logprob(token: str, body: dict[str, Any]) -> dict[str, Any]:
    def one(text: str, value: float) -> dict[str, Any]:
        return {"token": text, "logprob": value, "bytes": list(text.encode())}

    others = [one(f"other{n}", -2.0 - n) for n in range(body.get("top_logprobs") or 0)]
    return {**one(token, -0.5), "top_logprobs": others}


def _trouble(status: int, kind: str, message: str, param: str | None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}


def _error(
    status: int,
    kind: str,
    message: str,
    *,
    param: str | None = None,
    headers: dict[str, str] | None = None,
) -> web.Response:
    return web.json_response(
        _trouble(status, kind, message, param), status=status, headers=headers or {}
    )


def application(settings: Settings) -> web.Application:
    """The server."""
    vllm = Vllm(settings)

    @web.middleware
    async def keep(request: web.Request, handler: Any) -> web.StreamResponse:
        if not request.path.startswith("/stub/"):
            raw = await request.read()
            vllm.seen.append(
                {
                    "method": request.method,
                    "path": request.path,
                    "headers": dict(request.headers),
                    "body": json.loads(raw) if raw else None,
                }
            )
            token = vllm.settings.token
            wanted = token and f"Bearer {token}"
            if (
                wanted
                and request.path.startswith("/v1")
                and request.headers.get("Authorization") != wanted
            ):
                return web.json_response({"error": "Unauthorized"}, status=401)
        response: web.StreamResponse = await handler(request)
        return response

    made = web.Application(middlewares=[keep], client_max_size=2**24)
    made.router.add_get("/health", vllm.health)
    made.router.add_get("/v1/models", vllm.models)
    made.router.add_post("/v1/chat/completions", vllm.complete)
    made.router.add_post("/v1/load_lora_adapter", vllm.load)
    made.router.add_get("/stub/state", vllm.state)
    made.router.add_get("/stub/seen", vllm.asked)
    made.router.add_post("/stub/settings", vllm.configure)
    made.router.add_post("/stub/reset", vllm.reset)
    return made


async def serve(settings: Settings) -> None:
    """Listen on a free port until killed; say on stdout which."""
    runner = web.AppRunner(application(settings), handler_cancellation=True, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1024)
    await site.start()
    print(json.dumps({"port": runner.addresses[0][1]}), flush=True)
    await asyncio.Event().wait()


@dataclass(frozen=True)
class RunningVllm:
    """A stub in another process."""

    port: int

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.root}/v1"

    def state(self) -> dict[str, Any]:
        """How many completions are `open`, `finished`, `aborted`; the adapters and their paths."""
        found: dict[str, Any] = self._ask("/stub/state")
        return found

    def seen(self, path: str = "") -> list[dict[str, Any]]:
        """What was asked so far, of one path or of all."""
        return [one for one in self._ask("/stub/seen") if not path or one["path"] == path]

    def bodies(self) -> list[dict[str, Any]]:
        """The bodies of the completions asked for so far."""
        return [one["body"] for one in self.seen("/v1/chat/completions")]

    def configure(self, **changes: Any) -> None:
        """Change some of the settings."""
        self._ask("/stub/settings", changes)

    def reset(self, **settings: Any) -> None:
        """Begin anew with these settings, and with nothing seen."""
        self._ask("/stub/reset", settings)

    def _ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(self.root + path, data, timeout=20) as answer:
            return json.load(answer)


@contextlib.contextmanager
def start_vllm(**settings: Any) -> Iterator[RunningVllm]:
    """A stub for as long as the block lasts; `settings` are the fields of `Settings`."""
    command = [sys.executable, str(Path(__file__).resolve()), json.dumps(settings)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"the stub did not start (exit code {process.wait()})")
        yield RunningVllm(json.loads(line)["port"])
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


if __name__ == "__main__":
    _given = json.loads(sys.argv[1]) if sys.argv[1:] else {}
    if _odd := set(_given) - {one.name for one in fields(Settings)}:
        raise SystemExit(f"no such setting: {', '.join(sorted(_odd))}")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(Settings(**_given)))
