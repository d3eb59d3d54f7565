"""A vLLM server that speaks for a cast: `personae serve CAST --upstream URL`.

Who answers, and what that one perceived, is decided here and as for a cast on torch
(`serve.voices`); upstream then gets one request under the name of that character's adapter, as
`personae cast export --to vllm` names them. What a character did not perceive never leaves this
machine. The cast's directory is read for names, cards and router; its blocks stay on disk, and
nothing here needs torch.

Every answer is streamed, also one that is wanted whole: vLLM aborts a request whose connection is
closed, so an answer that nobody waits for any more ends there too (vLLM's `with_cancellation`).

Shapes of upstream: vLLM's OpenAI-compatible server (docs.vllm.ai, "OpenAI-Compatible Server" and
"LoRA Adapters", version 0.33); events: html.spec.whatwg.org, "Server-sent events".
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import aiohttp
from pydantic import ValidationError

from personae import __version__
from personae.cast.store import MANIFEST, Cast, file_name, read_cast
from personae.errors import (
    BadRequestError,
    ContentFilterError,
    ContextLengthError,
    InputError,
    OutputError,
    PersonaeError,
    ServerError,
    TransportError,
    UnsupportedError,
    UsageError,
)
from personae.models.answers import token_logprobs, usage_of, valid_unicode
from personae.models.bodies import body_of, encode
from personae.models.complaints import (
    MAX_DETAIL,
    RejectedError,
    as_dict,
    complaint,
    decode,
    describe,
    error_of,
)
from personae.models.keys import Key
from personae.models.local.model import MAX_TOKENS, TEMPERATURE, TOP_P
from personae.models.providers import Dialect, base_url_of
from personae.models.wire import IDLE_SECONDS, MAX_BODY_BYTES, broken_off, proxy_of
from personae.records import Call, Message, Sampling, TokenLogprob, Usage
from personae.records.base import content_hash
from personae.serve.api_errors import one_line
from personae.serve.engine import ChatWanted, Finished, ServedCharacter
from personae.serve.voices import Voices, gained

CONNECT_SECONDS = 10.0
HEALTH_SECONDS = 5.0
_LAST_SECONDS = 0.5
MAX_EVENT_BYTES = 4 * 1024 * 1024
UPSTREAM = "the upstream server"
"""What clients are told instead of its address."""
_FINISHES = {"stop": "stop", "length": "length", "eos": "stop", "eos_token": "stop"}
_TOKEN = "the upstream's token"  # noqa: S105  (a name)
# What clients are not told and logs do not keep: errors of validation show the input, which may be
# all that a character was told.
_ECHO = re.compile(r"(?<=['\"]input['\"]:).*", re.DOTALL)
_PLACE = re.compile(r"\bhttps?://\S+|(?<![\w/.])/(?:[\w.@+-]+/)+[\w.@+-]*")
_log = logging.getLogger("personae.serve")


@dataclass(frozen=True)
class Models:
    """What `/v1/models` lists.

    Attributes:
        base: the model without adapters; None where there is none, or none can be told.
        names: everything that can be asked for.
    """

    base: str | None
    names: frozenset[str]

    def of(self, cast: Cast, name: str) -> str | None:
        """The name under which a character is asked for there; None: it is absent.

        Whoever speaks through no block is the base, told its profile.
        """
        if any(cast.character(name).weights.values()):
            return name if name in self.names else None
        return self.base


class UpstreamEngine:
    """An `Engine` whose characters are adapters of a vLLM server; made by `open`.

    What a request leaves open is as in the other engines: temperature 0.7, top_p 0.95, 512 tokens.
    """

    def __init__(self, voices: Voices, line: Line, adapters: Path | None) -> None:
        self._voices, self._line, self._adapters = voices, line, adapters
        self._models = Models(None, frozenset())
        self._served: tuple[ServedCharacter, ...] = ()
        self._given_up: frozenset[str] = frozenset()
        self._refreshing = asyncio.Lock()

    @classmethod
    async def open(
        cls,
        path: Path,
        url: str,
        *,
        token: Key | str | None = None,
        timeout: float = 300.0,  # noqa: ASYNC109  (between two pieces; the caller cannot know them)
        adapters: Path | None = None,
    ) -> Self:
        """Read the cast and ask upstream whom it serves.

        Args:
            path: the cast's directory.
            url: of the upstream, http or https; without a path, `/v1` is meant.
            token: shown to the upstream, to nobody else.
            timeout: seconds that may pass between two pieces of an answer.
            adapters: a directory that upstream finds under the same path: characters that it lacks
                are exported to it and loaded there (VLLM_ALLOW_RUNTIME_LORA_UPDATING).

        Raises:
            UsageError: the address is none; or the cast runs in mode `speaker`, which vLLM cannot.
            InputError: the cast is damaged, or upstream serves none of its characters.
            TransportError: upstream cannot be reached, or fails.
        """
        key = Key(token, _TOKEN) if isinstance(token, str) else token
        base_url = base_url_of(url, what="--upstream")
        voices = await asyncio.to_thread(_read, path)
        engine = cls(voices, Line(base_url, key, timeout), adapters)
        try:
            await engine._look(base_url)
            problems = await engine._load()
            engine._given_up = frozenset(problems)
            if not engine.characters():
                raise InputError(
                    f"{base_url} serves none of its characters",
                    path=path / MANIFEST,
                    mend=next(iter(problems.values()), ""),
                )
        except BaseException:
            await engine.close()
            raise
        return engine

    @property
    def missing(self) -> tuple[str, ...]:
        """Who is of the cast and not served upstream."""
        cast = self._voices.cast
        return tuple(name for name in cast.names if self._models.of(cast, name) is None)

    def characters(self) -> Sequence[ServedCharacter]:
        """Who can be asked for, in the cast's order; who is missing upstream is not among them."""
        return self._served

    async def speak(self, wanted: ChatWanted) -> UpstreamSpeech:
        """Prepare an answer; upstream is asked once the speech is entered.

        Raises:
            BadRequestError: nobody is meant, or nobody certain; the messages cannot be put to it.
            UnsupportedError: who is meant is not served upstream.
        """
        voices = self._voices
        told = await asyncio.to_thread(voices.told, wanted)
        model = self._models.of(voices.cast, told.character)
        if model is None:
            raise UnsupportedError(f"{told.character} is of the cast, and not served here now")
        messages = told.messages
        body = _request(wanted, model, messages)
        return UpstreamSpeech(self._line, told.character, body, messages)

    def busy(self) -> int:
        """How many answers are under way."""
        return self._line.busy

    async def healthy(self) -> str | None:
        """None, or why upstream cannot answer now."""
        try:
            status = await self._line.health()
        except TransportError as error:
            _log.warning("the upstream is not healthy: %s", error)
            return f"{UPSTREAM} cannot be reached ({error.cause})"
        return None if status == 200 else f"{UPSTREAM} answered {status} to GET /health"

    async def close(self) -> None:
        """End it; answers under way fail."""
        await self._line.close()

    # Hot addition ---------------------------------------------------------------------------------

    async def refresh(self) -> tuple[str, ...]:
        """Take in the characters that the cast has gained, and those that upstream has.

        Returns:
            Who can be asked for now and could not before.

        Raises:
            InputError: the cast is damaged, or has changed otherwise; or upstream does not serve
                somebody who came since the start (the log says why and what mends it), and the
                others were taken in.
            TransportError: upstream fails.
        """
        async with self._refreshing:
            old, before = self._voices.cast, {one.name for one in self._served}
            voices = await asyncio.to_thread(_read, old.path)
            gained(old.manifest, voices.cast)
            self._voices = voices
            await self._look(UPSTREAM)
            problems = await self._load()
            if absent := [name for name in problems if name not in self._given_up]:
                raise InputError(
                    f"{', '.join(absent)} cannot be asked for yet: {UPSTREAM} has no adapter of "
                    "that name",
                    path=old.path / MANIFEST,
                    mend=problems[absent[0]],
                )
            return tuple(one.name for one in self._served if one.name not in before)

    async def _look(self, endpoint: str) -> None:
        """Ask upstream whom it serves."""
        self._models = await self._line.models(endpoint)
        missing = self.missing
        self._served = tuple(one for one in self._voices.served() if one.name not in missing)

    async def _load(self) -> dict[str, str]:
        """Have upstream load the adapters that it lacks.

        Returns:
            of those that it does not serve then, why, and what can be done; the log has it too.
        """
        problems: dict[str, str] = {}
        path, adapters = self._voices.cast.path, self._adapters
        if adapters is not None and (missing := self.missing):
            for name in missing:
                try:
                    folder = await asyncio.to_thread(_exported, path, name, adapters)
                    await self._line.load(name, folder)
                except (UnsupportedError, InputError, OutputError, UsageError) as error:
                    problems[name] = f"{name} could not be loaded upstream. {error}"
            await self._look(UPSTREAM)
        for name in self.missing:
            _log.warning("%s", problems.setdefault(name, _how(path, name)))
        return problems


