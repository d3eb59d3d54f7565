from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from personae.errors import InputError
from personae.judging.scores import (
    judge_agreement,
    judged_answers,
    paired,
    score_models,
)
from personae.records import Failure, ModelScores, Question, ResultRow, Task

EA, TC, LH = Task.EXPECTED_ACTION, Task.TOXICITY_CONTROL, Task.LINGUISTIC_HABITS


def row(
    persona: str,
    number: int,
    score: int | None,
    *,
    judge: str = "j1",
    model: str = "m",
    task: Task = EA,
    repeat: int = 0,
    answer: str | None = "An answer.",
    refusal: bool | None = False,
    lift: float | None = None,
    expected: float | None = None,
    justification: str | None = None,
) -> ResultRow:
    question = f"{persona}-{task.short}-{number}"
    missing = score is None and lift is None
    return ResultRow(
        unit_id=f"{model}:{question}",
        model=model,
        persona=persona,
        task=task,
        question_id=question,
        question="What now?",
        answer=answer,
        judge=judge,
        score=score,
        failure=Failure(cause="unparsable") if missing else None,
        justification=justification,
        expected_score=expected,
        lift=lift,
        refusal=refusal if answer is not None else None,
        repeat=repeat,
    )


def only(rows: list[ResultRow], **more: object) -> ModelScores:
    (scores,) = score_models(rows, **more)  # type: ignore[arg-type]  # passed through
    return scores


def test_persona_score_is_the_mean_of_task_scores_over_personas() -> None:
    scores = only(
        [
            row("ada", 1, 5),
            row("ada", 2, 3),  # Expected Action 4
            row("ada", 1, 1, task=TC),  # so ada has (4 + 1) / 2 = 2.5, not (5 + 3 + 1) / 3
            row("bo", 1, 2),
            row("bo", 1, 5, task=TC),  # bo has 3.5
        ]
    )
    assert scores.persona_score.mean == 3
    assert (scores.persona_score.low, scores.persona_score.high) == (2.5, 3.5)
    assert (scores.persona_score.n, scores.persona_score.missing) == (2, 0)
    assert {t: e.mean for t, e in scores.tasks.items()} == {
        "Expected Action": 3,
        "Toxicity Control": 3,
    }


def test_a_units_score_is_the_mean_over_its_judges() -> None:
    rows = [row("ada", 1, 5), row("ada", 1, 2, judge="j2")]
    scores = only(rows)
    assert scores.persona_score.mean == 3.5
    assert {j: e.mean for j, e in scores.by_judge.items()} == {"j1": 5, "j2": 2}


def test_repeats_of_a_judge_are_averaged_before_the_judges_are() -> None:
    rows = [
        row("ada", 1, 5),
        row("ada", 1, 1, repeat=1),
        row("ada", 1, 3, repeat=2),
        row("ada", 1, 5, judge="j2"),
    ]
    assert only(rows).persona_score.mean == 4


def test_a_unit_that_one_judge_failed_on_is_missing_not_scored_by_the_rest() -> None:
    rows = [
        row("ada", 1, 1),
        row("ada", 1, 1, judge="j2"),
        row("ada", 2, 5),
        row("ada", 2, None, judge="j2"),
    ]
    scores = only(rows)
    assert scores.persona_score.mean == 1
    assert scores.persona_score.missing == 0.5
    assert scores.by_judge["j1"].mean == 3
    assert scores.by_judge["j1"].missing == 0
    assert scores.by_judge["j2"].missing == 0.5


def test_a_judge_without_any_row_for_a_unit_leaves_it_missing() -> None:
    rows = [row("ada", 1, 4), row("ada", 2, 4), row("ada", 1, 4, judge="j2")]
    assert only(rows).persona_score.missing == 0.5


def test_a_persona_with_a_task_that_nobody_scored_has_no_persona_score() -> None:
    rows = [
        row("ada", 1, 5),
        row("ada", 1, None, task=TC),
        row("bo", 1, 2),
        row("bo", 1, 2, task=TC),
    ]
    scores = only(rows)
    assert (scores.persona_score.mean, scores.persona_score.n) == (2, 1)
    assert scores.persona_score.missing == 0.25
    assert (scores.tasks["Expected Action"].mean, scores.tasks["Expected Action"].n) == (3.5, 2)
    assert (scores.tasks["Toxicity Control"].mean, scores.tasks["Toxicity Control"].n) == (2, 1)
    assert scores.tasks["Toxicity Control"].missing == 0.5


