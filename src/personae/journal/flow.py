"""Running many calls at once without holding them all in memory, and the sync door."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from typing import Any, Protocol, TypeVar

from personae.errors import StoppedEarlyError

Item = TypeVar("Item")
Result = TypeVar("Result")

WINDOW_FACTOR = 4
STARTED_AT_ONCE = 32
YOUNG_OBJECTS = 10_000


class Watcher(Protocol):
    """Hears how far each stage of a run is."""

    def begin(self, stage: str, total: int) -> None:
        """A stage starts; `total` units of work."""
        ...

    def step(self, stage: str) -> None:
        """One unit is done."""
        ...


class NoWatcher:
    """Hears nothing."""

    def begin(self, stage: str, total: int) -> None:
        """Ignore."""

    def step(self, stage: str) -> None:
        """Ignore."""


async def each(
    items: Iterable[Item],
    work: Callable[[Item], Awaitable[Result]],
    *,
    stage: str = "",
    window: int = 64 * WINDOW_FACTOR,
    watcher: Watcher | None = None,
) -> list[Result]:
    """Do the work for every item, `window` at a time; results in the order of the items.

    When one raises, nothing new is started; those under way come to their end (their replies are
    paid for), then the first error is raised. Cancelling cancels them all.
    """
    todo = list(items)
    watcher = watcher or NoWatcher()
    watcher.begin(stage, len(todo))
    results: dict[int, Result] = {}
    errors: list[Exception] = []
    upcoming = iter(enumerate(todo))

    async def worker() -> None:
        while not errors:
            entry = next(upcoming, None)
            if entry is None:
                return
            index, item = entry
            try:
                results[index] = await work(item)
            except Exception as error:  # noqa: BLE001  (raised again below, once all have ended)
                errors.append(error)
                return
            watcher.step(stage)

    async with asyncio.TaskGroup() as group:
        for started in range(min(window, len(todo))):
            group.create_task(worker())
            if started % STARTED_AT_ONCE == STARTED_AT_ONCE - 1:
                await asyncio.sleep(0)  # the first are on the wire before the last are prepared
    if errors:
        # A cap reached by many at once is one stop; a real error among them matters more.
        real = [e for e in errors if not isinstance(e, StoppedEarlyError)]
        raise (real or errors)[0]
    return [results[i] for i in range(len(todo))]


@contextlib.contextmanager
def rarer_collections() -> Iterator[None]:
    """Let the garbage collector look only at every `YOUNG_OBJECTS` new objects meanwhile.

    A call makes and drops a hundred objects, hardly any of them in cycles: as Python comes, the
    collector runs every seventh call and takes a fifteenth of the time. Where runs overlap, the
    one that found Python's own setting puts it back.
    """
    before = gc.get_threshold()
    if before[0] == 0 or before[0] >= YOUNG_OBJECTS:  # switched off, or rarer already
        yield
        return
    gc.set_threshold(YOUNG_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """`asyncio.run` on uvloop, where it is installed: docs/decisions/0015-uvloop.md."""
    try:
        from uvloop import new_event_loop
    except ImportError:  # Windows, PyPy
        return asyncio.run(work)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(work)


def run_sync(work: Coroutine[Any, Any, Result]) -> Result:
    """The sync door: run a coroutine to its end, in a notebook (a running loop) as well."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return run(work)
    box: list[Result] = []
    errors: list[BaseException] = []

    def inner() -> None:
        try:
            box.append(run(work))
        except BaseException as error:  # noqa: BLE001  (carried over to the caller's thread)
            errors.append(error)

    thread = threading.Thread(target=inner, name="personae-sync")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return box[0]
