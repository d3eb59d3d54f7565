"""The course of a training: one record a character and step, as JSON Lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from pydantic import Field

from personae.records.base import Record
from personae.records.benchmark import NotBlank
from personae.records.files import read_jsonl, write_atomically


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
