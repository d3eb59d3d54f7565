"""The far side of `child.py`: `python -m personae.models.local.worker sampler|scorer CONFIG`.

Requests come as JSON lines on standard input, answers leave as JSON lines on what was standard
output (the libraries' own prints are sent to standard error). The process ends when its input does.
"""

from __future__ import annotations

import json
import os
import select
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

_PARENT_CHECK_SECONDS = 2.0


class RequestError(Exception):
    """One request failed; `kind` is a key of `child._KINDS`."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Engine(Protocol):
    """What a worker runs."""

    info: dict[str, Any]

    def submit(self, request: dict[str, Any], answer: Callable[[dict[str, Any]], None]) -> None:
        """Take one request; call `answer` once, from any thread.

        A request with `stream` is answered by any number of `{"piece": text}` before.
        """

    def cancel(self, number: int) -> None:
        """Nobody waits for this request any more."""


class Outlet:
    """Writes one JSON line at a time, whichever thread it comes from."""

    def __init__(self, descriptor: int) -> None:
        self._file = os.fdopen(descriptor, "wb", buffering=0)
        self._lock = threading.Lock()

    def __call__(self, message: dict[str, Any]) -> None:
        """Write one message."""
        line = json.dumps(message).encode() + b"\n"
        with self._lock:
            try:
                view = memoryview(line)
                while view:
                    view = view[self._file.write(view) or 0 :]
            except OSError:  # nobody is there to read
                os._exit(0)


def lines(descriptor: int) -> Iterator[bytes]:
    """Lines until the input ends or the parent is gone.

    A process that our parent forked may hold a copy of the pipe's other end, and then no end of
    input comes when the parent dies; so its id is looked at too.
    """
    parent = os.getppid()
    pending = b""
    while True:
        if os.name == "posix":
            ready, _, _ = select.select([descriptor], [], [], _PARENT_CHECK_SECONDS)
            if not ready:
                if os.getppid() != parent:
                    return
                continue
        chunk = os.read(descriptor, 1 << 16)
        if not chunk:
            return
        *whole, pending = (pending + chunk).split(b"\n")
        yield from whole


def serve(engine: Engine, tell: Outlet) -> None:
    """Answer requests until the input ends."""
    tell({"ready": engine.info})
    for line in lines(0):
        message = json.loads(line)
        if "cancel" in message:
            engine.cancel(message["cancel"])
            continue
        number = message["id"]

        def answer(body: dict[str, Any], number: int = number) -> None:
            tell({"id": number, **body})

        engine.submit(message, answer)


def main() -> None:
    """Start the engine that the arguments name and serve it."""
    kind, config = sys.argv[1], json.loads(sys.argv[2])
    outlet = Outlet(os.dup(1))
    os.dup2(2, 1)
    code = 1
    try:
        engine: Engine
        if kind == "sampler":
            from personae.models.local.sampler import Sampler

            engine = Sampler(config)
        else:
            from personae.models.local.scorer import Scorer

            engine = Scorer(config)
        serve(engine, outlet)
        code = 0
    except BaseException as error:  # noqa: BLE001  the parent quotes the last line on stderr
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        sys.stderr.flush()
    finally:
        os._exit(code)  # threads of a C++ server or of a pool must not hold the process


if __name__ == "__main__":
    main()
