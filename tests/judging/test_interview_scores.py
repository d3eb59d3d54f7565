"""Scores of interviews, recomputed by hand: characters first, then voices; what is missing stays so."""

import json
import random
from collections.abc import Sequence
from typing import Any

import pytest

from personae.errors import InputError
from personae.judging.interview_metrics import METRICS, SEVEN
from personae.judging.interview_scores import (
    InterviewDifference,
    InterviewScores,
    Verdicts,
    interview_agreement,
    interview_differences,
    interviews_document,
    score_interview_characters,
    score_interviews,
    score_tempting,
    score_topics,
    stability_curves,
)
from personae.judging.statistics import cluster_bootstrap, ordinal_alpha
from personae.records import Estimate, InterviewRow
from tests.judging.interviews import a_row

ADA, BEDE = ("Ada",), ("Bede",)


def verdicts(
    script: str,
    scores: int | Sequence[int | None],
    characters: Sequence[str] = ADA,
    turns: Sequence[int] = (),
    **changes: Any,
) -> list[InterviewRow]:
    """The seven rows of one judge over one interview; `scores` one number or seven."""
    given = [scores] * 7 if isinstance(scores, int) else scores
    return [
        a_row(
            metric,
            score,
            script=script,
            characters=characters,
            turn_scores=turns if metric == "Stab" and score is not None else (),
            turns=len(turns) or 2,
            **changes,
        )
        for metric, score in zip(SEVEN, given, strict=True)
    ]


def transfer(script: str, score: int | None, **changes: Any) -> InterviewRow:
    return a_row(
        "Trans", score, script=script, characters=("Ada", "Bede"), kind="transfer", **changes
    )


def only(rows: Sequence[InterviewRow], **arguments: Any) -> InterviewScores:
    (found,) = score_interviews(Verdicts(rows), **arguments)
    return found


def figures(estimate: Estimate) -> tuple[float | None, int, float]:
    return estimate.mean, estimate.n, estimate.missing


# Means ------------------------------------------------------------------------------------------


def test_a_voice_is_the_mean_of_its_characters_and_a_character_of_its_interviews() -> None:
    rows = [
        *verdicts("a1", 2), *verdicts("a2", 4), *verdicts("a3", 6),
        *verdicts("b1", 7, BEDE),
    ]  # fmt: skip
    found = only(rows)
    # Ada (2 + 4 + 6) / 3 = 4, Bede 7; over interviews it would be 4.75.
    assert figures(found.metrics["CB"]) == (5.5, 2, 0)
    assert figures(found.average) == figures(found.average_without_stab) == (5.5, 2, 0)
    assert found.n_interviews == 4


def test_the_average_is_of_seven_metrics_and_without_stab_of_six() -> None:
    found = only(verdicts("a1", [6, 5, 5, 6, 7, 7, 3]))
    assert found.average.mean == pytest.approx(39 / 7)
    assert found.average_without_stab.mean == 6.0
    assert {m: e.mean for m, e in found.metrics.items()} == {
        "CB": 6, "CU": 5, "VK": 5, "RK": 6, "HK": 7, "Rel": 7, "Stab": 3, "Trans": None,
    }  # fmt: skip


def test_intervals_resample_characters() -> None:
    scores = {"a1": (2, ADA), "a2": (5, ADA), "b1": (7, BEDE), "c1": (3, ("Cleo",))}
    rows = [row for script, (s, who) in scores.items() for row in verdicts(script, s, who)]
    found = only(rows, seed=3).metrics["VK"]
    reference = cluster_bootstrap([2, 5, 7, 3], ["A", "A", "B", "C"], seed=3)
    assert (found.mean, found.low, found.high) == (4.5, reference.low, reference.high)


def test_one_character_has_a_mean_and_no_interval() -> None:
    found = only([*verdicts("a1", 2), *verdicts("a2", 4)]).average
    assert (found.mean, found.low, found.high, found.n) == (3, None, None, 1)


