"""What a cast was trained on, how, and at what cost, as training keeps it beside the cast.

Reading needs no torch.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field, TypeAdapter, ValidationError

from personae.cast.plan import PLAN, ROWS, TRAINING, TrainPlan
from personae.errors import InputError, UsageError
from personae.records.base import Record, explain
from personae.records.cast import CastRow
from personae.records.files import read_json, read_jsonl, write_atomically

if TYPE_CHECKING:
    from personae.cast.base import LoadedBase

SPENT = "spent.json"
MAX_FILE = 16 * 2**20


class Spent(Record):
    """What a training took.

    Attributes:
        seconds: on the machine and beside whatever else it did.
        peak_bytes: largest memory that the device gave out; None where it does not say (CPU).
    """

    seconds: float = Field(ge=0)
    peak_bytes: int | None = Field(default=None, ge=0)


@dataclass
class Spending:
    """A training under way; `spent` is there when it has ended."""

    spent: Spent | None = None


@contextlib.contextmanager
def spending(base: LoadedBase) -> Iterator[Spending]:
    """Within it, a training over `base` is measured; one that raises has no cost."""
    import torch

    device = base.model.get_input_embeddings().weight.device
    counts = device.type == "cuda"
    if counts:
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
    started = time.perf_counter()
    found = Spending()
    yield found
    if counts:
        torch.cuda.synchronize(device)
    found.spent = Spent(
        seconds=time.perf_counter() - started,
        peak_bytes=torch.cuda.max_memory_allocated(device) if counts else None,
    )


def write_spent(cast: Path, spent: Spent) -> None:
    """Keep what training a cast took.

    Raises:
        OutputError: it cannot be written.
    """
    write_atomically(cast / TRAINING / SPENT, spent.to_json() + "\n")


def read_spent(cast: Path) -> Spent | None:
    """What training a cast took; None where that is not known (it was resumed, say).

    Raises:
        InputError: the file is none of ours.
    """
    file = cast / TRAINING / SPENT
    return Spent.from_dict(read_json(file, limit=MAX_FILE), path=file) if file.is_file() else None


def read_plan(cast: Path) -> TrainPlan | None:
    """How a cast was trained; None where it does not keep that.

    Raises:
        InputError: CAST/training/plan.json is no plan.
    """
    file = cast / TRAINING / PLAN
    if not file.is_file():
        return None
    value = read_json(file, limit=MAX_FILE)
    known = {field.name for field in fields(TrainPlan)}
    given = value.get("plan", value) if isinstance(value, dict) else None
    if not isinstance(given, dict) or not set(given) <= known:
        raise InputError("not a plan of training", path=file)
    try:
        plan: TrainPlan = TypeAdapter(TrainPlan).validate_python(given)
    except ValidationError as error:
        raise InputError(f"not a plan of training: {explain(error)}", path=file) from None
    except UsageError as error:
        raise InputError(str(error), path=file) from None
    return plan


def read_training(cast: Path) -> tuple[TrainPlan, tuple[CastRow, ...]]:
    """What a cast was trained on, and how: CAST/training/plan.json and rows.jsonl.

    Raises:
        InputError: the cast does not keep them, or they are not such.
    """
    plan, file = read_plan(cast), cast / TRAINING / ROWS
    if plan is None or not file.is_file():
        raise InputError(
            "this cast does not keep what it was trained on, so nothing can be trained to be "
            "compared with it",
            path=file if plan else cast / TRAINING / PLAN,
            mend="Train it again (personae cast train), or evaluate it without baselines",
        )
    rows = tuple(
        CastRow.from_dict(line, path=file, place=f"line {number}")
        for number, line in read_jsonl(file)
    )
    return plan, rows
