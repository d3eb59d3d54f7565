"""The course of a training, on disk and in words."""

from pathlib import Path
from typing import Any

import pytest

from personae.cast.history import (
    Course,
    LossTeller,
    TrainingStep,
    course_of,
    mean_loss,
    read_history,
    write_history,
)
from personae.errors import InputError


def _step(
    step: int, character: str, loss: float | None, tokens: int = 10, *, dev: float | None = None
) -> TrainingStep:
    return TrainingStep(
        stage="own" if step < 10 else "more", step=step, epoch=step / 4, character=character,
        loss=loss, dev_loss=dev, lr=1e-3, tokens=tokens,
    )  # fmt: skip


def test_a_history_comes_back_as_it_was_written(tmp_path: Path) -> None:
    history = (_step(1, "Ännchen", 2.5), _step(1, "孔明", None, dev=3.25))
    write_history(tmp_path / "history.jsonl", history)
    assert read_history(tmp_path / "history.jsonl") == history


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text(_step(1, "Bo", 2.5).to_json() + '\n{"stage": "own"}\n', encoding="utf-8")
    with pytest.raises(InputError, match=r"history\.jsonl, line 2: not a valid TrainingStep"):
        read_history(path)


def test_each_token_counts_alike_in_a_mean_and_checks_do_not() -> None:
    history = [_step(1, "Bo", 1.0, 30), _step(2, "Bo", 4.0, 10), _step(2, "Bo", None, 99, dev=9.0)]
    assert mean_loss(history) == (1.0 * 30 + 4.0 * 10) / 40
    assert mean_loss(history[2:]) is None


def test_losses_are_said_at_the_start_of_a_stage_and_then_now_and_then() -> None:
    said: list[str] = []
    now = 0.0
    teller = LossTeller(said.append, every=5.0, clock=lambda: now)
    for second, records in (
        (0.0, [_step(0, "Anna", None, dev=3.0)]),
        (1.0, [_step(1, "Anna", 2.5), _step(1, "Bo", 2.25)]),
        (4.9, [_step(2, "Anna", 2.0), _step(2, "Bo", 2.0)]),
        (5.0, [_step(3, "Bo", 1.504)]),
        (6.0, [_step(10, "Bo", 1.0)]),
        (7.0, []),
    ):
        now = second
        teller(records)
    assert said == ["own 0: Anna (3.00)", "own 3: Anna 2.00 (3.00), Bo 1.50", "more 10: Bo 1.00"]


def test_of_a_crowd_some_are_said_and_the_rest_counted() -> None:
    said: list[str] = []
    LossTeller(said.append)([_step(1, f"C{n}", 1.0) for n in range(11)])
    assert said[0].endswith("C7 1.00 + 3")


def _of(stage: str, step: int, epoch: float, loss: float | None, dev: float | None = None) -> Any:
    return TrainingStep(
        stage=stage,
        step=step,
        epoch=epoch,
        character="Bo",
        loss=loss,
        dev_loss=dev,
        lr=0.0,
        tokens=10,
    )


def test_a_course_goes_from_before_the_first_stage_to_the_last_pass_of_the_last_one() -> None:
    history = [
        _of("shared", 1, 0.5, 6.0),
        _of("shared", 2, 1.0, 5.0),
        _of("own", 1, 1.0, 4.0),
        _of("own", 2, 1.5, 3.0),
        _of("own", 3, 2.0, 2.0),
    ]
    assert course_of(history, "Bo", best=False) == Course(6.0, 2.5, watched=False)
    assert course_of(history, "Anna", best=False) == Course(None, None, watched=False)


def test_a_watched_course_ends_in_the_state_that_is_kept_the_last_or_the_best() -> None:
    history = [
        _of("shared", 0, 0.0, None, 6.0),
        _of("shared", 1, 1.0, 7.0),
        _of("shared", 1, 1.0, None, 2.0),
        _of("own", 0, 0.0, None, 4.0),
        _of("own", 1, 1.0, None, 3.5),
        _of("own", 2, 2.0, None, 3.75),
    ]
    assert course_of(history, "Bo", best=True) == Course(6.0, 3.5, watched=True)
    assert course_of(history, "Bo", best=False) == Course(6.0, 3.75, watched=True)