def test_modes_methods_models_and_languages_are_never_pooled() -> None:
    rows = [
        *verdicts("a1", 1, mode="single", kind="single"),
        *verdicts("a2", 2, mode="live"),
        *verdicts("a3", 3, mode="replayed"),
        *verdicts("a4", 4, mode="unknown"),
        *verdicts("a3", 5, method="rag"),
        *verdicts("a3", 6, model="m2"),
        *verdicts("z3", 7, language="zh"),
    ]
    found = score_interviews(Verdicts(rows))
    assert [(s.model, s.method, s.mode, s.lang, s.average.mean) for s in found] == [
        ("m", "prompt", "live", "en", 2),
        ("m", "prompt", "replayed", "en", 3),
        ("m", "prompt", "replayed", "zh", 7),
        ("m", "prompt", "single", "en", 1),
        ("m", "prompt", "unknown", "en", 4),
        ("m", "rag", "replayed", "en", 5),
        ("m2", "prompt", "replayed", "en", 6),
    ]


def test_transfer_is_over_scripts_and_in_neither_average() -> None:
    rows = [*verdicts("a1", 3), transfer("t1", 5), transfer("t2", 6), transfer("t3", None)]
    found = only(rows)
    assert figures(found.metrics["Trans"]) == (5.5, 2, 1 / 3)
    assert figures(found.average) == (3, 1, 0)
    assert (found.n_interviews, found.n_transfers) == (1, 3)
    assert figures(found.metrics["CB"]) == (3, 1, 0)


def test_a_voice_with_transfer_dialogues_alone_has_no_seven_and_misses_none() -> None:
    found = only([transfer("t1", 5), transfer("t2", 7)])
    assert found.metrics["Trans"].mean == 6
    for estimate in (found.average, found.average_without_stab, found.metrics["HK"]):
        assert figures(estimate) == (None, 0, 0)


# What is missing --------------------------------------------------------------------------------


def test_a_missing_score_is_left_out_and_said_never_0() -> None:
    rows = [*verdicts("a1", 6), *verdicts("a2", [6, 6, 6, 6, 6, 6, None])]
    found = only(rows)
    assert figures(found.metrics["Stab"]) == (6, 1, 0.5)
    assert figures(found.metrics["CB"]) == (6, 1, 0)
    assert figures(found.average) == (6, 1, 0.5)
    assert figures(found.average_without_stab) == (6, 1, 0)


def test_an_interview_that_could_not_be_judged_is_missing_on_every_metric() -> None:
    none = [None] * 7
    rows = [*verdicts("a1", 6), *verdicts("a2", none, cause="answer: empty"),
            *verdicts("a3", none, cause="malformed"), transfer("t1", None, cause="answer: timeout")]  # fmt: skip
    found = only(rows)
    assert figures(found.average) == (6, 1, 2 / 3)
    assert (found.n_interviews, found.n_transfers, found.answers_missing) == (3, 1, 0.5)


def test_where_nothing_was_scored_there_is_no_mean() -> None:
    found = only(verdicts("a1", [None] * 7, cause="answer: empty"))
    assert figures(found.average) == (None, 0, 1)
    assert found.answers_missing == 1


def test_an_interview_that_one_judge_of_two_did_not_score_is_missing() -> None:
    rows = [
        *verdicts("a1", 4, judge="j1"), *verdicts("a1", 6, judge="j2"),
        *verdicts("a2", 1, judge="j1"), *verdicts("a2", [None] * 7, judge="j2"),
    ]  # fmt: skip
    assert figures(only(rows).average) == (5, 1, 0.5)
    assert figures(only(rows, judge="j1").average) == (2.5, 1, 0)
    assert figures(only(rows, judge="j2").average) == (6, 1, 0.5)


def test_a_judge_that_was_not_asked_about_an_interview_is_not_missed() -> None:
    rows = [*verdicts("a1", 4, judge="j1"), *verdicts("a2", 6, judge="j2")]
    assert figures(only(rows).average) == (5, 1, 0)
    assert only(rows, judge="j1").n_interviews == 1


