from __future__ import annotations

import pytest

from personae.records import Failure
from personae.reports.data import ReportData, Unit, group_units
from personae.reports.html import disputed_units, persona_means, worst_units

from .sample import make_benchmark, make_data, make_rows

JUDGES = ("a/one", "b/two", "lift:local")


def one_unit(scores: list[int | None], *, repeats: bool = False) -> Unit:
    """The unit made of one answer with these scores by its judges (None is missing)."""
    row = make_rows(make_benchmark(people=1), ["m"], ["j"])[0]
    lost = Failure(cause="timeout")
    return group_units(
        row.model_copy(
            update={
                "judge": "j" if repeats else f"j{i}",
                "repeat": i if repeats else 0,
                "score": score,
                "failure": lost if score is None else None,
            }
        )
        for i, score in enumerate(scores)
    )[0]


def test_report_data_survives_a_json_round_trip():
    data = make_data()
    assert ReportData.from_dict(data.to_dict()) == data


def test_an_answers_score_is_the_mean_over_its_judges():
    assert one_unit([2, 5]).mean == 3.5


def test_an_answer_that_one_judge_could_not_score_has_no_score():
    assert one_unit([2, None]).mean is None


def test_repeats_of_a_judge_are_averaged_and_a_lost_repeat_leaves_the_others():
    assert one_unit([2, 4, None], repeats=True).mean == 3.0


def test_lift_never_enters_an_answers_score():
    rows = make_rows(make_benchmark(), ["m"], ["lift:local"], lost=0)
    units = group_units(rows)
    assert all(unit.mean is None and unit.lift is not None for unit in units)


def units_scored(**scores: tuple[int | None, int | None]) -> tuple[Unit, ...]:
    """One answer for each name (its unit id), with the scores of its two judges."""
    row = make_rows(make_benchmark(people=1), ["m"], ["j"])[0]
    lost = Failure(cause="timeout")
    return group_units(
        row.model_copy(
            update={
                "unit_id": name,
                "judge": judge,
                "score": score,
                "failure": lost if score is None else None,
            }
        )
        for name, given in scores.items()
        for judge, score in zip(("a/one", "b/two"), given, strict=True)
    )


def test_the_worst_answers_come_lowest_first_and_those_without_a_score_not_at_all():
    units = units_scored(d=(2, 1), c=(1, 2), b=(5, 5), a=(1, None), e=(1, 1))
    assert [(u.unit_id, u.mean) for u in worst_units(units, 3)] == [
        ("e", 1),
        ("c", 1.5),
        ("d", 1.5),
    ]


def test_disputed_answers_are_those_whose_judges_lie_furthest_apart():
    units = units_scored(a=(4, 2), b=(3, 3), c=(1, 5), d=(None, 1))
    assert [(u.unit_id, u.spread) for u in disputed_units(units)] == [("c", 4), ("a", 2)]


def test_the_mean_over_the_dots_of_the_spread_is_the_persona_score():
    data = make_data(lost=0.2)
    means = persona_means(group_units(data.rows))
    for scores in data.models:
        dots = [v for (model, _), (v, _, _) in means.items() if model == scores.model]
        known = [v for v in dots if v is not None]
        assert len(known) == scores.persona_score.n
        assert sum(known) / len(known) == pytest.approx(scores.persona_score.mean)


@pytest.mark.parametrize(
    ("states", "trust"),
    [
        (("passed", "passed"), "passed"),
        (("failed", "failed"), "failed"),
        (("none", "none"), "none"),
        (("passed", "none"), "mixed"),
        (("failed", "none"), "mixed"),
    ],
)
def test_trust_is_what_all_verdict_judges_share(states, trust):
    assert make_data(states=states).trust == trust


def test_without_verdict_judges_there_is_nothing_to_trust():
    assert make_data(judges=("lift:local",), states=()).trust == "no_judge"