def _read(path: Path) -> Voices:
    cast = read_cast(path, blocks=False)
    if cast.manifest.mode == "speaker":
        raise UsageError(
            f"{path}: this cast was trained in mode speaker, and vLLM applies an adapter to every "
            "token of a request. Serve it without --upstream, or train it with --mode full"
        )
    return Voices(cast)


def _how(path: Path, name: str) -> str:
    return (
        f"{name} is of the cast, and upstream has no adapter of that name. Export it (personae "
        f"cast export {path} --to vllm) and start vLLM with serve.sh; or give --upstream-adapters "
        "DIR, a directory that both servers see, and start vLLM with "
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True and room for it (--max-loras, --max-cpu-loras)."
    )


def _exported(path: Path, name: str, adapters: Path) -> Path:
    """A character's adapter in a directory of its own, whose name tells its content.

    Raises:
        InputError: the cast is damaged.
        UsageError: an adapter cannot be made of it.
        OutputError: it cannot be written.
    """
    from personae.cast.export import export_peft

    cast = read_cast(path)
    one = cast.character(name)
    digest = content_hash([cast.manifest.blocks_sha256, sorted(one.weights.items())])
    stem = file_name(name, set())
    out = adapters.resolve() / f"{stem}-{digest[:12]}"
    if not (out / stem / "adapter_config.json").is_file():
        export_peft(cast, out, names=[name])
    return out / stem


