"""Sampling with llama.cpp's server (xllamacpp): continuous batching, prefix cache, LoRA."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from personae.models.local.lanes import Lanes, Request, prompt_text
from personae.models.local.worker import RequestError

# The first of many requests would take a slot whose prefix the next of them has; in turn over more
# groups than slots that loses every prefix.
_GATHER_SECONDS = 0.02

Answer = Callable[[dict[str, Any]], None]

_PROMPT_CACHE_MB = 0  # of prompts kept outside the slots; the lanes make it useless


class Sampler:
    """Runs in the worker process.

    Args:
        config: `path`, `context` (tokens of one slot), `slots`, `threads`, `adapters` (paths of
            GGUF LoRA files; a request names them by their place in this list).
    """

    def __init__(self, config: dict[str, Any]) -> None:
        import secrets

        import xllamacpp

        parameters = xllamacpp.CommonParams()
        parameters.model.path = config["path"]
        parameters.n_parallel = config["slots"]
        parameters.n_ctx = config["slots"] * config["context"]
        parameters.cpuparams.n_threads = config["threads"]
        parameters.cpuparams_batch.n_threads = config["threads"]
        parameters.cache_ram_mib = _PROMPT_CACHE_MB
        parameters.ui = False
        parameters.endpoint_slots = False
        # The library always listens on a port of 127.0.0.1; nobody learns this key, us included.
        parameters.api_keys = [secrets.token_hex(32)]
        self._adapters = len(config["adapters"])
        if self._adapters:
            parameters.lora_adapters = [
                xllamacpp.CommonAdapterLoraInfo(path, 1.0) for path in config["adapters"]
            ]
            parameters.lora_init_without_apply = True
        self._server = xllamacpp.Server(parameters)
        self._pool = ThreadPoolExecutor(max_workers=config["slots"])
        self._lock = threading.Lock()
        self._lanes: Lanes[int] = Lanes(config["slots"])
        self._gathering = False
        self._asked: dict[int, tuple[dict[str, Any], Answer]] = {}
        self._streaming: set[int] = set()
        self._unwanted: set[int] = set()
        self.info = {"slots": config["slots"], "context": config["context"]}

    def submit(self, request: dict[str, Any], answer: Answer) -> None:
        """See `worker.Engine`."""
        body, number = request["body"], request["id"]
        waiting = Request(
            item=number,
            text=prompt_text(body["messages"]),
            group=tuple(sorted(request["lora"].items())),
            most=body["max_tokens"],
            kind=body.get("grammar"),
        )
        with self._lock:
            self._asked[number] = request, answer
            self._lanes.add(waiting)
            if not self._gathering:
                self._gathering = True
                timer = threading.Timer(_GATHER_SECONDS, self._gathered)
                timer.daemon = True
                timer.start()

    def _gathered(self) -> None:
        with self._lock:
            self._gathering = False
            self._start()

    def cancel(self, number: int) -> None:
        """Drop a request that has not begun; under way, one that streams ends with its next token.

        Any other runs to its bounded end.
        """
        with self._lock:
            if self._lanes.drop(number):
                del self._asked[number]
            elif number in self._streaming:
                self._unwanted.add(number)

    def _start(self) -> None:
        for slot, waiting in self._lanes.assign():
            request, answer = self._asked.pop(waiting.item)
            self._pool.submit(self._answer, slot, request, answer)

    def _answer(self, slot: int, request: dict[str, Any], answer: Answer) -> None:
        written = None
        try:
            found = self._generate(slot, request, answer)
            written = found["usage"]["completion_tokens"]
            told = {"ok": found}
        except RequestError as error:
            told = {"error": {"kind": error.kind, "message": str(error)}}
        except Exception as error:  # noqa: BLE001  whatever it is, its caller must hear of it
            told = {"error": {"kind": "server", "message": f"{type(error).__name__}: {error}"}}
        with self._lock:
            self._lanes.free(slot, written)
            self._start()
        answer(told)

    def _generate(self, slot: int, request: dict[str, Any], answer: Answer) -> dict[str, Any]:
        body = {**request["body"], "id_slot": slot}
        if self._adapters:
            scales = dict.fromkeys(range(self._adapters), 0.0) | {
                int(number): scale for number, scale in request["lora"].items()
            }
            body["lora"] = [{"id": n, "scale": s} for n, s in scales.items()]
        try:
            if request.get("stream"):
                return self._stream(request["id"], body, answer)
            reply = self._server.handle_chat_completions(body)
        except ValueError as error:
            raise RequestError("bad_request", str(error)) from None
        return _sound(reply)

    def _stream(self, number: int, body: dict[str, Any], answer: Answer) -> dict[str, Any]:
        """The same piece by piece; what they add up to, as if it had come at once."""
        text: list[str] = []
        last: dict[str, Any] = {"finish_reason": None}
        usage: dict[str, Any] = {}
        faults: list[RequestError] = []

        def hear(chunk: Any) -> bool:
            """Whether to stop; an exception would be lost in the engine."""
            try:
                for one in chunk if isinstance(chunk, list) else [chunk]:
                    found = _sound(one)
                    usage.update(found.get("usage") or {})
                    for choice in found.get("choices", ()):
                        last["finish_reason"] = choice["finish_reason"] or last["finish_reason"]
                        if piece := choice["delta"].get("content"):
                            text.append(piece)
                            answer({"piece": piece})
            except RequestError as error:
                faults.append(error)
            except Exception as error:  # noqa: BLE001  its caller must hear of it
                faults.append(RequestError("server", f"{type(error).__name__}: {error}"))
            with self._lock:
                return bool(faults) or number in self._unwanted

        with self._lock:
            self._streaming.add(number)
        try:
            options = {"stream": True, "stream_options": {"include_usage": True}}
            self._server.handle_chat_completions({**body, **options}, hear)
        finally:
            with self._lock:
                self._streaming.discard(number)
                unwanted = number in self._unwanted
                self._unwanted.discard(number)
        if faults:
            raise faults[0]
        if unwanted:
            raise RequestError("server", "nobody waited for it any more")
        if not usage:
            raise RequestError("server", "the engine broke off")
        return {
            "choices": [{"message": {"content": "".join(text)}, **last}],
            "usage": usage,
        }


def _sound(reply: Any) -> dict[str, Any]:
    """What the engine answered.

    Raises:
        RequestError: it was an error.
    """
    found: dict[str, Any] = reply if isinstance(reply, dict) else json.loads(reply)
    if "error" in found:
        fault = found["error"]
        kind = "server"
        if fault.get("type") == "exceed_context_size_error":
            kind = "context_length"
        elif fault.get("code", 500) < 500:
            kind = "bad_request"
        raise RequestError(kind, str(fault.get("message", fault)))
    return found
