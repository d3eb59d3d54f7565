"""Means, shares and differences of lines that can be counted by hand."""

from pathlib import Path
from typing import Any

import pytest

from personae.cast.scores import (
    differences,
    identified,
    margin,
    measure,
    method_scores,
    read_lines,
    write_lines,
)
from personae.errors import InputError
from personae.records import Failure
from personae.records.cast_scores import DialogueScore, LiftScore, SwitchScore

NAMES = ("Ada", "Bob", "Cleo")


def said(row: int, nll: float | None, **more: Any) -> DialogueScore:
    fields: dict[str, Any] = {
        "method": "cast",
        "row": row,
        "source": f"held-out, line {row}",
        "language": "en",
        "character": "Ada",
        "named": False,
        "tokens": 10,
        "nll": nll,
        "fits": {"Ada": 20.0, "Bob": 26.0, "Cleo": 30.0},
    }
    if nll is None:
        fields |= {"tokens": None, "fits": None, "failure": Failure(cause="too_long", detail="x")}
    return DialogueScore(**fields | more)


def switched(row: int, nll: float, without: float, previous: float | None, **more: Any) -> Any:
    fields: dict[str, Any] = {
        "method": "cast",
        "row": row,
        "source": f"held-out, line {row}",
        "language": "en",
        "character": "Ada",
        "previous": "Bob",
        "turn": 4,
        "tokens": 10,
        "nll": nll,
        "nll_without": without,
        "nll_previous": previous,
    }
    return SwitchScore(**fields | more)


def test_the_likelihood_of_a_dialogue_is_a_token_s_and_rows_weigh_alike() -> None:
    lines = [said(1, 20.0), said(2, 30.0), said(2, 50.0, character="Bob", fits=None)]
    found = measure(lines, "nll", NAMES)
    assert found.mean == pytest.approx((2.0 + (3.0 + 5.0) / 2) / 2)
    assert (found.n, found.missing) == (3, 0)
    assert (found.low, found.high) == (2.0, 4.0)  # of 10,000 draws of two rows, more than 5 %


def test_one_row_has_no_interval() -> None:
    found = measure([said(1, 20.0)], "nll", NAMES)
    assert (found.mean, found.low, found.high) == (2.0, None, None)


def test_the_margin_is_the_mean_of_the_others_less_the_own() -> None:
    assert margin(said(1, 20.0)) == pytest.approx(((26 + 30) / 2 - 20) / 10)
    assert margin(said(1, 20.0, fits=None)) is None
    assert margin(said(1, 20.0, fits={"Ada": 3.0})) is None


def test_a_tie_is_not_recognised() -> None:
    assert identified(said(1, 20.0)) == 1
    assert identified(said(1, 20.0, fits={"Ada": 20.0, "Bob": 20.0, "Cleo": 30.0})) == 0
    assert identified(said(1, 20.0, fits={"Ada": 20.0, "Bob": 20.0001, "Cleo": 30.0})) == 0
    assert identified(said(1, 20.0, fits={"Ada": 20.0, "Bob": 19.0, "Cleo": 30.0})) == 0
    assert identified(said(1, 20.0, fits={"Ada": 20.0, "Bob": 20.1, "Cleo": 30.0})) == 1


def test_dialogues_with_the_name_in_them_are_no_part_of_the_unnamed_share() -> None:
    lost = {"Ada": 20.0, "Bob": 10.0, "Cleo": 30.0}
    lines = [said(1, 20.0, named=True), said(2, 20.0), said(3, 20.0, fits=lost)]
    assert measure(lines, "identified", NAMES).mean == pytest.approx(2 / 3)
    unnamed = measure(lines, "identified_unnamed", NAMES)
    assert (unnamed.mean, unnamed.n) == (0.5, 2)


def test_what_cannot_be_measured_says_why_and_is_not_zero() -> None:
    alike = [said(1, 20.0, fits=None), said(2, 20.0, fits=None)]
    assert measure(alike, "margin", NAMES).reason == "cannot_tell"
    assert measure([said(1, None)], "margin", NAMES).reason == "none_scored"
    assert measure([said(1, 20.0)], "margin", ("Ada",)).reason == "one_character"
    assert measure([said(1, 20.0)], "switch_cost", NAMES).reason == "no_units"
    assert measure([said(1, 20.0, named=True)], "identified_unnamed", NAMES).reason == "no_units"
    assert measure([said(1, 20.0)], "lift", NAMES).reason == "not_run"
    lines = [switched(1, 20, 18, None)]
    assert measure(lines, "switch_leak", NAMES).reason == "cannot_tell"
    assert measure(lines, "switch_leak", NAMES).mean is None


def test_what_failed_is_missing_and_in_no_mean() -> None:
    found = measure([said(1, 20.0), said(2, None), said(3, 40.0), said(4, None)], "nll", NAMES)
    assert (found.mean, found.n, found.missing) == (3.0, 2, 0.5)


