"""How far a run is: bars on a terminal, plain lines elsewhere; always on standard error."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from personae.journal.client import Event

PLAIN_EVERY = 5.0


class Tally:
    """Counts what the client reports: failures and cost, over all stages."""

    def __init__(self) -> None:
        self.failed = 0
        self.retried = 0
        self.usd: float | None = 0.0

    def hear(self, event: Event) -> None:
        """One call came to its end."""
        self.failed += not event.reply.ok
        self.usd = event.spent_usd
        if not event.reply.reused:
            self.retried += len(event.reply.retries)

    def words(self) -> str:
        """Failures, retries and cost in a few words; an unknown cost says so."""
        cost = "cost unknown" if self.usd is None else f"{self.usd:.4f} USD"
        return f"{self.failed} failed, {self.retried} retried, {cost}"


class Display:
    """A watcher of stages and an observer of calls; a context manager.

    Args:
        console: where to show it; bars if it is a terminal.
        quiet: show nothing.
        calls: say beside each stage how many calls failed and what they cost; False where a stage
            makes none.
    """

    def __init__(
        self, console: Console | None = None, *, quiet: bool = False, calls: bool = True
    ) -> None:
        self.console = console or Console(stderr=True)
        self.tally = Tally()
        self._quiet, self._calls = quiet, calls
        self._stages: dict[str, tuple[int, int, float]] = {}
        self._last = 0.0
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        if self.console.is_terminal and not quiet:
            self._bars = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                TextColumn("{task.fields[words]}"),
                console=self.console,
            )

    def __enter__(self) -> Display:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    def begin(self, stage: str, total: int) -> None:
        """A stage starts."""
        self._stages[stage] = (0, total, time.monotonic())
        if not total:
            return
        if self._bars is not None:
            self._tasks[stage] = self._bars.add_task(stage, total=total, words="")
        else:
            self._line(stage)

    def step(self, stage: str) -> None:
        """One unit of a stage is done."""
        done, total, since = self._stages[stage]
        self._stages[stage] = (done + 1, total, since)
        if self._bars is not None:
            if stage in self._tasks:
                self._bars.update(self._tasks[stage], advance=1, words=self._words())
        elif done + 1 == total or time.monotonic() - self._last >= PLAIN_EVERY:
            self._line(stage)

    def hear(self, event: Event) -> None:
        """One call came to its end."""
        self.tally.hear(event)

    def say(self, text: str) -> None:
        """A line for people."""
        if not self._quiet:
            self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def _words(self) -> str:
        return self.tally.words() if self._calls else ""

    def _line(self, stage: str) -> None:
        done, total, since = self._stages[stage]
        self._last = time.monotonic()
        spent = self._last - since
        left = f", about {spent / done * (total - done):.0f} s left" if 0 < done < total else ""
        words = f" ({self._words()})" if self._calls else ""
        self.say(f"{stage}: {done}/{total} in {spent:.1f} s{left}{words}")
