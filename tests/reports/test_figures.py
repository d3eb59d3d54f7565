from __future__ import annotations

import pytest

from personae.records import Estimate
from personae.reports.figures import (
    Axis,
    bars,
    mark_row,
    matrix,
    score_axis,
    signed_axis,
    swarm,
)


def test_scores_lie_on_the_scale_from_1_to_5():
    axis = score_axis()
    assert [axis.at(v) for v in (1, 2, 3, 5)] == [0, 25, 50, 100]
    assert [label for _, label in axis.ticks] == ["1", "2", "3", "4", "5"]


def test_differences_are_drawn_around_zero_with_room_for_all():
    axis = signed_axis([-0.13, 0.7])
    assert axis.at(0) == 50
    assert axis.low == -axis.high
    assert 0 < axis.at(-0.13) < 50 < axis.at(0.7) < 100
    assert [label for _, label in axis.ticks] == ["−1", "−0.5", "0", "+0.5", "+1"]


def test_without_values_there_is_still_an_axis():
    assert signed_axis([]).at(0) == 50


def test_without_a_mean_there_is_no_mark_and_without_an_interval_no_range():
    none = Estimate(mean=None, low=None, high=None, n=0, missing=1)
    alone = Estimate(mean=3, low=None, high=None, n=1, missing=0)
    row = mark_row("x", [(0, none, "no score"), (1, alone, "3.00")], score_axis())
    (mark,) = row.marks
    assert (mark.series, mark.at, mark.low, mark.high) == (1, 50, None, None)
    assert [text for _, text in row.texts] == ["no score", "3.00"]


def test_a_swarm_has_a_dot_for_each_character_inside_its_picture():
    values = [3.0] * 40 + [1.0, 2.0, 4.5, 5.0]
    drawn = swarm(0, values, score_axis())
    assert len(drawn.dots) == len(values) == drawn.n
    assert all(0 <= dot.y <= drawn.height and 0 <= dot.at <= 100 for dot in drawn.dots)
    assert len({(dot.at, dot.y) for dot in drawn.dots}) == len(values)
    assert drawn.values == (3.0, 3.0, 3.0)


def test_quartiles_of_three_characters_are_not_drawn():
    assert swarm(0, [1, 2, 3], score_axis()).box is None


def test_bars_are_as_long_as_their_share_of_the_longest():
    assert [bar.width for bar in bars([("a", 8), ("b", 2)])] == [100, 25]


def test_the_matrix_counts_each_pair_once():
    drawn = matrix("a", "b", [(5, 5), (5, 4), (1, 1), (2, 5)])
    assert drawn is not None
    lines = {score: [cell.count for cell in cells] for score, cells in drawn.lines}
    assert lines == {
        5: [0, 0, 0, 1, 1],
        4: [0] * 5,
        3: [0] * 5,
        2: [0, 0, 0, 0, 1],
        1: [1, 0, 0, 0, 0],
    }
    assert (drawn.n, drawn.exact, drawn.close) == (4, 0.5, 0.75)


def test_judges_with_no_answer_in_common_have_no_matrix():
    assert matrix("a", "b", []) is None


@pytest.mark.parametrize("value", [-10.0, 10.0])
def test_a_value_beyond_the_scale_stays_in_the_picture(value):
    assert 0 <= Axis(0, 1, ()).at(value) <= 100