def test_a_switch_costs_what_the_other_s_turns_add_and_leaks_where_its_blocks_fit_no_worse() -> (
    None
):
    lines = [switched(1, 20, 18, 25), switched(1, 20, 24, 20, turn=6), switched(2, 30, 20, 29)]
    assert measure(lines, "switch_cost", NAMES).mean == pytest.approx(((0.2 - 0.4) / 2 + 1.0) / 2)
    assert measure(lines, "switch_leak", NAMES).mean == pytest.approx((0.5 + 1) / 2)


def answered(row: int, lift: float | None, **more: Any) -> LiftScore:
    fields: dict[str, Any] = {
        "method": "cast",
        "row": row,
        "source": f"held-out, line {row}",
        "language": "en",
        "character": "Ada",
        "question": "Who?",
        "answer": None if lift is None else "I.",
        "lift": lift,
        "failure": Failure(cause="empty", detail="x") if lift is None else None,
    }
    return LiftScore(**fields | more)


def test_lift_is_the_mean_over_answers_and_what_was_not_answered_is_missing() -> None:
    lines = [answered(1, 0.4), answered(2, -0.2), answered(3, None), answered(4, None)]
    found = measure(lines, "lift", NAMES)
    assert found.mean == pytest.approx(0.1)
    assert (found.n, found.missing) == (2, 0.5)
    assert measure(lines[2:], "lift", NAMES).reason == "none_scored"
    others = [line.model_copy(update={"method": "base", "lift": 0.0}) for line in lines[:2]]
    (difference,) = differences([*lines[:2], *others])
    assert difference.metric == "lift"
    assert difference.difference.mean == pytest.approx(0.1)


def test_scores_are_given_for_the_cast_and_for_each_character() -> None:
    lines = [
        said(1, 20.0),
        said(2, 40.0, character="Bob", fits={"Ada": 9.0, "Bob": 8.0, "Cleo": 9.0}),
        said(1, 30.0, method="base", fits=None),
    ]
    cast, base = method_scores(lines, NAMES, parameters={"cast": (300, 200)})
    assert (cast.method, cast.parameters, cast.active) == ("cast", 300, 200)
    assert (base.method, base.parameters) == ("base", None)
    assert cast.measures["nll"].mean == 3.0
    assert cast.characters["Bob"]["nll"].mean == 4.0
    assert cast.characters["Cleo"]["nll"].reason == "no_units"
    assert cast.characters["Bob"]["margin"].mean == pytest.approx(0.1)


def test_methods_are_compared_over_the_same_dialogues() -> None:
    lines = [
        *(said(row, nll) for row, nll in ((1, 10.0), (2, 20.0), (3, 90.0))),
        *(said(row, nll, method="base", fits=None) for row, nll in ((1, 15.0), (2, 27.0))),
        said(3, None, method="base"),
    ]
    (found,) = differences(lines)
    assert (found.method, found.other, found.metric) == ("cast", "base", "nll")
    assert found.difference.mean == pytest.approx((-0.5 - 0.7) / 2)
    assert found.difference.n == 2
    assert found.difference.missing == pytest.approx(1 / 3)


def test_with_seeds_methods_are_compared_seed_by_seed() -> None:
    lines = [
        said(row, 10.0 * row + seed, method="retrained", seed=seed, fits=None)
        for seed in range(3)
        for row in (1, 2, 3, 4)
    ]
    lines += [
        said(row, 10.0 * row + 2 * seed + row, method="one_shared", seed=seed, fits=None)
        for seed in range(3)
        for row in (1, 2, 3, 4)
    ]
    lines += [said(row, 12.0 * row, method="base", fits=None) for row in (1, 2, 3, 4)]
    base, shared = differences(lines)
    assert (base.other, base.seeds) == ("base", (0, 1, 2))
    assert base.difference.mean == pytest.approx((1 - 2 * 2.5) / 10)  # mean seed 1, mean row 2.5
    assert (shared.other, shared.seeds) == ("one_shared", (0, 1, 2))
    assert shared.difference.mean == pytest.approx(-(1 + 2.5) / 10)
    # All resampled means lie between those of the best and of the worst seed and row.
    assert shared.difference.low is not None
    assert shared.difference.high is not None
    assert -(2 + 4) / 10 <= shared.difference.low < shared.difference.high <= -(0 + 1) / 10


def test_lines_are_read_as_they_were_written(tmp_path: Path) -> None:
    lines = [said(1, 20.0, seed=2, method="one_shared"), switched(2, 3.0, 4.0, None), said(3, None)]
    write_lines(tmp_path / "results.jsonl", lines)
    assert list(read_lines(tmp_path / "results.jsonl")) == lines
    (tmp_path / "other.jsonl").write_text('{"kind": "play"}\n', "utf-8")
    with pytest.raises(InputError, match="line 1"):
        read_lines(tmp_path / "other.jsonl")


def test_a_line_has_a_figure_or_a_failure() -> None:
    with pytest.raises(ValueError, match="likelihood or a failure"):
        said(1, 20.0, failure=Failure(cause="too_long", detail="x"))
    with pytest.raises(ValueError, match="its own blocks"):
        said(1, 20.0, fits={"Bob": 1.0})
