"""What training kept beside a cast is read as it was, or refused."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from personae.cast.plan import TrainPlan
from personae.cast.rows import write_rows
from personae.cast.training import read_training
from personae.errors import InputError, UsageError
from personae.records.cast import CastRow, CastTurn

PLAN = TrainPlan(rank=4, alpha=8.0, epochs=2, lr=1e-2, seed=5)


def keep(folder: Path, plan: Mapping[str, Any], given: Sequence[CastRow]) -> None:
    (folder / "training").mkdir()
    (folder / "training" / "plan.json").write_text(json.dumps({"plan": plan}), "utf-8")
    write_rows(given, folder / "training" / "rows.jsonl")


A_ROW = CastRow(
    characters=("Ada",), turns=(CastTurn(speaker="Ada", text="So."),), source="x.jsonl, line 1"
)


def test_plan_and_rows_are_read_as_training_kept_them(tmp_path: Path) -> None:
    keep(tmp_path, asdict(PLAN.paper()), [A_ROW])
    assert read_training(tmp_path) == (PLAN.paper(), (A_ROW,))


@pytest.mark.parametrize("plan", [{"rank": "many"}, {"rank": 4, "shell": "rm"}, {"rank": 0}])
def test_what_is_no_plan_is_an_error(tmp_path: Path, plan: dict[str, Any]) -> None:
    keep(tmp_path, plan, [A_ROW])
    with pytest.raises((InputError, UsageError)):
        read_training(tmp_path)


def test_a_cast_that_keeps_no_rows_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="without baselines"):
        read_training(tmp_path)
