"""Scores of trajectories, recomputed by hand: scenes first, then models; what is missing stays so."""

import random
from collections.abc import Sequence

import pytest

from personae.errors import InputError
from personae.judging.metrics import MAXIMS, METRICS
from personae.judging.trajectory_scores import (
    AVERAGE,
    Ratings,
    TrajectoryScores,
    dimension_alphas,
    origin_gaps,
    rating_agreement,
    score_characters,
    score_trajectories,
    scores_document,
)
from personae.records import Failure, Language, RatingRow


def rows(
    scene: str,
    character: str,
    scores: int | Sequence[int | None],
    *,
    model: str = "m",
    judge: str = "j1",
    lang: Language = "en",
    alone: bool = False,
    repeat: int = 0,
    acts_missing: float = 0,
) -> list[RatingRow]:
    """The seven rows of one judge over one trajectory; `scores` one number or seven."""
    given = [scores] * 7 if isinstance(scores, int) else scores
    title, origin, _ = scene.split("/")
    return [
        RatingRow(
            unit_id=f"{scene}#{character}@{model}",
            scene_id=scene,
            language=lang,
            origin="extracted" if origin == "extracted" else "generated",
            title=title,
            character=character,
            model=model,
            narrator="n",
            judge=judge,
            metric=metric,
            score=score,
            failure=Failure(cause="timeout") if score is None else None,
            critique="A critique.",
            alone=alone,
            repeat=repeat,
            acts_missing=acts_missing,
        )
        for metric, score in zip(METRICS, given, strict=True)
    ]


def maxims(
    scene: str, scores: Sequence[int], *, model: str = "n", alone: bool = False
) -> list[RatingRow]:
    first = rows(scene, "x", 1, alone=alone)[0]
    return [
        first.model_copy(
            update={
                "unit_id": f"{scene}#@{model}",
                "character": None,
                "model": model,
                "metric": maxim,
                "score": score,
            }
        )
        for maxim, score in zip(MAXIMS, scores, strict=True)
    ]


def scored(some: Sequence[RatingRow], alone: bool = False) -> TrajectoryScores:
    (found,) = score_trajectories(Ratings(some), alone=alone)
    return found


def test_a_models_score_is_the_mean_over_scenes_of_the_mean_over_a_scenes_characters() -> None:
    found = scored(
        [*rows("T/extracted/0", "A", 5), *rows("T/extracted/0", "B", 3),
         *rows("T/extracted/0", "C", 1), *rows("T/extracted/1", "A", 2),
         *rows("T/extracted/1", "B", 2)]
    )  # fmt: skip
    # Scenes: 3 and 2, so 2.5; the mean over characters would be 2.6.
    assert found.average.mean == pytest.approx(2.5)
    assert found.metrics["KA"].mean == pytest.approx(2.5)
    assert (found.n, found.average.n, found.missing) == (2, 2, 0)


def test_the_average_is_the_mean_of_the_seven_metrics() -> None:
    found = scored(
        [*rows("T/extracted/0", "A", (1, 2, 3, 4, 5, 5, 1)), *rows("T/extracted/1", "A", 3)]
    )
    assert [found.metrics[m].mean for m in METRICS] == [2, 2.5, 3, 3.5, 4, 4, 2]
    assert found.average.mean == pytest.approx((3 + 3) / 2)
    assert found.average.mean == pytest.approx(sum(e.mean or 0 for e in found.metrics.values()) / 7)


def test_the_interval_resamples_scenes_and_not_characters() -> None:
    same = [
        r for s in range(6) for c, v in (("A", 1), ("B", 5)) for r in rows(f"T/extracted/{s}", c, v)
    ]
    found = scored(same)
    assert (found.average.low, found.average.mean, found.average.high) == (3, 3, 3)
    one = scored(rows("T/extracted/0", "A", 4))
    assert (one.average.mean, one.average.low, one.average.high) == (4, None, None)


def test_a_trajectory_without_one_metric_has_no_average_and_is_counted_as_missing() -> None:
    found = scored(
        [*rows("T/extracted/0", "A", (5, 5, 5, 5, 5, 5, None)), *rows("T/extracted/0", "B", 1)]
    )
    assert found.average.mean == 1
    assert found.average.missing == 0.5
    assert found.metrics["BC"].mean == 1
    assert found.metrics["BC"].missing == 0.5
    assert found.metrics["KA"].mean == 3
    assert found.metrics["KA"].missing == 0
    assert found.missing == pytest.approx(1 / 14)


def test_where_a_metric_was_never_scored_there_is_no_average() -> None:
    found = scored(rows("T/extracted/0", "A", (5, 5, 5, 5, 5, 5, None)))
    assert found.metrics["BC"].mean is None
    assert found.average.mean is None
    assert (found.n, found.average.missing) == (0, 1)


