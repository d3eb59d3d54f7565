"""One concurrency limit per endpoint, shared by every role that uses it.

Additive increase, multiplicative decrease: a 429 or a time-out lowers the limit (at most once per
`CUT_WINDOW`, so that one burst counts once), successes raise it by about one per round trip. The
limit starts at its ceiling, because a user who states it usually knows it (research/engine.md: an
AIMD that starts low lost 8 % against a well-set static limit).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque

CUT_WINDOW = 0.25
CUT = {"rate_limit": 0.7, "timeout": 0.9}
LONGEST_PAUSE = 300.0


class Limit:
    """How many calls may be in flight at one endpoint.

    Args:
        most: the ceiling, at least 1.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.allowed = float(most)
        self.in_flight = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._paused_until = 0.0
        self._last_cut = 0.0
        self._timer: asyncio.TimerHandle | None = None

    async def acquire(self) -> None:
        """Take a slot; first come, first served."""
        if self._free() and not self._waiting:
            self.in_flight += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._wake()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release()
            else:
                self._waiting.remove(turn)
            raise

    def release(self) -> None:
        """Give a slot back."""
        self.in_flight -= 1
        self._wake()

    def congested(self, cause: str, retry_after: float | None = None) -> None:
        """The endpoint asked for less, or did not answer in time."""
        now = time.monotonic()
        if retry_after:
            self._paused_until = max(self._paused_until, now + min(retry_after, LONGEST_PAUSE))
        if cause in CUT and now - self._last_cut >= CUT_WINDOW:
            self._last_cut = now
            self.allowed = max(1.0, min(self.allowed, self.in_flight + 1) * CUT[cause])

    def end_pause(self) -> None:
        """Let those go on who wait for the end of a Retry-After."""
        self._paused_until = 0.0
        self._wake()

    def succeeded(self) -> None:
        """An answer came."""
        if self.allowed < self.most:
            self.allowed = min(float(self.most), self.allowed + 1.0 / self.allowed)
            self._wake()

    def _free(self) -> bool:
        return self.in_flight < int(self.allowed) and time.monotonic() >= self._paused_until

    def _wake(self) -> None:
        while self._waiting and self._free():
            turn = self._waiting.popleft()
            if not turn.done():
                self.in_flight += 1
                turn.set_result(None)
        pause = self._paused_until - time.monotonic()
        if self._waiting and pause > 0 and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(pause, self._unpause)

    def _unpause(self) -> None:
        self._timer = None
        self._wake()
