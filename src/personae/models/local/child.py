"""One engine in a process of its own.

Why a process: the OpenMP variables must be set before the library loads; a crash in C++ becomes a
recorded failure instead of the end of the run; Ctrl-C reaches only us; and no thread of a C++
server can keep the interpreter from ending. The two speak JSON lines over pipes; when our end
closes, for whatever reason, the child ends.
"""

from __future__ import annotations

import asyncio
import atexit
import collections
import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import IO, Any

from personae.errors import (
    BadRequestError,
    ContextLengthError,
    InputError,
    RefusedConnectionError,
    ServerError,
    TransportError,
    UnsupportedError,
)

_KINDS: dict[str, type[TransportError]] = {
    "context_length": ContextLengthError,
    "bad_request": BadRequestError,
    "unsupported": UnsupportedError,
    "server": ServerError,
}
_MAX_CRASHES = 3
_GRACE_SECONDS = 2.0

# GOMP_SPINCOUNT: with libgomp's default, threads that wait spin for good; when another program
# holds a core each barrier then lasts a scheduler's tick and decoding falls from 111 tokens/s to
# between 1 and 3. Figures of several counts: docs/decisions/0002.
_ENVIRONMENT = {"GOMP_SPINCOUNT": "1000", "PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8"}

_alive: weakref.WeakSet[Child] = weakref.WeakSet()


class Child:
    """A worker process that answers requests; started on the first, started again after a crash.

    Safe to use from several threads and several event loops.

    Args:
        kind: `sampler` or `scorer`.
        config: what the worker is started with.
        path: the weights, for error messages.
    """

    def __init__(self, kind: str, config: dict[str, Any], path: Path) -> None:
        self._kind, self._config, self._path = kind, config, path
        self._lock = threading.Lock()
        self._run: _Run | None = None
        self._crashes = 0
        self._closed = False

    async def ask(
        self, request: dict[str, Any], heard: Callable[[str], None] | None = None
    ) -> dict[str, Any]:
        """Have one request answered.

        Args:
            heard: is told the pieces of a request with `stream`, in the caller's event loop.

        Raises:
            InputError: the engine cannot load the weights.
            TransportError: this request failed; the process died (ServerError, retryable) ...
        """
        run = await asyncio.to_thread(self._running)
        try:
            await asyncio.shield(asyncio.wrap_future(run.ready))
        except _DiedError as died:
            raise InputError(
                f"the engine cannot load these weights: {died}",
                path=self._path,
                mend="Check that the file is whole and of a kind that llama.cpp knows.",
            ) from None
        loop = asyncio.get_running_loop()
        tell = None if heard is None else partial(_from_thread, loop, heard)
        number, answer = run.send(request, tell)
        try:
            reply = await asyncio.wrap_future(answer)
        except asyncio.CancelledError:
            run.cancel(number)
            raise
        except _DiedError as died:
            raise self._died(run, died) from None
        self._crashes = 0
        if "error" in reply:
            error = reply["error"]
            raise _KINDS.get(error["kind"], ServerError)(error["message"])
        result: dict[str, Any] = reply["ok"]
        return result

    async def info(self) -> dict[str, Any]:
        """What the worker said of itself when it was ready."""
        run = await asyncio.to_thread(self._running)
        return await asyncio.shield(asyncio.wrap_future(run.ready))

    def close(self) -> None:
        """End the process; requests under way fail."""
        with self._lock:
            self._closed = True
            run, self._run = self._run, None
        if run is not None:
            run.end()

    def _running(self) -> _Run:
        with self._lock:
            if self._closed:
                raise ServerError("this model is closed")
            if self._run is None or self._run.over:
                if self._crashes >= _MAX_CRASHES:
                    raise RefusedConnectionError(
                        f"the engine process died {self._crashes} times one after the other"
                    )
                self._run = _Run(self._kind, self._config)
                _alive.add(self)
            return self._run

    def _died(self, run: _Run, died: _DiedError) -> TransportError:
        with self._lock:
            if self._run is run:  # the first of its requests to notice counts the crash
                self._run = None
                self._crashes += 1
        return ServerError(f"the engine process ended: {died}")


