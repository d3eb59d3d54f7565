"""A model with a clock of its own: every call takes one tick, and all that wait are answered at once.

A tick ends when nothing more can happen without an answer. So with as many slots as anyone wants
the number of ticks is the length of the longest chain of calls that wait for each other, and the
calls of a tick are those that were in flight together. No real clock is read.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from personae.records import Call, Failure, Reply
from personae.records.structured import MalformedReplyError, check_value

IDLE = 60
"""Passes of the event loop without a new call after which nothing more can happen."""


class Lockstep:
    """A `Model` that answers in ticks.

    Args:
        answer: the value of a call's reply; text as it is; a `Failure` as it is. A value that
            breaks the call's schema is a failure `malformed`, as it is for the client.

    Attributes:
        calls: all of them, in the order of their coming.
        ticks: of each tick, the calls that were answered together.
        stop_after: raise this error instead of answering once so many calls have come.
    """

    def __init__(self, answer: Callable[[Call], Any]) -> None:
        self.calls: list[Call] = []
        self.replies: list[Reply] = []
        self.ticks: list[list[Call]] = []
        self._answer = answer
        self._waiting: list[tuple[Call, asyncio.Future[Reply]]] = []
        self._ticker: asyncio.Task[None] | None = None

    @property
    def peak(self) -> int:
        """The most calls that were in flight together."""
        return max((len(tick) for tick in self.ticks), default=0)

    async def ask(self, call: Call) -> Reply:
        """The answer, at the end of the tick."""
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self.calls.append(call)
        self._waiting.append((call, future))
        if self._ticker is None or self._ticker.done():
            self._ticker = asyncio.create_task(self._tick())
        return await future

    async def _tick(self) -> None:
        while self._waiting:
            known = 0
            while known != len(self._waiting):
                known = len(self._waiting)
                for _ in range(IDLE):
                    await asyncio.sleep(0)
            now, self._waiting = self._waiting, []
            self.ticks.append([call for call, _ in now])
            for call, future in now:
                future.set_result(self._reply(call))
            await asyncio.sleep(0)

    def _reply(self, call: Call) -> Reply:
        given = self._answer(call)
        if isinstance(given, Failure):
            reply = Reply(failure=given)
        elif call.reply_schema is None:
            reply = Reply(text=str(given))
        else:
            text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
            try:
                value = json.loads(text)
                check_value(value, call.reply_schema)
                reply = Reply(text=text, value=value)
            except (ValueError, MalformedReplyError) as error:
                reply = Reply(failure=Failure(cause="malformed", detail=str(error)))
        self.replies.append(reply)
        return reply
