"""What training kept beside a cast is read as it was, or refused."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from personae.cast.base import load_base
from personae.cast.plan import TrainPlan
from personae.cast.rows import write_rows
from personae.cast.training import read_spent, read_training, spending, write_spent
from personae.errors import InputError
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


@pytest.mark.parametrize(
    "plan",
    [
        {"rank": "many"}, {"rank": 4, "shell": "rm"}, {"rank": 0}, {"epochs": float("inf")},
        {"lr": float("nan")}, {"shared_lr": float("inf")}, {"betas": [0.9, 1.0]}, {"clip": 0},
    ],
)  # fmt: skip
def test_what_is_no_plan_is_an_error(tmp_path: Path, plan: dict[str, Any]) -> None:
    keep(tmp_path, plan, [A_ROW])
    with pytest.raises(InputError, match=r"training/plan\.json"):
        read_training(tmp_path)


def test_a_cast_that_keeps_no_rows_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="without baselines"):
        read_training(tmp_path)


# What it took


def test_a_training_is_timed_and_one_that_fails_has_no_cost(
    tiny_base: Path, tmp_path: Path
) -> None:
    base = load_base(str(tiny_base), dtype="float32", device="cpu")
    with spending(base) as cost:
        assert cost.spent is None
    assert cost.spent is not None
    assert cost.spent.seconds >= 0
    assert cost.spent.peak_bytes is None  # a CPU does not say
    with pytest.raises(ZeroDivisionError), spending(base) as failed:
        1 / 0  # noqa: B018
    assert failed.spent is None
    assert read_spent(tmp_path) is None
    write_spent(tmp_path, cost.spent)
    assert read_spent(tmp_path) == cost.spent
    (tmp_path / "training" / "spent.json").write_text('{"seconds": -1}', "utf-8")
    with pytest.raises(InputError, match=r"spent\.json"):
        read_spent(tmp_path)
