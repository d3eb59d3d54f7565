from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from personae.errors import InputError
from personae.judging.interview_metrics import SEVEN
from personae.judging.metrics import MAXIMS, METRICS
from personae.judging.people import (
    Dispute,
    HumanAgreement,
    InterviewDispute,
    MetricAgreement,
    TrajectoryDispute,
    agree,
    agree_on_interviews,
    agree_on_trajectories,
)
from personae.records import Failure, InterviewRow, RatingRow, ResultRow, Task
from personae.records.interview import Method
from tests.judging.interviews import a_row

EA, TC = Task.EXPECTED_ACTION, Task.TOXICITY_CONTROL
HEADER = "unit_id,rater,metric,score"


def row(
    unit: str,
    score: int | None,
    *,
    persona: str = "ada",
    judge: str = "j1",
    model: str = "m",
    task: Task = EA,
    lift: float | None = None,
) -> ResultRow:
    return ResultRow(
        unit_id=unit,
        model=model,
        persona=persona,
        task=task,
        question_id=f"q-{unit}",
        question="What now?",
        answer="An answer.",
        judge=judge,
        score=score,
        failure=Failure(cause="unparsable") if score is None and lift is None else None,
        justification="Because.",
        lift=lift,
        refusal=False,
    )


def csv_file(folder: Path, *lines: str, header: str = HEADER) -> Path:
    path = folder / "ratings.csv"
    path.write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
    return path


def first(found: HumanAgreement, **wanted: object) -> MetricAgreement:
    return next(
        m for m in found.metrics if all(getattr(m, name) == value for name, value in wanted.items())
    )


def test_judges_and_people_are_correlated_as_scipy_does(tmp_path: Path) -> None:
    numbers = random.Random(3)
    rows, lines, judged, human = [], [], [], []
    for i in range(40):
        scores = [numbers.randint(1, 5) for _ in range(2)]
        rated = [min(5, max(1, scores[0] + numbers.randint(-1, 1))) for _ in range(2)]
        rows += [row(f"u{i}", s, judge=f"j{j}", persona=f"p{i % 8}") for j, s in enumerate(scores)]
        lines += [f"u{i},r{j},EA,{s}" for j, s in enumerate(rated)]
        judged.append(sum(scores) / 2)
        human.append(sum(rated) / 2)
    found = agree(rows, csv_file(tmp_path, *lines))
    (metric,) = found.metrics
    assert (metric.metric, metric.task, metric.model) == ("Expected Action", EA, None)
    assert (metric.units, metric.unscored, found.ratings) == (40, 0, 80)
    for ours, theirs in (
        (metric.spearman, stats.spearmanr(judged, human)),
        (metric.kendall, stats.kendalltau(judged, human)),
        (metric.pearson, stats.pearsonr(judged, human)),
    ):
        assert ours.value == pytest.approx(theirs.statistic)
        assert ours.low is not None
        assert ours.high is not None
        assert ours.low < theirs.statistic < ours.high


def test_each_task_and_each_model_has_its_own_correlation(tmp_path: Path) -> None:
    rows, lines = [], []
    for model, sign in (("a", 1), ("b", -1)):
        for task in (EA, TC):
            for score in (1, 2, 4):
                unit = f"{model}-{task.short}-{score}"
                rows.append(row(unit, score, model=model, task=task))
                lines.append(f"{unit},r1,{task.slug},{sign * score}")
    found = agree(rows, csv_file(tmp_path, *lines))
    assert [(m.metric, m.model) for m in found.metrics] == [
        (task.value, model) for task in (EA, TC) for model in (None, "a", "b")
    ]
    assert first(found, metric=EA.value, model="a").spearman.value == pytest.approx(1)
    assert first(found, metric=EA.value, model="b").spearman.value == pytest.approx(-1)
    assert first(found, metric=EA.value, model="b").units == 3


def test_a_metric_of_the_raters_own_is_taken_over_all_tasks_and_for_each(tmp_path: Path) -> None:
    rows = [row(f"e{s}", s) for s in (1, 2, 3)] + [row(f"t{s}", s, task=TC) for s in (1, 2, 3)]
    lines = [f"e{s},r1,Overall,{s}" for s in (1, 2, 3)]
    lines += [f"t{s},r1,overall,{4 - s}" for s in (1, 2, 3)]
    found = agree(rows, csv_file(tmp_path, *lines))
    assert [(m.metric, m.task, m.units) for m in found.metrics] == [
        ("Overall", None, 6),
        ("Overall", EA, 3),
        ("Overall", TC, 3),
    ]
    assert [m.spearman.value for m in found.metrics] == pytest.approx([0, 1, -1])