# The line -----------------------------------------------------------------------------------------


class Line:
    """The connections to one upstream.

    Args:
        base_url: ends in `/v1`, or in whatever stands there.
        key: goes to this address only; redirects are not followed.
        timeout: seconds between two pieces.
    """

    def __init__(self, base_url: str, key: Key | None, timeout: float) -> None:
        self.base_url, self._key, self.busy = base_url, key, 0
        self.timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=CONNECT_SECONDS, sock_read=timeout
        )
        self._soon = aiohttp.ClientTimeout(total=HEALTH_SECONDS, sock_connect=HEALTH_SECONDS)
        self._proxy = proxy_of(base_url)
        headers = {"User-Agent": f"personae/{__version__}", "Accept-Encoding": "identity"}
        if key is not None:
            headers["Authorization"] = f"Bearer {key.reveal()}"
        scheme = base_url.partition(":")[0]
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_SECONDS[scheme]),
            headers=headers,
            timeout=self.timeout,
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
        )

    def __repr__(self) -> str:
        return f"Line({self.base_url!r})"

    async def close(self) -> None:
        """Close all connections, those of answers under way too."""
        await self._session.close()

    async def health(self) -> int:
        """The status of `/health`, which is not below `/v1`.

        Raises:
            TransportError: it cannot be reached.
        """
        root = self.base_url.removesuffix("/v1")
        with broken_off(UPSTREAM, self._soon, self.scrub):
            async with self._session.get(
                f"{root}/health", timeout=self._soon, allow_redirects=False, proxy=self._proxy
            ) as response:
                return response.status

    async def models(self, endpoint: str) -> Models:
        """What is served.

        Args:
            endpoint: what it is called in errors.

        Raises:
            TransportError: it cannot be reached, or fails.
        """
        answer = await self._ask("GET", "/models", endpoint)
        listed = as_dict(answer).get("data")
        cards = [as_dict(one) for one in listed] if isinstance(listed, list) else []
        known = [card for card in cards if isinstance(card.get("id"), str)]
        if not known:
            raise ServerError(f"{endpoint} lists no models: is it an OpenAI-compatible server?")
        bases = [card["id"] for card in known if card.get("parent") is None]
        return Models(bases[0] if bases else None, frozenset(card["id"] for card in known))

    async def load(self, name: str, folder: Path) -> None:
        """Have an adapter loaded; one of that name that is there already stays.

        Raises:
            UnsupportedError: upstream does not load adapters, or not this one; says what to do.
            TransportError: it cannot be reached.
        """
        try:
            await self._ask(
                "POST",
                "/load_lora_adapter",
                UPSTREAM,
                {"lora_name": name, "lora_path": str(folder)},
            )
        except _AnsweredError as error:
            what = self.scrub(complaint(error.answer)[0])[:MAX_DETAIL]
            if error.status == 400 and "already been loaded" in what:
                return
            if error.status == 404 and "adapter" not in what:  # there is no such route
                raise UnsupportedError(
                    "It loads no adapters while it runs: start vLLM with "
                    "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"
                ) from None
            raise UnsupportedError(
                f"It answered {error.status}: {what}. It must find {folder} under this path, and "
                "have room (--max-lora-rank, --max-loras, --max-cpu-loras)"
            ) from None

    async def begin(
        self, body: dict[str, Any], messages: tuple[Message, ...]
    ) -> aiohttp.ClientResponse:
        """Ask for a streamed completion; the head of the answer has come.

        Args:
            body: without the messages.

        Raises:
            TransportError: in words for clients, who are not told the address.
        """
        model = str(body["model"])
        with self.answering():
            response = await self._session.post(
                f"{self.base_url}/chat/completions",
                data=encode(body, messages),
                headers={"Content-Type": "application/json", "Accept": "text/event-stream"},
                allow_redirects=False,
                proxy=self._proxy,
            )
            if response.status == 200:
                return response
            async with response:
                raw = await _capped(response)
        raise self.error(response.status, response.headers, decode(raw), raw, model)

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """Around an answer: what breaks it becomes one of `personae.errors`."""
        try:
            with broken_off(UPSTREAM, self.timeout, self.scrub):
                yield
        except RuntimeError as error:
            if not self._session.closed:
                raise
            raise ServerError("the server is shutting down") from error

    def error(
        self, status: int, headers: Any, answer: Any, raw: bytes, model: str
    ) -> TransportError:
        """What an unhappy answer means to clients."""
        found = error_of(
            status,
            headers,
            answer,
            raw,
            endpoint=UPSTREAM,
            model=model,
            key_name=None if self._key is None else self._key.name,
            scrub=self.scrub,
        )
        text = _ECHO.sub("...", str(found))
        _log.warning("%s", one_line(text))
        if isinstance(found, RejectedError | ContextLengthError | ContentFilterError):
            kind = BadRequestError if isinstance(found, RejectedError) else type(found)
            return kind(_PLACE.sub("...", text))
        if isinstance(found, BadRequestError):
            # A name that it no longer has, a redirect, no such path: no client asked for that.
            return ServerError(f"{UPSTREAM} does not answer for {model} ({status})")
        return found

    def scrub(self, text: str) -> str:
        """A text without the token."""
        return text if self._key is None else self._key.scrub(text)

    def scrub_body(self, raw: bytes) -> bytes:
        """Bytes without the token."""
        return raw if self._key is None else self._key.scrub_body(raw)

    async def _ask(
        self, method: str, path: str, endpoint: str, body: dict[str, Any] | None = None
    ) -> Any:
        """The JSON of a short answer, None where it is none; `_AnsweredError` of an unhappy one."""
        with broken_off(endpoint, self.timeout, self.scrub):
            async with self._session.request(
                method, self.base_url + path, json=body, allow_redirects=False, proxy=self._proxy
            ) as response:
                raw = self.scrub_body(await _capped(response))
        answer = decode(raw)
        if response.status == 200:
            return answer
        if body is not None:
            raise _AnsweredError(response.status, answer)
        raise error_of(
            response.status,
            response.headers,
            answer,
            raw,
            endpoint=endpoint,
            model=path,
            key_name=None if self._key is None else self._key.name,
            scrub=self.scrub,
        )