def _from_thread(loop: asyncio.AbstractEventLoop, heard: Callable[[str], None], piece: str) -> None:
    with contextlib.suppress(RuntimeError):  # the loop has ended: nobody listens
        loop.call_soon_threadsafe(heard, piece)


class _DiedError(Exception):
    """The process ended before it answered."""


class _Run:
    """One life of a worker process: three threads move bytes, futures carry the answers."""

    def __init__(self, kind: str, config: dict[str, Any]) -> None:
        root = str(Path(__file__).parents[3])
        python_path = os.pathsep.join(p for p in (root, os.environ.get("PYTHONPATH")) if p)
        environment = {**os.environ, **_ENVIRONMENT, "PYTHONPATH": python_path}
        environment.pop("OMP_WAIT_POLICY", None)  # it would overrule the spin count
        self._process = subprocess.Popen(  # noqa: S603  our own module in our own interpreter
            [sys.executable, "-P", "-m", "personae.models.local.worker", kind, json.dumps(config)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # Ctrl-C in the terminal is for us to handle, not for it
        )
        self.ready: Future[dict[str, Any]] = Future()
        self.over = False
        self._waiting: dict[int, Future[dict[str, Any]]] = {}
        self._hearing: dict[int, Callable[[str], object]] = {}
        self._lock = threading.Lock()
        self._next = 0
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._last_words: collections.deque[str] = collections.deque(maxlen=12)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._threads = [
            threading.Thread(target=self._write, args=(self._process.stdin,), daemon=True),
            threading.Thread(target=self._listen, args=(self._process.stderr,), daemon=True),
        ]
        reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        for thread in (*self._threads, reader):
            thread.start()
        self._threads.append(reader)

    def send(
        self, request: dict[str, Any], heard: Callable[[str], object] | None = None
    ) -> tuple[int, Future[dict[str, Any]]]:
        answer: Future[dict[str, Any]] = Future()
        with self._lock:
            self._next += 1
            number = self._next
            if self.over:
                answer.set_exception(_DiedError("before the request was sent"))
                return number, answer
            self._waiting[number] = answer
            if heard is not None:
                self._hearing[number] = heard
        self._outbox.put(json.dumps({"id": number, **request}).encode() + b"\n")
        return number, answer

    def cancel(self, number: int) -> None:
        with self._lock:
            self._waiting.pop(number, None)
            self._hearing.pop(number, None)
        self._outbox.put(json.dumps({"cancel": number}).encode() + b"\n")

    def end(self) -> None:
        self._outbox.put(None)  # the writer closes the pipe, and the worker ends with it
        try:
            self._process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(_GRACE_SECONDS)

    def _write(self, pipe: IO[bytes]) -> None:
        with contextlib.suppress(OSError):
            while (line := self._outbox.get()) is not None:
                pipe.write(line)
                pipe.flush()
        with contextlib.suppress(OSError):
            pipe.close()

    def _listen(self, pipe: IO[bytes]) -> None:
        with pipe:
            for line in pipe:
                if words := line.decode("utf-8", "replace").strip():
                    self._last_words.append(words[:500])

    def _read(self, pipe: IO[bytes]) -> None:
        with pipe:
            for line in pipe:
                message = json.loads(line)
                if "ready" in message:
                    self.ready.set_result(message["ready"])
                    continue
                if "piece" in message:
                    with self._lock:
                        heard = self._hearing.get(message["id"])
                    if heard is not None:
                        heard(message["piece"])
                    continue
                with self._lock:
                    answer = self._waiting.pop(message["id"], None)
                    self._hearing.pop(message["id"], None)
                if answer is not None and answer.set_running_or_notify_cancel():
                    answer.set_result(message)
        code = self._process.wait()
        self._threads[1].join(_GRACE_SECONDS)
        end = f"signal {-code}" if code < 0 else f"exit code {code}"
        words = self._last_words[-1] if self._last_words else "it said nothing"
        died = _DiedError(f"{end}; {words}")
        with self._lock:
            self.over = True
            waiting, self._waiting = self._waiting, {}
        self._outbox.put(None)
        for answer in (self.ready, *waiting.values()):
            if not answer.done() and answer.set_running_or_notify_cancel():
                answer.set_exception(died)


@atexit.register
def _end_all() -> None:
    for child in list(_alive):
        child.close()