def test_answers_that_the_panel_did_not_score_are_counted_not_compared(tmp_path: Path) -> None:
    rows = [row("a", 1), row("b", 3), row("c", None), row("d", 5)]
    found = agree(rows, csv_file(tmp_path, *[f"{u},r,EA,{i}" for i, u in enumerate("abcd")]))
    assert (found.metrics[0].units, found.metrics[0].unscored) == (3, 1)
    assert found.metrics[0].pearson.value == pytest.approx(stats.pearsonr([1, 3, 5], [0, 1, 3])[0])


def test_without_any_score_there_is_no_correlation(tmp_path: Path) -> None:
    found = agree([row("a", None), row("b", None)], csv_file(tmp_path, "a,r,EA,1", "b,r,EA,2"))
    assert (found.metrics[0].units, found.metrics[0].unscored) == (0, 2)
    assert found.metrics[0].spearman.value is None
    assert found.disputes == ()


def test_lift_is_compared_with_people_too(tmp_path: Path) -> None:
    rows = [
        row(u, None, judge="lift:x", lift=v) for u, v in zip("abc", (0.1, 0.2, 0.9), strict=True)
    ]
    found = agree(rows, csv_file(tmp_path, "a,r,EA,1", "b,r,EA,3", "c,r,EA,2"))
    (metric,) = found.metrics
    assert (metric.measure, metric.units) == ("lift", 3)
    assert metric.spearman.value == pytest.approx(0.5)


def test_raters_agree_by_krippendorffs_alpha(tmp_path: Path) -> None:
    rows = [row(u, 3, persona=u) for u in "abc"]
    lines = [f"{u},{r},EA,{s}" for u, s in zip("abc", (1, 2, 5), strict=True) for r in ("x", "y")]
    (raters,) = agree(rows, csv_file(tmp_path, *lines)).raters
    assert (raters.metric, raters.raters, raters.reason) == ("Expected Action", 2, None)
    assert raters.agreement is not None
    assert (raters.agreement.alpha, raters.agreement.units) == (1, 3)


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (["a,x,EA,1", "b,x,EA,2"], "one rater"),
        (["a,x,EA,1", "b,y,EA,2"], "no answer has two ratings"),
        (["a,x,EA,4", "a,y,EA,4"], "all ratings are the same"),
    ],
)
def test_where_raters_cannot_be_compared_the_reason_stands(
    tmp_path: Path, lines: list[str], reason: str
) -> None:
    (raters,) = agree([row("a", 3), row("b", 4)], csv_file(tmp_path, *lines)).raters
    assert raters.reason == reason
    assert raters.agreement is None or raters.agreement.alpha is None


def test_the_ten_largest_differences_are_found_whatever_the_scale(tmp_path: Path) -> None:
    # judges and people agree on all but u0, where the judge gives the top and people the bottom
    rows = [row("u0", 5)] + [row(f"u{i}", 1 + i % 5) for i in range(1, 15)]
    lines = ["u0,r,EA,0"] + [f"u{i},r,EA,{25 * (i % 5)}" for i in range(1, 15)]
    disputes = agree(rows, csv_file(tmp_path, *lines)).disputes
    assert len(disputes) == 10
    assert isinstance(disputes[0], Dispute)
    assert disputes[0].answer.unit_id == "u0"
    assert (disputes[0].answer.score, disputes[0].human_score) == (5, 0)
    assert disputes[0].ratings == {"r": 0}
    assert disputes[0].answer.verdicts[0].justification == "Because."
    assert disputes[0].difference > 2.5
    sizes = [abs(d.difference) for d in disputes]
    assert sizes == sorted(sizes, reverse=True)


def test_a_difference_is_one_of_standardised_scores(tmp_path: Path) -> None:
    # judges 1, 3: -1 and +1; people 10, 20: -1 and +1; so no difference at all
    disputes = agree([row("a", 1), row("b", 3)], csv_file(tmp_path, "a,r,EA,10", "b,r,EA,20"))
    assert [d.difference for d in disputes.disputes] == pytest.approx([0, 0])


