"""The geometry of stability curves: where a point stands, and what breaks a line."""

from __future__ import annotations

import pytest

from personae.records import Estimate
from personae.reports.interviews.curves import EDGE, HEIGHT, MOST_TICKS, curve, grid, level


def turn(mean: float | None, low: float | None = None, high: float | None = None) -> Estimate:
    return Estimate(mean=mean, low=low, high=high, n=0 if mean is None else 4, missing=0)


def test_seven_is_at_the_top_and_one_at_the_bottom() -> None:
    assert (level(7), level(1)) == (EDGE, HEIGHT - EDGE)
    assert level(4) == pytest.approx(HEIGHT / 2)
    assert grid() == ((level(1), "1"), (level(3), "3"), (level(5), "5"), (level(7), "7"))


def test_turns_stand_in_the_middle_of_their_share_of_the_width() -> None:
    drawn = curve({1: turn(7), 2: turn(4)}, last=4)
    assert [(p.turn, p.x, p.y) for p in drawn.points] == [(1, 12.5, EDGE), (2, 37.5, HEIGHT / 2)]
    assert drawn.lines == (f"12.5,{float(EDGE)} 37.5,{HEIGHT / 2}",)
    assert drawn.bands == ()


def test_the_first_and_the_last_turn_say_their_mean() -> None:
    drawn = curve({i: turn(6 - i) for i in (1, 2, 3)}, last=3)
    assert [p.text for p in drawn.points] == ["5.0", "", "3.0"]


def test_a_turn_without_a_mean_breaks_the_line_and_is_still_numbered() -> None:
    drawn = curve({1: turn(5), 2: turn(5), 3: turn(None), 4: turn(3), 5: turn(3)}, last=5)
    assert drawn.lines == (
        f"10.0,{level(5)} 30.0,{level(5)}",
        f"70.0,{level(3)} 90.0,{level(3)}",
    )
    assert [(t.turn, t.n) for t in drawn.ticks] == [(1, 4), (2, 4), (3, 0), (4, 4), (5, 4)]


def test_the_band_runs_along_the_upper_ends_and_back_along_the_lower_ones() -> None:
    drawn = curve({1: turn(5, 4, 6), 2: turn(4, 3, 5), 3: turn(4)}, last=4)
    assert drawn.bands == (f"12.5,{level(6)} 37.5,{level(5)} 37.5,{level(3)} 12.5,{level(4)}",)


def test_one_turn_alone_is_a_point_and_no_line() -> None:
    drawn = curve({1: turn(5, 4, 6)}, last=1)
    assert (len(drawn.points), drawn.lines, drawn.bands) == (1, (), ())


def test_nothing_known_draws_nothing() -> None:
    drawn = curve({1: turn(None), 2: turn(None)}, last=2)
    assert (drawn.points, drawn.lines, drawn.bands) == ((), (), ())


def test_of_many_turns_only_some_are_numbered() -> None:
    drawn = curve({i: turn(4) for i in range(1, 31)}, last=30)
    assert [t.turn for t in drawn.ticks] == list(range(1, 31, 3))
    assert len(drawn.ticks) <= MOST_TICKS
