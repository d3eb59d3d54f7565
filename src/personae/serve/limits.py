"""Bounds on what strangers can make the server hold and do: places, bodies, time, the way out."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive

from personae.serve.api_errors import ApiError, ended, stopping, too_many

Result = TypeVar("Result")

_LEAVING = 10.0  # seconds after which an engine that does not let go is left


class ClientGoneError(Exception):
    """Whoever asked has left; nobody hears an answer."""


class Places:
    """How many are answered at once, how many wait, who is turned away, and when all have left.

    Args:
        at_once: answers under way.
        queue: requests that may wait for a place; served in the order in which they came.
    """

    def __init__(self, at_once: int, queue: int) -> None:
        self._free = asyncio.Semaphore(at_once)
        self._queue = queue
        self.under_way = 0
        self.waiting = 0

    @contextlib.asynccontextmanager
    async def taken(self) -> AsyncIterator[None]:
        """A place, once there is one.

        Raises:
            ApiError: 429: as many wait as may.
        """
        if self._free.locked() and self.waiting >= self._queue:
            raise too_many()
        self.waiting += 1
        try:
            await self._free.acquire()
        finally:
            self.waiting -= 1
        self.under_way += 1
        try:
            yield
        finally:
            self.under_way -= 1
            self._free.release()


class Closing:
    """The way out: no one comes in any more, those inside may finish, then they are cut.

    All of it is called in the loop's own thread.
    """

    def __init__(self) -> None:
        self.begun = False
        self._inside = 0
        self._empty = asyncio.Event()
        self._empty.set()
        self._cut = asyncio.Event()

    def begin(self) -> None:
        """From now on whoever comes is answered 503."""
        self.begun = True

    async def wait(self, grace: float) -> bool:
        """Wait until the last has left; after the grace they are cut.

        Returns:
            Whether all left by themselves.
        """
        try:
            async with asyncio.timeout(grace):
                await self._empty.wait()
        except TimeoutError:
            self.cut()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LEAVING):
                    await self._empty.wait()
            return False
        return True

    def cut(self) -> None:
        """Whoever is inside has to leave now."""
        self._cut.set()

    async def while_wanted(self, receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
        """Do the work as long as somebody waits for it and the server stays.

        However it ends, nothing of the work goes on behind it.

        Raises:
            ClientGoneError: the connection is gone.
            ApiError: 503: the server is closing, the grace is over, or the engine is ended.
        """
        if self.begun:
            work.close()
            raise stopping()
        self._inside += 1
        self._empty.clear()
        doing = asyncio.ensure_future(work)
        gone = asyncio.ensure_future(_gone(receive))
        cut = asyncio.ensure_future(self._cut.wait())
        try:
            await asyncio.wait({doing, gone, cut}, return_when=asyncio.FIRST_COMPLETED)
            if not doing.done():
                raise ClientGoneError if gone.done() else stopping()
            if doing.cancelled():  # not by us: whatever it waited for has been ended
                raise ended()
            return doing.result()
        finally:
            for task in (doing, gone, cut):
                task.cancel()
            try:
                await asyncio.gather(doing, gone, cut, return_exceptions=True)
            finally:  # also where who waits here is cancelled meanwhile
                self._inside -= 1
                if not self._inside:
                    self._empty.set()


async def _gone(receive: Receive) -> None:
    """Returns once the client has left (ASGI: `http.disconnect`)."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def read_body(request: Request, *, most: int, seconds: float) -> bytes:
    """The body of a request, counted while it is read: its head may lie about the length.

    Raises:
        ApiError: 413: too large; 408: it did not come in time.
        ClientGoneError: the client left meanwhile.
    """
    too_large = ApiError(
        413, f"The request is larger than {most:,} bytes", code="request_too_large"
    )
    said = request.headers.get("content-length", "")
    if said.isdecimal() and int(said[:20]) > most:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(seconds), contextlib.aclosing(request.stream()) as parts:
            async for part in parts:
                body += part
                if len(body) > most:
                    raise too_large
    except TimeoutError:
        raise ApiError(
            408, f"The request did not come within {seconds:g} s", code="request_timeout"
        ) from None
    except ClientDisconnect:
        raise ClientGoneError from None
    return bytes(body)