def test_a_file_from_a_spreadsheet_is_read(tmp_path: Path) -> None:
    path = tmp_path / "ratings.csv"
    text = (
        'score,metric,rater,unit_id\r\n4,"Expected Action","Lee, Ann",a\r\n\r\n 3.5 ,EA,bo, a \r\n'
    )
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    found = agree([row("a", 3), row("b", 4)], path)
    assert found.ratings == 2
    assert found.raters[0].raters == 2


@pytest.mark.parametrize(
    ("text", "place", "says"),
    [
        ("", "", "is empty.*first line must be unit_id,rater,metric,score"),
        (HEADER, "", "holds no ratings"),
        ("unit_id;rater;metric;score\na;r;EA;4", "line 1", "the columns are"),
        ("unit,rater,metric,score\na,r,EA,4", "line 1", "first line must be"),
        ("a,r,EA,4", "line 1", "the columns are 'a,r,EA,4'"),
        (f"{HEADER}\na,r,EA,4\nz,r,EA,4", "line 3", "unit id 'z'.*'a' for one"),
        (f"{HEADER}\na,r,EA,good", "line 2", "'good' is not a number"),
        (f"{HEADER}\na,r,EA,", "line 2", "'' is not a number.*leave the line out"),
        (f"{HEADER}\na,r,EA,nan", "line 2", "'nan' is not a number"),
        (f"{HEADER}\na,r,EA,1e999", "line 2", "is not a number"),
        (f"{HEADER}\na,r,EA,1_0", "line 2", "is not a number"),
        (f"{HEADER}\na,r,EA,4,5", "line 2", "5 cells where the header has 4.*point"),
        (f"{HEADER}\na,r,EA,4\na,r,expected_action,5", "line 3", "a second time"),
        (f"{HEADER}\na,,EA,4", "line 2", "the rater is empty"),
        (f"{HEADER}\na,r,,4", "line 2", "the metric is empty"),
        (f"{HEADER}\na,r,TC,4", "line 2", "Toxicity Control but.*Expected Action"),
        (f'{HEADER}\na,r,"EA"x,4', "line 2", "not CSV"),
        (f'{HEADER}\na,r,"EA,4', "line 2", "not CSV"),
        (f"{HEADER}\n{'x' * 200_000},r,EA,4", "line 2", "not CSV"),
        (f"{HEADER}\n{'x' * 300},r,EA,4", "line 2", r"'x{57}\.\.\.'"),
    ],
)
def test_a_bad_file_is_named_with_line_and_mend(
    tmp_path: Path, text: str, place: str, says: str
) -> None:
    path = tmp_path / "ratings.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=says) as caught:
        agree([row("a", 3), row("b", 4)], path)
    assert caught.value.place == place
    assert caught.value.path == path
    assert caught.value.mend
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("noise", [b"\xff\xfe" + HEADER.encode("utf-16-le"), b"PK\x03\x04\0\0\x80"])
def test_bytes_that_are_no_text_are_an_error_that_names_the_file(
    tmp_path: Path, noise: bytes
) -> None:
    path = tmp_path / "ratings.csv"
    path.write_bytes(noise)
    with pytest.raises(InputError, match=r"ratings\.csv"):
        agree([row("a", 3)], path)


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        agree([row("a", 3)], tmp_path / "none.csv")


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet=st.sampled_from('a,r"EA4\n\r; \0é'), max_size=40))
def test_whatever_the_file_holds_the_error_is_ours(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    path = tmp_path_factory.mktemp("noise") / "ratings.csv"
    path.write_bytes(f"{HEADER}\n{text}".encode())
    try:
        found = agree([row("a", 3)], path)
    except InputError as error:
        named = error.path
    else:
        named = path
        assert found.ratings >= 1
    assert named == path


def test_the_findings_survive_a_round_trip_through_json(tmp_path: Path) -> None:
    rows = [row("a", 1), row("b", 3), row("c", 5)]
    found = agree(rows, csv_file(tmp_path, "a,r,EA,1", "b,r,EA,5", "c,s,EA,4"))
    assert HumanAgreement.from_dict(found.to_dict()) == found


# Trajectories ------------------------------------------------------------------------------------


def ratings(
    unit: str, scores: Sequence[int | None], *, judge: str = "j", keys: Sequence[str] = METRICS
) -> list[RatingRow]:
    """The rows of one judge over one trajectory; the unit's first letter is its scene."""
    return [
        RatingRow(
            unit_id=unit,
            scene_id=unit[0],
            language="en",
            origin="extracted",
            character="Ada",
            model=unit.partition("@")[2] or "m",
            narrator="n",
            judge=judge,
            metric=key,
            score=score,
            failure=Failure(cause="timeout") if score is None else None,
        )
        for key, score in zip(keys, scores, strict=True)
    ]


def test_trajectories_are_correlated_metric_by_metric_and_overall_as_scipy_does(
    tmp_path: Path,
) -> None:
    numbers = random.Random(7)
    rows: list[RatingRow] = []
    lines, judged, human = [], [], []
    for i in range(30):
        unit, level = f"{'abcdef'[i % 6]}#{i}", numbers.randint(1, 5)
        by_judges = [
            [min(5, max(1, level + numbers.randint(-1, 1))) for _ in METRICS] for _ in range(2)
        ]
        by_people = [
            [min(5, max(1, level + numbers.randint(-1, 1))) for _ in METRICS] for _ in range(3)
        ]
        for n, scores in enumerate(by_judges):
            rows += ratings(unit, scores, judge=f"j{n}")
        lines += [
            f"{unit},r{n},{key},{score}"
            for n, scores in enumerate(by_people)
            for key, score in zip(METRICS, scores, strict=True)
        ]
        judged.append([sum(two) / 2 for two in zip(*by_judges, strict=True)])
        human.append([sum(three) / 3 for three in zip(*by_people, strict=True)])
    found = agree_on_trajectories(rows, csv_file(tmp_path, *lines))
    assert [m.metric for m in found.metrics] == [*METRICS, "overall"]
    assert (found.over, found.ratings) == ("scenes", 30 * 3 * 7)
    pairs = [([u[k] for u in judged], [u[k] for u in human]) for k in range(7)]
    pairs.append(([round(sum(u) / 7, 9) for u in judged], [round(sum(u) / 7, 9) for u in human]))
    for metric, (ours, theirs) in zip(found.metrics, pairs, strict=True):
        assert (metric.units, metric.unscored, metric.model) == (30, 0, None)
        assert metric.pearson.value == pytest.approx(stats.pearsonr(ours, theirs).statistic)
        assert metric.spearman.value == pytest.approx(stats.spearmanr(ours, theirs).statistic)
        assert metric.kendall.value == pytest.approx(stats.kendalltau(ours, theirs).statistic)
        assert metric.pearson.low is not None
    assert {r.metric: r.raters for r in found.raters} == dict.fromkeys((*METRICS, "overall"), 3)


def test_a_raters_own_name_stands_against_the_average_of_the_seven(tmp_path: Path) -> None:
    rows = [
        *ratings("a#1", (1, 1, 1, 1, 1, 1, 1)),
        *ratings("b#1", (5, 1, 5, 1, 5, 1, 3)),
        *ratings("c#1", (5, 5, 5, 5, 5, 5, 5)),
    ]
    found = agree_on_trajectories(
        rows, csv_file(tmp_path, "a#1,r,overall,10", "b#1,r,overall,20", "c#1,r,overall,30")
    )
    (metric,) = found.metrics
    assert metric.pearson.value == pytest.approx(stats.pearsonr([1, 3, 5], [10, 20, 30]).statistic)


def test_metrics_of_trajectories_go_by_any_of_their_names(tmp_path: Path) -> None:
    rows = [*ratings("a#1", [1] * 7), *ratings("b#1", [2] * 7)]
    found = agree_on_trajectories(
        rows,
        csv_file(tmp_path, "a#1,r,Knowledge Accuracy,1", "b#1,r,ka,2", "a#1,q,知识准确性,1"),
    )
    assert [(m.metric, m.units) for m in found.metrics] == [("KA", 2)]


def test_models_are_compared_together_and_each(tmp_path: Path) -> None:
    rows, lines = [], []
    for i, model in enumerate(("m", "m", "other", "other")):
        rows += ratings(f"{i}#x@{model}", [i + 1] * 7)
        lines.append(f"{i}#x@{model},r,KA,{i + 1}")
    found = agree_on_trajectories(rows, csv_file(tmp_path, *lines))
    assert [(m.model, m.units) for m in found.metrics] == [(None, 4), ("m", 2), ("other", 2)]


def test_a_trajectory_that_a_judge_failed_on_is_unscored(tmp_path: Path) -> None:
    rows = [*ratings("a#1", [None, *[3] * 6]), *ratings("b#1", [2] * 7), *ratings("c#1", [3] * 7)]
    lines = [f"{u}#1,r,{m},{s}" for u, s in (("a", 1), ("b", 2), ("c", 3)) for m in ("KA", "BA")]
    found = {m.metric: m for m in agree_on_trajectories(rows, csv_file(tmp_path, *lines)).metrics}
    assert (found["KA"].units, found["KA"].unscored) == (2, 1)
    assert (found["BA"].units, found["BA"].unscored) == (3, 0)


def test_the_largest_difference_names_trajectory_and_metric(tmp_path: Path) -> None:
    rows, lines = [], []
    for i in range(1, 6):
        rows += ratings(f"{i}#x", [i] * 7)
        lines += [f"{i}#x,r,KA,{6 - i if i in (1, 5) else i}", f"{i}#x,r,BA,{i}"]
    worst, *_ = agree_on_trajectories(rows, csv_file(tmp_path, *lines)).disputes
    assert isinstance(worst, TrajectoryDispute)
    assert worst.metric == "KA"
    assert (worst.unit_id, worst.score, worst.human_score) == ("1#x", 1, 5)


def test_a_narrators_work_is_rated_by_the_maxims_and_by_nothing_else(tmp_path: Path) -> None:
    rows = [*ratings("a#1", [1] * 7), *ratings("a#@n", [2, 3, 4, 5], keys=MAXIMS)]
    found = agree_on_trajectories(rows, csv_file(tmp_path, "a#@n,r,Manner,4"))
    assert [(m.metric, m.units) for m in found.metrics] == [("MANNER", 1)]
    for line, wanted in (("a#@n,r,KA,4", "rated on QUALITY"), ("a#1,r,MANNER,4", "rated on KA")):
        with pytest.raises(InputError, match=f"line 2.*{wanted}"):
            agree_on_trajectories(rows, csv_file(tmp_path, line))


def test_a_run_that_nobody_rated_is_an_error_with_the_mend(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="personae rate"):
        agree_on_trajectories([], csv_file(tmp_path, "a,r,KA,1"))


# Interviews --------------------------------------------------------------------------------------

KNOWLEDGE = ("VK", "RK", "HK")


def test_interviews_are_correlated_metric_by_metric_and_overall_as_scipy_does(
    tmp_path: Path,
) -> None:
    numbers = random.Random(11)
    rows, lines, judged, human = [], [], [], []

    def near(level: int) -> list[int]:
        return [min(7, max(1, level + numbers.randint(-1, 1))) for _ in KNOWLEDGE]

    for i in range(30):
        level = numbers.randint(1, 7)
        by_judges, by_people = [near(level) for _ in range(2)], [near(level) for _ in range(3)]
        for n, scores in enumerate(by_judges):
            rows += [
                a_row(key, score, script=f"s{i}", characters=("abcdef"[i % 6],), judge=f"j{n}")
                for key, score in zip(KNOWLEDGE, scores, strict=True)
            ]
        lines += [
            f"s{i}@m#prompt,r{n},{key},{score}"
            for n, scores in enumerate(by_people)
            for key, score in zip(KNOWLEDGE, scores, strict=True)
        ]
        judged.append([sum(two) / 2 for two in zip(*by_judges, strict=True)])
        human.append([sum(three) / 3 for three in zip(*by_people, strict=True)])
    found = agree_on_interviews(rows, csv_file(tmp_path, *lines))
    assert [m.metric for m in found.metrics] == [*KNOWLEDGE, "overall"]
    assert (found.over, found.ratings) == ("characters", 30 * 3 * 3)
    pairs = [([u[k] for u in judged], [u[k] for u in human]) for k in range(3)]
    pairs.append(([round(sum(u) / 3, 9) for u in judged], [round(sum(u) / 3, 9) for u in human]))
    for metric, (ours, theirs) in zip(found.metrics, pairs, strict=True):
        assert (metric.units, metric.unscored, metric.model) == (30, 0, None)
        assert metric.pearson.value == pytest.approx(stats.pearsonr(ours, theirs).statistic)
        assert metric.spearman.value == pytest.approx(stats.spearmanr(ours, theirs).statistic)
        assert metric.kendall.value == pytest.approx(stats.kendalltau(ours, theirs).statistic)
        assert metric.pearson.low is not None
    assert {r.metric: r.raters for r in found.raters} == dict.fromkeys((*KNOWLEDGE, "overall"), 3)
    assert found.orders == (), "one system has no order"


def a_comparison() -> tuple[list[InterviewRow], list[str]]:
    """Three methods over two characters: Ada has two interviews, Bede one, in two modes."""
    rows, lines = [], []
    given: dict[Method, tuple[tuple[int, int, int], tuple[float, float, float]]] = {
        "prompt": ((2, 4, 6), (1, 2, 3)),
        "rag": ((4, 4, 4), (2, 2, 4)),
        "cast": ((6, 6, 7), (4, 4, 4)),
    }
    for method, (judges, people) in given.items():
        for n, (judge, human) in enumerate(zip(judges, people, strict=True)):
            name = ("Ada", "Ada", "Bede")[n]
            rows.append(a_row("VK", judge, script=f"s{n}", characters=(name,), method=method))
            lines.append(f"s{n}@m#{method},r,VK,{human}")
        rows.append(a_row("VK", 5, script="single", mode="single", method=method, kind="single"))
        lines.append(f"single@m#{method},r,VK,{people[0]}")
    return rows, lines


def test_means_of_people_and_of_judges_stand_side_by_side_over_characters(tmp_path: Path) -> None:
    rows, lines = a_comparison()
    found = agree_on_interviews(rows, csv_file(tmp_path, *lines))
    means = {(s.method, s.mode): s for s in found.systems}
    assert len(means) == len(found.systems) == 6
    rag = means["rag", "replayed"]
    # Ada's two interviews are one character's mean: (2 + 2) / 2 and 4; so 3, and not 8 / 3.
    assert (rag.interviews, rag.people.mean, rag.people.n) == (3, 3.0, 2)
    assert rag.judges.mean == 4.0
    assert means["prompt", "replayed"].judges.mean == pytest.approx(((2 + 4) / 2 + 6) / 2)
    assert means["prompt", "single"].judges.mean == 5.0
    assert means["prompt", "single"].judges.low is None, "one character has no interval"
    assert rag.people.low is not None


def test_judges_and_people_are_compared_by_the_order_of_systems_in_each_mode(
    tmp_path: Path,
) -> None:
    rows, lines = a_comparison()
    found = agree_on_interviews(rows, csv_file(tmp_path, *lines))
    replayed, single = found.orders
    assert (replayed.metric, replayed.mode, single.mode) == ("VK", "replayed", "single")
    assert replayed.by_people == ("m by cast", "m by rag", "m by prompt")
    assert replayed.by_judges == ("m by cast", "m by prompt", "m by rag")
    people, judges = [2.25, 3.0, 4.0], [4.5, 4.0, 6.5]  # prompt, rag, cast
    assert replayed.kendall == pytest.approx(stats.kendalltau(judges, people).statistic)
    assert replayed.kendall == pytest.approx(1 / 3)
    assert single.kendall is None, "judges put all on one level"


def test_each_model_method_and_mode_has_its_own_correlation(tmp_path: Path) -> None:
    rows, lines = a_comparison()
    found = agree_on_interviews(rows, csv_file(tmp_path, *lines))
    assert [(m.model, m.method, m.mode, m.units) for m in found.metrics] == [
        (None, None, None, 12),
        *[("m", method, mode, units)
          for method in ("cast", "prompt", "rag")
          for mode, units in (("replayed", 3), ("single", 1))],
    ]  # fmt: skip
    assert first(found, method="prompt", mode="replayed").spearman.value == pytest.approx(1)


def test_an_interview_that_a_judge_failed_on_is_unscored_and_missing(tmp_path: Path) -> None:
    rows = [a_row("HK", score, script=f"s{i}") for i, score in enumerate((None, 4, 6))]
    lines = [f"s{i}@m#prompt,r,HK,{i + 1}" for i in range(3)]
    found = agree_on_interviews(rows, csv_file(tmp_path, *lines))
    assert (found.metrics[0].units, found.metrics[0].unscored) == (2, 1)
    (system,) = found.systems
    assert (system.interviews, system.judges.mean, system.people.mean) == (2, 5.0, 2.5)
    assert system.judges.missing == system.people.missing == pytest.approx(1 / 3)


def test_a_raters_own_name_stands_against_the_average_of_the_seven_and_trans(
    tmp_path: Path,
) -> None:
    rows = [
        a_row(key, score, script=f"s{n}")
        for n, scores in enumerate(((1, 1, 1, 1, 1, 1, 1), (1, 7, 1, 7, 1, 7, 4)))
        for key, score in zip(SEVEN, scores, strict=True)
    ]
    rows.append(a_row("Trans", 7, script="t", kind="transfer", characters=("Ada", "Bede")))
    lines = ["s0@m#prompt,r,liking,10", "s1@m#prompt,r,liking,20", "t@m#prompt,r,liking,90"]
    found = agree_on_interviews(rows, csv_file(tmp_path, *lines))
    (metric,) = found.metrics
    assert metric.units == 3
    assert metric.pearson.value == pytest.approx(stats.pearsonr([1, 4, 7], [10, 20, 90]).statistic)


def test_metrics_of_interviews_go_by_any_of_their_names(tmp_path: Path) -> None:
    rows = [a_row(key, n + 1, script=f"s{n}") for n in range(2) for key in ("VK", "Rel")]
    one, other = "s0@m#prompt", "s1@m#prompt"
    lines = [f"{one},r,vk,1", f"{other},r,Virtual Knowledge,2", f"{other},q,虚拟知识,2",
             f"{one},r,Rel.,3"]  # fmt: skip
    found = agree_on_interviews(rows, csv_file(tmp_path, *lines))
    assert [(m.metric, m.units) for m in found.metrics][:2] == [("VK", 2), ("Rel", 1)]


def test_transfer_dialogues_are_rated_on_trans_and_by_nothing_else(tmp_path: Path) -> None:
    rows = [
        a_row("Trans", 4, script="t", kind="transfer", characters=("Ada", "Bede")),
        a_row("VK", 4, script="s"),
    ]
    for line, wanted in (
        ("t@m#prompt,r,VK,4", "judged on Trans"),
        ("s@m#prompt,r,Trans,4", "judged on CB"),
    ):
        with pytest.raises(InputError, match=f"line 2.*{wanted}"):
            agree_on_interviews(rows, csv_file(tmp_path, line))


def test_interviews_that_nobody_judged_are_an_error_with_the_mend(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--judge"):
        agree_on_interviews([], csv_file(tmp_path, "a,r,VK,1"))


def test_findings_over_interviews_survive_a_round_trip_through_json(tmp_path: Path) -> None:
    rows, lines = a_comparison()
    found = agree_on_interviews(rows, csv_file(tmp_path, *lines))
    assert isinstance(found.disputes[0], InterviewDispute)
    assert HumanAgreement.from_dict(found.to_dict()) == found


# JSONL -------------------------------------------------------------------------------------------


def test_ratings_are_read_from_jsonl_as_from_csv(tmp_path: Path) -> None:
    rows = [row("a", 1), row("b", 3), row("c", 5)]
    path = tmp_path / "ratings.jsonl"
    path.write_text(
        '{"unit_id": "a", "rater": "r", "metric": "EA", "score": 1}\n'
        '{"score": "2.5", "unit_id": "b", "rater": "r", "metric": "EA"}\n\n'
        '{"unit_id": "c", "rater": "r", "metric": "EA", "score": 4.5}\n'
    )
    by_csv = agree(rows, csv_file(tmp_path, "a,r,EA,1", "b,r,EA,2.5", "c,r,EA,4.5"))
    assert agree(rows, path) == by_csv


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"unit_id": "a", "rater": "r", "metric": "EA"}', "`score` is missing"),
        ('{"unit_id": "a", "rater": "r", "metric": "EA", "score": true}', "`score` is missing or"),
        ('{"unit_id": 1, "rater": "r", "metric": "EA", "score": 1}', "`unit_id` is missing or no"),
        ('{"unit_id": "a", "rater": "r", "metric": "EA", "score": 1, "x": 1}', "other keys"),
        ('{"unit_id": "a", "rater": "r", "metric": "EA", "score": 1e99}', "is not a number"),
        ('{"unit_id": "a", "rater": "r", "metric": "EA", "score": NaN}', "is not a number"),
        ("[1]", "not a JSON object"),
        ("{", "not JSON"),
    ],
)
def test_a_bad_line_of_jsonl_is_named(tmp_path: Path, line: str, says: str) -> None:
    path = tmp_path / "ratings.jsonl"
    path.write_text(f'{{"unit_id": "b", "rater": "r", "metric": "EA", "score": 1}}\n{line}\n')
    with pytest.raises(InputError, match=f"line 2.*{says}"):
        agree([row("a", 3), row("b", 4)], path)