def test_a_rating_that_one_judge_failed_on_is_missing_and_not_the_others() -> None:
    found = scored(
        [*rows("T/extracted/0", "A", 2, judge="mild"),
         *rows("T/extracted/0", "A", (None, 4, 4, 4, 4, 4, 4), judge="kind")]
    )  # fmt: skip
    assert found.metrics["KA"].mean is None
    assert found.metrics["BA"].mean == 3


def test_a_judge_that_was_not_asked_is_not_missing() -> None:
    ratings = Ratings(
        [
            *rows("T/extracted/0", "A", 2, judge="a"),
            *rows("T/extracted/0", "A", 4, judge="b"),
            *rows("U/extracted/0", "A", 5, judge="a"),
        ]
    )
    (panel,) = score_trajectories(ratings)
    assert (panel.average.mean, panel.n, panel.missing) == (4, 2, 0)
    (alone,) = score_trajectories(ratings, judge="b")
    assert (alone.average.mean, alone.n, alone.missing) == (4, 1, 0)


def test_repeats_of_a_judge_are_averaged_before_judges_are() -> None:
    found = scored(
        [*rows("T/extracted/0", "A", 1, judge="a"), *rows("T/extracted/0", "A", 3, judge="a", repeat=1),
         *rows("T/extracted/0", "A", 4, judge="b")]
    )  # fmt: skip
    assert found.average.mean == pytest.approx((2 + 4) / 2)


def test_scenes_with_a_single_character_are_kept_apart() -> None:
    some = [*rows("T/extracted/0", "A", 2), *rows("T/extracted/1", "A", 5, alone=True)]
    assert scored(some).average.mean == 2
    assert scored(some, alone=True).average.mean == 5
    document = scores_document(some)
    assert [m["average"]["mean"] for m in document["models"]] == [2]
    assert [m["average"]["mean"] for m in document["alone"]] == [5]


def test_a_character_is_scored_over_the_scenes_that_it_is_in() -> None:
    some = [*rows("t/extracted/1", "Ann", 2), *rows("t/extracted/2", "Ann", 4)]
    some += [*rows("t/extracted/1", "Ben", 5), *rows("t/extracted/3", "Ann", 1, alone=True)]
    ann, ben = score_characters(Ratings(some))
    assert (ann.character, ann.metrics["KA"].mean, ann.n) == ("Ann", 3, 2)
    assert (ben.character, ben.metrics["KA"].mean, ben.n) == ("Ben", 5, 1)


def test_judges_of_a_lone_character_do_not_enter_the_agreement() -> None:
    some = [r for j in ("j1", "j2") for s, g in (("1", 2), ("2", 4))
            for r in rows(f"t/extracted/{s}", "Ann", g, judge=j)]  # fmt: skip
    apart = [*rows("t/extracted/3", "Ann", 1, judge="j1", alone=True),
             *rows("t/extracted/3", "Ann", 5, judge="j2", alone=True)]  # fmt: skip
    (first, *_) = rating_agreement(Ratings([*some, *apart]))
    assert first.agreement is not None
    assert (first.agreement.alpha, first.agreement.units) == (1, 2)


def test_languages_and_models_are_scored_apart() -> None:
    some = [
        *rows("T/extracted/0", "A", 1),
        *rows("U/extracted/0", "A", 2, lang="zh"),
        *rows("T/extracted/0", "B", 3, model="other"),
    ]
    found = score_trajectories(Ratings(some))
    assert [(s.model, s.lang, s.average.mean) for s in found] == [
        ("m", "en", 1), ("m", "zh", 2), ("other", "en", 3)
    ]  # fmt: skip


def test_a_model_that_plays_two_characters_of_a_scene_counts_the_scene_once() -> None:
    some = [
        *rows("T/extracted/0", "A", 1),
        *rows("T/extracted/0", "B", 5),
        *rows("T/extracted/1", "A", 5),
    ]
    assert scored(some).average.mean == pytest.approx((3 + 5) / 2)


def test_missing_acts_stand_beside_the_score() -> None:
    some = [*rows("T/extracted/0", "A", 1, acts_missing=0.5), *rows("T/extracted/1", "A", 1)]
    assert scored(some).acts_missing == 0.25


def test_the_same_rating_twice_is_an_error() -> None:
    with pytest.raises(InputError, match="two rows"):
        Ratings([*rows("T/extracted/0", "A", 1), *rows("T/extracted/0", "A", 2)])


def test_the_order_of_the_rows_is_nothing() -> None:
    some = [
        r
        for s in range(5)
        for c in "AB"
        for r in rows(f"T/extracted/{s}", c, (s * 3 + ord(c)) % 5 + 1)
    ]
    mixed = some[:]
    random.Random(1).shuffle(mixed)
    assert scores_document(some) == scores_document(mixed)


# The gap ----------------------------------------------------------------------------------------