def test_repeats_of_a_judge_are_averaged_first() -> None:
    rows = [
        *verdicts("a1", 3, judge="j1"), *verdicts("a1", 6, judge="j1", repeat=1),
        *verdicts("a1", 7, judge="j2"),
    ]  # fmt: skip
    assert only(rows).average.mean == (4.5 + 7) / 2


def test_a_repeat_that_failed_leaves_the_judges_other_one() -> None:
    rows = [*verdicts("a1", 3), *verdicts("a1", [None] * 7, repeat=1)]
    assert figures(only(rows).average) == (3, 1, 0)


def test_the_same_verdict_twice_is_an_error() -> None:
    with pytest.raises(InputError, match="two rows for interview 'a1@m#prompt', metric CB"):
        Verdicts([*verdicts("a1", 3), *verdicts("a1", 3)])


def test_one_id_of_two_interviews_is_an_error() -> None:
    with pytest.raises(InputError, match="names two interviews"):
        Verdicts([a_row("CB", 3), a_row("CU", 3, characters=BEDE)])


def test_the_order_of_the_rows_changes_nothing() -> None:
    rows = [
        row
        for n, who in enumerate(("Ada", "Bede", "Cleo") * 3)
        for row in verdicts(f"s{n}", 1 + n % 7, (who,), turns=(1 + n % 7, 4))
    ]
    before = interviews_document(rows)
    random.Random(1).shuffle(rows)
    assert interviews_document(rows) == before


# Turns ------------------------------------------------------------------------------------------


def test_a_curve_is_the_mean_of_each_turn_over_characters() -> None:
    rows = [
        *verdicts("a1", 5, turns=(7, 5, 3)), *verdicts("a2", 5, turns=(5, 5, 5)),
        *verdicts("b1", 5, BEDE, turns=(4, 4, 2)),
    ]  # fmt: skip
    (curve,) = stability_curves(Verdicts(rows))
    # Ada (7 + 5) / 2 = 6, 5, 4; Bede 4, 4, 2.
    assert [(t.turn, t.mean, t.n, t.missing) for t in curve.turns] == [
        (1, 5, 2, 0), (2, 4.5, 2, 0), (3, 3, 2, 0),
    ]  # fmt: skip
    # Ada (-4 + 0) / 2 = -2, Bede -2.
    assert figures(curve.drift) == (-2, 2, 0)
    assert (curve.drift.low, curve.drift.high) == (-2, -2)


def test_later_turns_are_of_the_interviews_that_have_them() -> None:
    rows = [*verdicts("a1", 5, turns=(7, 6)), *verdicts("b1", 5, BEDE, turns=(5, 5, 1))]
    (curve,) = stability_curves(Verdicts(rows))
    assert [figures(turn) for turn in curve.turns] == [(6, 2, 0), (5.5, 2, 0), (1, 1, 0)]
    assert curve.drift.mean == (-1 + -4) / 2


def test_an_interview_without_stability_is_missing_at_each_of_its_turns() -> None:
    rows = [
        *verdicts("a1", 5, turns=(7, 6)),
        *verdicts("b1", [5, 5, 5, 5, 5, 5, None], BEDE, turns=(0, 0)),
    ]
    (curve,) = stability_curves(Verdicts(rows))
    assert [figures(turn) for turn in curve.turns] == [(7, 1, 0.5), (6, 1, 0.5)]
    assert figures(curve.drift) == (-1, 1, 0.5)


def test_two_judges_curves_are_averaged_where_both_scored() -> None:
    rows = [
        *verdicts("a1", 5, turns=(7, 6), judge="j1"), *verdicts("a1", 5, turns=(5, 2), judge="j2"),
        *verdicts("a2", 5, turns=(1, 1), judge="j1"), *verdicts("a2", [None] * 7, judge="j2"),
    ]  # fmt: skip
    (curve,) = stability_curves(Verdicts(rows))
    assert [figures(turn) for turn in curve.turns] == [(6, 1, 0.5), (4, 1, 0.5)]