def test_a_persona_is_not_asked_for_tasks_that_its_benchmark_lacks() -> None:
    rows = [row("ada", 1, 4), row("bo", 1, 2), row("bo", 1, 4, task=TC)]
    assert only(rows).persona_score.mean == 3.5
    assert only(rows).persona_score.n == 2


def test_where_every_verdict_failed_there_is_no_score_and_all_is_missing() -> None:
    score = only([row("ada", 1, None), row("bo", 1, None)]).persona_score
    assert (score.mean, score.low, score.high, score.n, score.missing) == (None, None, None, 0, 1)


def test_one_persona_has_a_score_without_an_interval() -> None:
    score = only([row("ada", 1, 4)]).persona_score
    assert (score.mean, score.low, score.high, score.n) == (4, None, None, 1)


def test_questions_that_left_no_row_are_missing() -> None:
    asked = [
        Question(id=f"{p}-{EA.short}-{i}", persona_id=p, task=EA, text="?")
        for p in ("ada", "bo")
        for i in (1, 2)
    ]
    score = only([row("ada", 1, 4)], expected=asked).persona_score
    assert (score.mean, score.n, score.missing) == (4, 1, 0.75)


def test_lift_has_its_own_column_and_never_enters_a_score() -> None:
    rows = [
        row("ada", 1, 2),
        row("ada", 1, None, judge="lift:local", lift=0.75),
        row("bo", 1, 4),
        row("bo", 1, None, judge="lift:local", lift=0.25),
    ]
    scores = only(rows)
    assert scores.persona_score.mean == 3
    assert scores.persona_score.missing == 0
    assert scores.lift is not None
    assert (scores.lift.mean, scores.lift.n) == (0.5, 2)
    assert scores.lift_tasks["Expected Action"].mean == 0.5
    assert list(scores.by_judge) == ["j1"]


def test_where_only_lift_judged_the_score_is_unknown_and_nothing_is_missing() -> None:
    scores = only([row("ada", 1, None, judge="lift:local", lift=0.75)])
    assert scores.persona_score.mean is None
    assert scores.persona_score.n == 0
    assert scores.persona_score.missing == 0
    assert scores.tasks["Expected Action"].mean is None
    assert scores.by_judge == {}


def test_without_a_lift_judge_there_is_no_lift() -> None:
    scores = only([row("ada", 1, 2)])
    assert scores.lift is None
    assert scores.lift_tasks == {}


def test_expected_scores_are_those_of_the_judges_that_offer_them() -> None:
    rows = [row("ada", 1, 4, expected=3.5), row("ada", 1, 2, judge="j2")]
    scores = only(rows)
    assert scores.expected_score is not None
    assert scores.expected_score.mean == 3.5
    assert only([row("ada", 1, 4)]).expected_score is None


def test_refusals_are_counted_over_answers_and_still_judged() -> None:
    rows = [
        row("ada", 1, 1, refusal=True),
        row("ada", 2, 5),
        row("ada", 3, None, answer=None),
        row("ada", 1, 5, task=TC),
        row("ada", 1, 5, task=LH, answer=None),
    ]
    scores = only(rows)
    assert scores.n_answers == 3
    assert scores.refusal_rate == pytest.approx(1 / 3)
    assert scores.refusal_by_task == {
        "Expected Action": 0.5,
        "Toxicity Control": 0,
        "Linguistic Habits": None,
    }
    assert scores.tasks["Expected Action"].mean == 3


def test_a_model_without_answers_has_no_refusal_rate() -> None:
    scores = only([row("ada", 1, None, answer=None)])
    assert scores.n_answers == 0
    assert scores.refusal_rate is None


def test_each_model_has_its_own_scores_in_order_of_appearance() -> None:
    rows = [row("ada", 1, 5, model="z"), row("ada", 1, 1, model="a")]
    assert [(s.model, s.persona_score.mean) for s in score_models(rows)] == [("z", 5), ("a", 1)]
    assert score_models([]) == []


def test_the_order_of_rows_changes_no_digit() -> None:
    numbers = random.Random(4)
    rows = [
        row(f"p{p}", q, numbers.randint(1, 5), judge=j, task=t)
        for p in range(7)
        for q in range(3)
        for j in ("j1", "j2", "j3")
        for t in (EA, TC)
    ]
    shuffled = rows[:]
    numbers.shuffle(shuffled)
    assert score_models(shuffled, seed=3) == score_models(rows, seed=3)


def test_a_verdict_that_stands_twice_is_an_error() -> None:
    with pytest.raises(InputError, match="two rows for unit 'm:ada-EA-1'"):
        score_models([row("ada", 1, 5), row("ada", 1, 4)])


