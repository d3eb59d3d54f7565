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
        """Drop a request that has not begun; one under way runs to its bounded end."""
        with self._lock:
            if self._lanes.drop(number):
                del self._asked[number]

    def _start(self) -> None:
        for slot, waiting in self._lanes.assign():
            request, answer = self._asked.pop(waiting.item)
            self._pool.submit(self._answer, slot, request, answer)

    def _answer(self, slot: int, request: dict[str, Any], answer: Answer) -> None:
        written = None
        try:
            found = self._generate(slot, request)
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

    def _generate(self, slot: int, request: dict[str, Any]) -> dict[str, Any]:
        body = {**request["body"], "id_slot": slot}
        if self._adapters:
            scales = dict.fromkeys(range(self._adapters), 0.0) | {
                int(number): scale for number, scale in request["lora"].items()
            }
            body["lora"] = [{"id": n, "scale": s} for n, s in scales.items()]
        try:
            reply = self._server.handle_chat_completions(body)
        except ValueError as error:
            raise RequestError("bad_request", str(error)) from None
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