def test_a_row_without_a_score_for_each_turn_is_in_no_curve() -> None:
    short = [
        row.model_copy(update={"turn_scores": ()}) for row in verdicts("b1", 5, BEDE, turns=(1, 1))
    ]
    (curve,) = stability_curves(Verdicts([*verdicts("a1", 5, turns=(7, 6)), *short]))
    assert [figures(turn) for turn in curve.turns] == [(7, 1, 0.5), (6, 1, 0.5)]


def test_single_questions_and_transfer_dialogues_have_no_curve() -> None:
    single = verdicts("a1", 5, turns=(5,), mode="single", kind="single")
    assert stability_curves(Verdicts([*single, transfer("t1", 5)])) == []


# Topics, characters -----------------------------------------------------------------------------


def test_topics_are_scored_apart_and_tempting_questions_too() -> None:
    rows = [
        *verdicts("a1", 2, topic_id="topic-1", topic="past"),
        *verdicts("b1", 4, BEDE, topic_id="topic-1", topic="past"),
        *verdicts("a2", 7, topic_id="topic-4", topic="lure", tempting=True),
        *verdicts("b2", 5, BEDE, topic_id="topic-4", topic="bait", tempting=True),
    ]
    table = Verdicts(rows)
    assert [(t.topic_id, t.topic, t.tempting, t.average.mean) for t in score_topics(table)] == [
        ("topic-1", "past", False, 3), ("topic-4", "", True, 6),
    ]  # fmt: skip
    assert [(t.tempting, t.average.mean) for t in score_tempting(table)] == [(False, 3), (True, 6)]


def test_a_topic_of_one_script_alone_is_none_and_neither_is_no_topic() -> None:
    rows = [*verdicts("a1", 2, topic="Why?"), *verdicts("a2", 2), *verdicts("a3", 2)]
    assert score_topics(Verdicts(rows)) == []
    assert score_tempting(Verdicts(rows)) == []


def test_a_character_is_scored_over_its_scripts() -> None:
    rows = [*verdicts("a1", 2), *verdicts("a2", 6), *verdicts("b1", 7, BEDE), transfer("t1", 1)]
    found = score_interview_characters(Verdicts(rows))
    assert [(c.character, c.average.mean, c.average.n) for c in found] == [
        ("Ada", 4, 2), ("Bede", 7, 1),
    ]  # fmt: skip
    reference = cluster_bootstrap([2, 6])
    assert (found[0].average.low, found[0].average.high) == (reference.low, reference.high)


# Judges against judges --------------------------------------------------------------------------


def two_judges(first: Sequence[int | None], second: Sequence[int | None]) -> list[InterviewRow]:
    return [
        a_row("VK", score, script=f"s{n}", characters=(f"c{n % 3}",), judge=judge)
        for judge, given in (("j1", first), ("j2", second))
        for n, score in enumerate(given)
    ]


def test_agreement_is_ordinal_alpha_by_metric_with_characters_resampled() -> None:
    first: list[int | None] = [1, 2, 5, 6, 7, 4]
    second: list[int | None] = [1, 3, 5, 7, 7, None]
    found = {a.metric: a for a in interview_agreement(Verdicts(two_judges(first, second)))}
    reference = ordinal_alpha(
        list(zip(first, second, strict=True)), ["c0", "c1", "c2", "c0", "c1", "c2"]
    )
    agreement = found["VK"].agreement
    assert agreement is not None
    assert (agreement.alpha, agreement.low, agreement.high) == reference[:3]
    assert agreement.units == 5
    assert found["CB"].reason == "no interview has scores of two judges"
    assert "Trans" not in found


def test_one_judge_and_one_judge_under_two_names_are_no_agreement() -> None:
    rows = two_judges([1, 2, 3], [1, 2, 3])
    for found in interview_agreement(Verdicts(rows), weights_of=lambda _judge: "the same file"):
        assert found.agreement is None
        assert found.reason == "one judge cannot agree with itself"
    assert all(a.agreement is None for a in interview_agreement(Verdicts(rows[:3])))


# Methods and models on the same scripts ---------------------------------------------------------


