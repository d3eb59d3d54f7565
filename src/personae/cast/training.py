"""What a cast was trained on, and how, as `personae cast train` keeps it beside the cast.

Nothing here needs torch.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from personae.cast.plan import PLAN, ROWS, TRAINING, TrainPlan
from personae.errors import InputError
from personae.records.base import explain
from personae.records.cast import CastRow
from personae.records.files import read_json, read_jsonl

MAX_FILE = 16 * 2**20


def read_training(cast: Path) -> tuple[TrainPlan, tuple[CastRow, ...]]:
    """What a cast was trained on, and how: CAST/training/plan.json and rows.jsonl.

    Raises:
        InputError: the cast does not keep them, or they are not such.
    """
    plan_file, rows_file = cast / TRAINING / PLAN, cast / TRAINING / ROWS
    for file in (plan_file, rows_file):
        if not file.is_file():
            raise InputError(
                "this cast does not keep what it was trained on, so nothing can be trained to be "
                "compared with it",
                path=file,
                mend="Train it again (personae cast train), or evaluate it without baselines",
            )
    value = read_json(plan_file, limit=MAX_FILE)
    known = {field.name for field in fields(TrainPlan)}
    given = value.get("plan", value) if isinstance(value, dict) else None
    if not isinstance(given, dict) or not set(given) <= known:
        raise InputError("not a plan of training", path=plan_file)
    try:
        plan = TypeAdapter(TrainPlan).validate_python(given)
    except ValidationError as error:
        raise InputError(f"not a plan of training: {explain(error)}", path=plan_file) from None
    rows = tuple(
        CastRow.from_dict(line, path=rows_file, place=f"line {number}")
        for number, line in read_jsonl(rows_file)
    )
    return plan, rows