def test_a_unit_id_that_names_two_answers_is_an_error() -> None:
    other = row("bo", 1, 4).model_copy(update={"unit_id": "m:ada-EA-1", "judge": "j2"})
    with pytest.raises(InputError, match="one to one"):
        score_models([row("ada", 1, 5), other])


def test_an_answer_with_two_unit_ids_is_an_error() -> None:
    other = row("ada", 1, 4, judge="j2").model_copy(update={"unit_id": "another"})
    with pytest.raises(InputError, match="one to one"):
        score_models([row("ada", 1, 5), other])


@settings(max_examples=30, deadline=None)
@given(
    st.dictionaries(
        st.tuples(st.sampled_from("abcd"), st.sampled_from([EA, TC, LH]), st.integers(1, 3)),
        st.one_of(st.none(), st.integers(1, 5)),
        min_size=1,
    )
)
def test_scores_stay_on_the_scale_and_shares_between_0_and_1(
    verdicts: dict[tuple[str, Task, int], int | None],
) -> None:
    scores = only([row(p, q, s, task=t) for (p, t, q), s in verdicts.items()])
    for estimate in (scores.persona_score, *scores.tasks.values()):
        known = [v for v in (estimate.low, estimate.mean, estimate.high) if v is not None]
        assert all(1 <= v <= 5 for v in known)
        assert all(a <= b + 1e-9 for a, b in pairwise(known))
        assert (estimate.mean is None) == (estimate.n == 0)
        assert (estimate.low is None) == (estimate.n < 2)
    assert scores.persona_score.missing == pytest.approx(
        sum(s is None for s in verdicts.values()) / len(verdicts)
    )


# Agreement of judges


def two_judges(first: list[int | None], second: list[int | None], name: str) -> list[ResultRow]:
    return [
        row(f"p{i}", 1, s, judge=j)
        for j, scores in (("j1", first), (name, second))
        for i, s in enumerate(scores)
    ]


def test_judges_that_agree_in_full_have_an_alpha_of_one() -> None:
    agreement, reason = judge_agreement(two_judges([1, 2, 5, 4], [1, 2, 5, 4], "j2"))
    assert agreement is not None
    assert (agreement.alpha, agreement.units, reason) == (1, 4, None)
    assert agreement.low == agreement.high == 1


def test_units_that_one_of_two_judges_failed_on_do_not_count() -> None:
    agreement, _ = judge_agreement(two_judges([1, 2, 5, 4], [1, None, 5, 4], "j2"))
    assert agreement is not None
    assert agreement.units == 3


def test_one_judge_is_no_agreement() -> None:
    assert judge_agreement([row("ada", 1, 4)]) == (None, "one judge cannot agree with itself")


def test_lift_is_no_second_judge() -> None:
    rows = [row("ada", 1, 4), row("ada", 1, None, judge="lift:local", lift=0.1)]
    assert judge_agreement(rows)[0] is None
    assert judge_agreement(rows[1:]) == (None, "no judge gave verdicts")


def test_a_model_that_judges_twice_does_not_agree_with_itself() -> None:
    rows = [row(f"p{i}", 1, i + 1, repeat=r) for i in range(3) for r in (0, 1)]
    assert judge_agreement(rows) == (None, "repeats of one model are not agreement")


def test_two_names_of_the_same_weights_are_repeats() -> None:
    rows = two_judges([1, 2], [1, 2], "j1-alias")
    result = judge_agreement(rows, weights_of=lambda judge: "the same file")
    assert result == (None, "repeats of one model are not agreement")


def test_repeats_among_several_models_are_one_rater() -> None:
    rows = two_judges([1, 2, 5, 4], [1, 2, 5, 4], "j2")
    alias = [row(f"p{i}", 1, s, judge="j2-alias") for i, s in enumerate([1, 2, 5, 4])]
    again = [row(f"p{i}", 1, s, judge="j1", repeat=1) for i, s in enumerate([1, 2, 5, 4])]
    result = judge_agreement([*rows, *alias, *again], weights_of=lambda judge: judge[:2])
    assert result == judge_agreement(rows)


def test_verdicts_that_are_all_the_same_have_no_alpha_and_a_reason() -> None:
    agreement, reason = judge_agreement(two_judges([3, 3], [3, 3], "j2"))
    assert agreement is not None
    assert (agreement.alpha, agreement.units) == (None, 2)
    assert reason == "every verdict is the same number"