def by_what(rows: Sequence[InterviewRow]) -> dict[str, InterviewDifference]:
    return {d.what: d for d in interview_differences(Verdicts(rows))}


def test_two_methods_are_compared_on_the_scripts_that_both_have_a_score_of() -> None:
    rows = [
        *verdicts("a1", 5, method="prompt"), *verdicts("a1", 7, method="cast"),
        *verdicts("a2", 5, method="prompt"), *verdicts("a2", 6, method="cast"),
        *verdicts("b1", 2, BEDE, method="prompt"), *verdicts("b1", 2, BEDE, method="cast"),
        *verdicts("b2", 1, BEDE, method="prompt"),
        *verdicts("b2", [None] * 7, BEDE, method="cast"),
        *verdicts("b3", 7, BEDE, method="cast"),
    ]  # fmt: skip
    found = by_what(rows)
    first = found["average"]
    assert (first.method, first.other_method, first.model, first.other_model) == (
        "cast", "prompt", "m", "m",
    )  # fmt: skip
    # Ada (2 + 1) / 2 = 1.5, Bede 0; of the four scripts that both held, one lacks a score.
    assert figures(first.estimate) == (0.75, 2, 0.25)
    assert first.scripts == 3
    assert list(found) == ["average", "average_without_stab", *SEVEN]


def test_two_models_are_compared_under_one_method_and_in_one_mode() -> None:
    rows = [
        *verdicts("a1", 5), *verdicts("a1", 7, model="m2"),
        *verdicts("a1", 1, model="m3", method="rag"),
        *verdicts("a9", 5, model="m4", mode="live"),
    ]  # fmt: skip
    found = interview_differences(Verdicts(rows))
    assert {(d.model, d.other_model) for d in found} == {("m", "m2")}
    assert {d.estimate.mean for d in found} == {-2}


def test_systems_are_compared_where_the_same_judges_were_asked() -> None:
    rows = [
        *verdicts("a1", 2, judge="severe"), *verdicts("a1", 7, judge="mild", model="m2"),
        *verdicts("a2", 3, judge="severe"), *verdicts("a2", 5, judge="severe", model="m2"),
        *verdicts("a2", 4, judge="mild"), *verdicts("a2", 4, judge="mild", model="m2"),
    ]  # fmt: skip
    found = by_what(rows)["average"]
    assert (found.scripts, figures(found.estimate)) == (1, (-1, 1, 0))
    assert interview_differences(Verdicts(rows[:14])) == [], "another judge, another scale"


def test_transfer_is_compared_script_by_script() -> None:
    rows = [
        transfer("t1", 5), transfer("t2", 3),
        transfer("t1", 6, method="rag"), transfer("t2", 7, method="rag"),
    ]  # fmt: skip
    found = by_what(rows)
    assert list(found) == ["Trans"]
    assert figures(found["Trans"].estimate) == (-2.5, 2, 0)


def test_systems_without_a_common_script_are_not_compared() -> None:
    assert (
        interview_differences(Verdicts([*verdicts("a1", 5), *verdicts("a2", 7, model="n")])) == []
    )


# The document -----------------------------------------------------------------------------------


def test_the_document_holds_the_contract_of_issue_d4() -> None:
    rows = [*verdicts("a1", 5, turns=(5, 5)), *verdicts("b1", 7, BEDE, turns=(7, 7)),
            transfer("t1", 4)]  # fmt: skip
    document = interviews_document(rows)
    (model,) = document["models"]
    assert {"model", "method", "mode", "metrics", "average", "average_without_stab"} <= set(model)
    assert (model["model"], model["method"], model["mode"]) == ("m", "prompt", "replayed")
    assert tuple(model["metrics"]) == METRICS
    assert model["average"]["mean"] == 6
    assert model["metrics"]["Trans"]["mean"] == 4
    assert document["by_judge"]["j"] == document["models"]
    assert [t["mean"] for t in document["curves"][0]["turns"]] == [6, 6]
    assert json.loads(json.dumps(document, allow_nan=False)) == document


def test_without_rows_the_document_is_empty() -> None:
    assert not any(interviews_document([]).values())