class _AnsweredError(PersonaeError):
    """Upstream answered a request of ours unhappily."""

    def __init__(self, status: int, answer: Any) -> None:
        super().__init__(f"{UPSTREAM} answered {status}")
        self.status, self.answer = status, answer


async def _capped(response: aiohttp.ClientResponse) -> bytes:
    raw = b""
    async for part in response.content.iter_any():
        raw += part
        if len(raw) > MAX_EVENT_BYTES:
            raise ServerError(f"{UPSTREAM} sent more than {MAX_EVENT_BYTES // 1024 // 1024} MB")
    return raw


# One answer ---------------------------------------------------------------------------------------


class UpstreamSpeech:
    """An answer under way upstream. Left before its end, its connection is closed."""

    def __init__(
        self, line: Line, character: str, body: dict[str, Any], messages: tuple[Message, ...]
    ) -> None:
        self.character = character
        self._line, self._body, self._messages = line, body, messages
        self._response: aiohttp.ClientResponse | None = None
        self._text: AsyncGenerator[str, None] = self._pieces()
        self._said: list[str] = []
        self._half = ""  # the first half of a surrogate pair, until the second comes
        self._finish: str | None = None
        self._usage = Usage()
        self._logprobs: list[TokenLogprob] = []

    async def __aenter__(self) -> Self:
        """Ask; upstream has accepted the request.

        Raises:
            BadRequestError, ContextLengthError, RateLimitError, ServerError, TransportError: it has
                not.
        """
        self._line.busy += 1
        try:
            self._response = await self._line.begin(self._body, self._messages)
        except BaseException:
            self._line.busy -= 1
            raise
        return self

    async def __aexit__(self, *_error: object) -> None:
        """Leave; vLLM aborts what it was still saying."""
        self._line.busy -= 1
        if self._response is not None:
            self._response.close()
        await self._text.aclose()

    def __aiter__(self) -> AsyncIterator[str]:
        """The pieces of the text as they come; none splits a character.

        Raises:
            ServerError: the stream broke, or makes no sense.
            TimeoutExceededError: nothing came for too long.
        """
        return self._text

    async def done(self) -> Finished:
        """How it ended; what was not asked for yet is read first.

        Raises:
            TransportError: as above.
        """
        async for _ in self._text:
            pass
        if self._finish is None:
            raise ServerError("the answer was left before its end")
        return Finished(
            text="".join(self._said),
            finish=self._finish,
            tokens_in=self._usage.tokens_in,
            tokens_out=self._usage.tokens_out,
            cached=self._usage.cached,
            logprobs=tuple(self._logprobs) if "logprobs" in self._body else None,
        )

    async def _pieces(self) -> AsyncGenerator[str, None]:
        response = self._response
        if response is None:
            raise ServerError("the answer was not begun")
        with self._line.answering():
            async for data in events(response.content.iter_any()):
                if data.strip() == b"[DONE]":
                    await _to_the_end(response)
                    break
                if piece := self._read(self._line.scrub_body(data)):
                    self._said.append(piece)
                    yield piece
        if self._half:
            self._said.append(self._half)
            self._half = ""
            yield self._said[-1]
        if self._finish is None:
            raise ServerError(f"{UPSTREAM} ended the answer before its end")

    def _read(self, data: bytes) -> str:
        """The text of one event; what else it tells is kept."""
        answer = decode(data)
        if not isinstance(answer, dict):
            raise ServerError(f"{UPSTREAM} sent {describe(data)} in mid-stream")
        if answer.get("error"):
            code = as_dict(answer["error"]).get("code")
            status = code if isinstance(code, int) and 400 <= code <= 599 else 502
            raise self._line.error(status, {}, answer, data, self._body["model"])
        text = ""
        try:
            if answer.get("usage"):
                self._usage = usage_of(answer["usage"], Dialect())
            for choice in answer["choices"]:
                if choice.get("index", 0) == 0:
                    text += choice["delta"].get("content") or ""
                    self._logprobs += token_logprobs(choice.get("logprobs")) or ()
                    self._ends(choice.get("finish_reason"))
        except (ValidationError, TypeError, KeyError, ValueError, AttributeError) as error:
            raise ServerError(
                f"{UPSTREAM} sent a malformed piece ({type(error).__name__})"
            ) from None
        return self._whole(text)

    def _ends(self, reason: Any) -> None:
        if reason is None:
            return
        if reason == "content_filter":
            raise ContentFilterError(f"{UPSTREAM} withheld the answer")
        self._finish = _FINISHES.get(reason)
        if self._finish is None:
            raise ServerError(f"{UPSTREAM} broke the answer off ({str(reason)[:40]})")

    def _whole(self, text: str) -> str:
        """The text with the half of a pair from before, and without one that is still to come."""
        text, self._half = self._half + text, ""
        if text and "\ud800" <= text[-1] <= "\udbff":
            text, self._half = text[:-1], text[-1]
        return valid_unicode(text)[0]