def test_two_runs_of_one_model_are_pooled_not_taken_for_repetitions() -> None:
    first = two_judges([1, 2, 5, 4], [1, 2, 5, 4], "j2")
    second = two_judges([1, 2, 5, 4], [5, 4, 1, 2], "j2")
    agreement, _ = judge_agreement(first, second)
    assert agreement is not None
    assert agreement.units == 8
    assert agreement.alpha is not None
    assert agreement.alpha < 0.5


def test_judges_without_a_common_unit_have_no_agreement() -> None:
    rows = two_judges([1, None], [None, 2], "j2")
    assert judge_agreement(rows) == (None, "no answer has scores of two judges")


# Two models on the same questions


def test_the_difference_of_two_models_is_taken_question_by_question() -> None:
    rows = [
        row("ada", 1, 5, model="a"), row("ada", 1, 3, model="b"),  # +2
        row("ada", 2, 1, model="a"), row("ada", 2, None, model="b"),  # no pair
        row("bo", 1, 4, model="a"), row("bo", 1, 4, model="b"),  # 0
    ]  # fmt: skip
    persona_score, action = paired(rows, "a", "b")
    assert persona_score.what == "PersonaScore"
    assert action.what == "Expected Action"
    assert persona_score.estimate == action.estimate
    estimate = persona_score.estimate
    assert (estimate.mean, estimate.low, estimate.high, estimate.n) == (1, 0, 2, 2)
    assert estimate.missing == pytest.approx(1 / 3)


def test_a_steady_difference_has_a_narrow_interval_however_personas_vary() -> None:
    rows = [row(f"p{i}", 1, 1 + i % 4, model="b") for i in range(12)]
    rows += [row(f"p{i}", 1, 2 + i % 4, model="a") for i in range(12)]
    estimate = paired(rows, "a", "b")[0].estimate
    assert (estimate.low, estimate.mean, estimate.high) == (1, 1, 1)
    swapped = paired(rows, "b", "a")[0].estimate
    assert swapped.mean == -1


def test_models_with_no_question_in_common_have_no_difference() -> None:
    rows = [row("ada", 1, 5, model="a"), row("bo", 1, 3, model="b")]
    estimate = paired(rows, "a", "b")[0].estimate
    assert (estimate.mean, estimate.n, estimate.missing) == (None, 0, 1)


def test_lift_is_paired_too() -> None:
    rows = [
        row(p, 1, None, judge="lift:x", lift=v, model=m)
        for p, m, v in [("ada", "a", 0.5), ("ada", "b", 0.25), ("bo", "a", 0), ("bo", "b", 0.25)]
    ]
    (difference,) = paired(rows, "a", "b")
    assert difference.what == "lift"
    assert difference.estimate.mean == 0


def test_a_model_that_is_not_there_is_named() -> None:
    with pytest.raises(InputError, match=r"no results of model 'c'.*a, b"):
        paired([row("ada", 1, 5, model="a"), row("ada", 1, 5, model="b")], "a", "c")


# Single answers


def test_judged_answers_come_by_unit_with_the_judges_reasons() -> None:
    rows = [
        row("bo", 1, 1),
        row("bo", 1, None, judge="j2"),
        row("ada", 2, 5),
        row("ada", 2, 5, judge="j2"),
        row("ada", 1, 2, justification="Out of character."),
        row("ada", 1, 1, judge="j2", justification="Breaks the voice."),
    ]
    first, second, third = judged_answers(rows)
    assert (first.unit_id, first.score, first.spread) == ("m:ada-EA-1", 1.5, 1)
    assert [v.justification for v in first.verdicts] == ["Out of character.", "Breaks the voice."]
    assert (second.score, second.spread) == (5, 0)
    assert (third.score, third.spread) == (None, None)


def test_a_reason_is_that_of_the_first_repeat() -> None:
    rows = [
        row("ada", 1, 4, repeat=1, justification="second"),
        row("ada", 1, 2, repeat=0, justification="first"),
    ]
    (verdict,) = judged_answers(rows)[0].verdicts
    assert (verdict.score, verdict.justification) == (3, "first")


def test_a_failed_verdict_is_shown_with_its_cause() -> None:
    rows = [row("ada", 1, 5), row("ada", 1, 1, judge="j2"), row("ada", 1, None, judge="j3")]
    (answer,) = judged_answers(rows)
    assert (answer.score, answer.spread) == (None, 4)
    assert [v.score for v in answer.verdicts] == [5, 1, None]
    assert answer.verdicts[2].failure == Failure(cause="unparsable")