def test_the_gap_is_paired_by_title_where_titles_have_both_kinds() -> None:
    some = [
        *rows("T/extracted/0", "A", 5), *rows("T/extracted/1", "A", 3), *rows("T/generated/0", "A", 3),
        *rows("U/extracted/0", "A", 2), *rows("U/generated/0", "A", 3),
        *rows("V/extracted/0", "A", 1),
    ]  # fmt: skip
    (gap,) = origin_gaps(Ratings(some))
    # T: 4 - 3 = 1; U: 2 - 3 = -1; V has no generated scene.
    assert gap.value == pytest.approx(0)
    assert (gap.pairing, gap.titles, gap.extracted, gap.generated, gap.left_out) == (
        "title",
        2,
        3,
        2,
        1,
    )
    assert (gap.low, gap.high) == (-1, 1)


def test_without_two_such_titles_the_gap_is_of_two_groups_and_says_so() -> None:
    some = [
        *rows("T/extracted/0", "A", 5), *rows("T/extracted/1", "A", 3),
        *rows("U/generated/0", "A", 1), *rows("U/generated/1", "A", 2),
    ]  # fmt: skip
    (gap,) = origin_gaps(Ratings(some))
    assert gap.value == pytest.approx(4 - 1.5)
    assert (gap.pairing, gap.titles, gap.left_out) == ("none", 0, 0)
    assert gap.low is not None
    assert gap.value is not None
    assert gap.high is not None
    assert 1 <= gap.low < gap.value < gap.high <= 4


def test_there_is_no_gap_without_scenes_of_both_kinds_and_lone_scenes_do_not_count() -> None:
    lone = rows("T/generated/0", "A", 1, alone=True)
    assert origin_gaps(Ratings([*rows("T/extracted/0", "A", 5), *lone])) == []


# Judges and dimensions ----------------------------------------------------------------------------


def test_judges_that_agree_have_an_alpha_of_one_on_every_metric() -> None:
    some = [
        r
        for s in range(4)
        for judge in ("j1", "j2")
        for r in rows(f"T/extracted/{s}", "A", s + 1, judge=judge)
    ]
    found = {a.metric: a for a in rating_agreement(Ratings(some))}
    assert list(found) == [*METRICS, AVERAGE]
    for entry in found.values():
        assert entry.agreement is not None
        assert entry.agreement.alpha == pytest.approx(1)
        assert entry.agreement.units == 4


def test_one_judge_and_one_judge_under_two_names_are_no_agreement() -> None:
    one = rows("T/extracted/0", "A", 1)
    again = [*one, *rows("T/extracted/0", "A", 1, judge="alias")]
    for some in (one, again):
        for entry in rating_agreement(Ratings(some), weights_of=lambda _judge: "the same file"):
            assert entry.agreement is None
            assert entry.reason == "one judge cannot agree with itself"


def test_the_dimensions_alpha_is_over_trajectories_and_leaves_lone_scenes_out() -> None:
    # Fidelity: KA, BA are (1, 2), (2, 1), (3, 3), whose alpha is 2/3 (tests of the statistic).
    some = [
        *rows("T/extracted/0", "A", (1, 2, 1, 1, 1, 1, 1)),
        *rows("T/extracted/1", "A", (2, 1, 2, 2, 2, 2, 2)),
        *rows("T/extracted/2", "A", (3, 3, 4, 4, 4, 4, 4)),
        *rows("T/extracted/3", "A", (5, 1, 5, 1, 5, 1, 5), alone=True),
    ]
    found = {c.dimension: c for c in dimension_alphas(Ratings(some))}
    assert list(found) == ["fidelity", "human_likeness", "consistency"]
    assert found["fidelity"].alpha == pytest.approx(2 / 3)
    assert found["human_likeness"].alpha == pytest.approx(1)
    assert found["consistency"].metrics == ("IM", "AD", "BC")
    assert {c.n for c in found.values()} == {3}


def test_a_narrator_is_scored_on_the_maxims_beside_the_characters() -> None:
    some = [
        *rows("T/extracted/0", "A", 2),
        *maxims("T/extracted/0", (1, 2, 3, 4)),
        *maxims("T/extracted/1", (5, 5, 5, 5), alone=True),
    ]
    document = scores_document(some)
    (narrator,) = document["narrator"]["models"]
    assert narrator["average"]["mean"] == pytest.approx((2.5 + 5) / 2)
    assert list(narrator["metrics"]) == list(MAXIMS)
    assert [m["model"] for m in document["models"]] == ["m"]


def test_the_document_keeps_the_contract_of_the_report() -> None:
    document = scores_document(rows("T/extracted/0", "A", 4))
    (model,) = document["models"]
    assert {"model", "lang", "metrics", "average", "n", "missing"} <= model.keys()
    assert list(model["metrics"]) == list(METRICS)
    for estimate in (*model["metrics"].values(), model["average"]):
        assert estimate.keys() == {"mean", "low", "high", "n", "missing"}
    assert scores_document([])["models"] == []