async def events(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The data of each server-sent event; comments and other fields are passed over.

    Lines are cut before they are decoded, so a character that comes in two parts is whole here.

    Raises:
        ServerError: there is no end to an event, or to all of them.
    """
    buffer, data, size = bytearray(), list[bytes](), 0
    async for part in parts:
        begin = len(buffer)
        buffer += part
        size += len(part)
        if size > MAX_BODY_BYTES:
            raise ServerError(f"{UPSTREAM} sent more than {MAX_BODY_BYTES // 1024 // 1024} MB")
        while (end := buffer.find(b"\n", begin)) >= 0:
            line = bytes(buffer[:end]).removesuffix(b"\r")
            del buffer[: end + 1]
            begin = 0
            if not line and data:
                yield b"\n".join(data)
                data = []
            elif line.startswith(b"data:"):
                data.append(line[5:].removeprefix(b" "))
        if len(buffer) + sum(map(len, data)) > MAX_EVENT_BYTES:
            raise ServerError(f"{UPSTREAM} sent an event without an end")
    if data:  # the last blank line is lost now and then; its data are whole
        yield b"\n".join(data)


async def _to_the_end(response: aiohttp.ClientResponse) -> None:
    """The last bytes, so that the connection can be used again; whoever sends more loses it."""
    with contextlib.suppress(TimeoutError, aiohttp.ClientError):
        async with asyncio.timeout(_LAST_SECONDS):
            await response.content.read(1)


def _request(wanted: ChatWanted, model: str, messages: tuple[Message, ...]) -> dict[str, Any]:
    """The request to upstream, without its messages."""
    sampling = Sampling(
        temperature=TEMPERATURE if wanted.temperature is None else wanted.temperature,
        top_p=TOP_P if wanted.top_p is None else wanted.top_p,
        max_tokens=wanted.max_tokens or MAX_TOKENS,
        seed=wanted.seed,
        stop=wanted.stop,
        logprobs=wanted.logprobs or 0,
    )
    call = Call(role="character", model=model, messages=messages, sampling=sampling)
    body, _ = body_of(call, model, Dialect())
    if wanted.logprobs is not None:
        body["logprobs"] = True
    return body | {"stream": True, "stream_options": {"include_usage": True}}
