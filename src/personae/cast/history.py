"""The course of a training: one record a character and step, as JSON Lines."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from personae.records.base import Record
from personae.records.benchmark import NotBlank
from personae.records.files import read_jsonl, write_atomically
from personae.records.shown import clean


class TrainingStep(Record):
    """What one optimiser step, or one check between two, was for one character.

    Attributes:
        stage: of the training (`shared`, `own`, ...).
        step: of the stage, from 1; a check bears the number of the step before it.
        epoch: how often the character has seen its rows in this stage, the present pass counted
            in part.
        loss: nats a supervised token, mean over the character's tokens of this step, before the
            update; None in a check.
        dev_loss: the same over all its development rows; None in a step.
        lr: rate of the blocks that the character teaches; 0 in a check.
        tokens: supervised tokens behind the loss.
    """

    stage: NotBlank
    step: int = Field(ge=0)
    epoch: float = Field(ge=0)
    character: NotBlank
    loss: float | None = None
    dev_loss: float | None = None
    lr: float = Field(ge=0)
    tokens: int = Field(ge=0)


SAY_EVERY = 5.0
NAMED = 8


class LossTeller:
    """Says now and then how far down everybody's loss is: `own 12: Anna 2.31 (2.40), Bo 2.52`.

    In brackets: the last development loss. What to give to `train.train(hear=...)`.

    Args:
        say: takes a line for people (`progress.Display.say`).
        every: seconds between two lines; the first step of a stage is always said.
    """

    def __init__(
        self,
        say: Callable[[str], None],
        *,
        every: float = SAY_EVERY,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._say, self._every, self._clock = say, every, clock
        self._stage, self._last = "", 0.0
        self._losses: dict[str, tuple[float | None, float | None]] = {}

    def __call__(self, records: Sequence[TrainingStep]) -> None:
        """Hear the records of a step or a check."""
        if not records:
            return
        stage, now = records[0].stage, self._clock()
        first = stage != self._stage
        if first:
            self._stage, self._losses = stage, {}
        for record in records:
            loss, dev = self._losses.get(record.character, (None, None))
            self._losses[record.character] = (
                loss if record.loss is None else record.loss,
                dev if record.dev_loss is None else record.dev_loss,
            )
        if first or now - self._last >= self._every:
            self._last = now
            self._say(f"{stage} {records[0].step}: {self._words()}")

    def _words(self) -> str:
        said = []
        for name, (loss, dev) in list(self._losses.items())[:NAMED]:
            numbers = [] if loss is None else [f"{loss:.2f}"]
            numbers += [] if dev is None else [f"({dev:.2f})"]
            said.append(" ".join([clean(name), *numbers]))
        more = len(self._losses) - NAMED
        return ", ".join(said) + (f" + {more}" if more > 0 else "")


def write_history(path: Path, history: Iterable[TrainingStep]) -> None:
    """Write the course of a training, one record a line.

    Raises:
        OutputError: it cannot be written.
    """
    write_atomically(path, (record.to_json() + "\n" for record in history))


def read_history(path: Path) -> tuple[TrainingStep, ...]:
    """Read what `write_history` wrote.

    Raises:
        InputError: a line is not such a record.
    """
    return tuple(
        TrainingStep.from_dict(value, path=path, place=f"line {number}")
        for number, value in read_jsonl(path)
    )


def mean_loss(history: Sequence[TrainingStep]) -> float | None:
    """Mean training loss in nats a supervised token, each token counting alike; None: no step."""
    seen = [(r.loss, r.tokens) for r in history if r.loss is not None and r.tokens]
    total = sum(tokens for _, tokens in seen)
    return sum(loss * tokens for loss, tokens in seen) / total if total else None


@dataclass(frozen=True)
class Course:
    """How a character's loss went over all stages of a training, in nats a supervised token.

    Attributes:
        before: before anything was learnt; None: it was not trained.
        after: at the end.
        watched: both are over its development rows. Else `before` is the mean over its first step,
            taken before the update, and `after` the mean over the last pass through its rows.
    """

    before: float | None
    after: float | None
    watched: bool


def course_of(history: Sequence[TrainingStep], character: str, *, best: bool) -> Course:
    """The course of one character, with its development loss where rows were watched.

    Args:
        best: whether blocks end in their best state and not in their last one (`plan.patience`).
    """
    own = [record for record in history if record.character == character]
    if watched := [r for r in own if r.dev_loss is not None]:
        last = [
            r.dev_loss for r in watched if r.stage == watched[-1].stage and r.dev_loss is not None
        ]
        return Course(watched[0].dev_loss, min(last) if best else last[-1], True)
    steps = [record for record in own if record.loss is not None]
    if not steps:
        return Course(None, None, False)
    stage = [record for record in steps if record.stage == steps[-1].stage]
    since = math.ceil(stage[-1].epoch) - 1
    return Course(steps[0].loss, mean_loss([r for r in stage if r.epoch > since]), False)
