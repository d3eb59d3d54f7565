"""Two models on the same characters of the same scenes."""

from __future__ import annotations

import pytest

from personae.judging.metrics import METRICS
from personae.judging.trajectory_pairs import SceneDifference, scene_differences
from personae.judging.trajectory_scores import AVERAGE, Ratings
from personae.records import Failure, RatingRow


def rows(
    model: str,
    scores: dict[tuple[str, str], int | None],
    judge: str = "j",
    *,
    alone: bool = False,
    scene_of: str = "",
) -> list[RatingRow]:
    """All seven metrics of each (scene, character) at one score; None is missing."""
    return [
        RatingRow(
            unit_id=f"{scene}{scene_of}#{name}@{model}", scene_id=scene, language="en",
            origin="extracted", character=name, model=model, narrator="n", judge=judge,
            metric=metric, score=score, alone=alone,
            failure=None if score is not None else Failure(cause="malformed"),
        )
        for (scene, name), score in scores.items()
        for metric in METRICS
    ]  # fmt: skip


def compared(*found: RatingRow) -> dict[str, SceneDifference]:
    seats = {r.unit_id: (r.unit_id.partition("#")[0], r.character or "") for r in found}
    return {d.metric: d for d in scene_differences(Ratings(found), seats)}


def test_a_difference_is_the_mean_over_scenes_of_the_mean_over_their_characters():
    first = rows("a", {("s1", "x"): 5, ("s1", "y"): 3, ("s2", "x"): 2})
    second = rows("b", {("s1", "x"): 2, ("s1", "y"): 2, ("s2", "x"): 2})
    found = compared(*first, *second)[AVERAGE]
    assert (found.model, found.other) == ("a", "b")
    assert found.estimate.mean == pytest.approx(((3 + 1) / 2 + 0) / 2)
    assert found.estimate.n == 2
    assert found.estimate.missing == 0
    assert found.estimate.low is not None


def test_a_character_that_only_one_model_played_does_not_count():
    first = rows("a", {("s1", "x"): 4, ("s1", "y"): 1, ("s2", "x"): 1})
    second = rows("b", {("s1", "x"): 3, ("s3", "x"): 5})
    found = compared(*first, *second)["KA"]
    assert found.estimate.mean == 1
    assert found.estimate.n == 1
    assert found.estimate.low is None  # one scene has no interval


def test_models_without_a_common_character_are_not_compared():
    assert compared(*rows("a", {("s", "x"): 4}), *rows("b", {("s", "y"): 3})) == {}


def test_scenes_of_one_name_and_another_content_are_not_the_same_scene():
    first = rows("a", {("s", "x"): 4}, scene_of="-as-it-was")
    assert compared(*first, *rows("b", {("s", "x"): 3})) == {}


def test_a_missing_rating_takes_its_pair_out_and_is_counted():
    first = rows("a", {("s1", "x"): 4, ("s1", "y"): None, ("s2", "x"): 3, ("s2", "y"): 3})
    second = rows("b", dict.fromkeys([("s1", "x"), ("s1", "y"), ("s2", "x"), ("s2", "y")], 2))
    found = compared(*first, *second)[AVERAGE].estimate
    assert found.mean == pytest.approx((2 + 1) / 2)
    assert found.missing == pytest.approx(1 / 4)


def test_what_other_judges_were_asked_about_is_left_out_and_counted():
    first = rows("a", {("s1", "x"): 4}, "j") + rows("a", {("s1", "x"): 4}, "k")
    second = rows("b", {("s1", "x"): 3}, "j")
    found = compared(*first, *second)[AVERAGE]
    assert found.judged_apart == 1
    assert found.estimate.mean is None
    assert found.estimate.n == 0


def test_scenes_of_a_single_character_are_kept_out():
    first = rows("a", {("s1", "x"): 4}, alone=True)
    assert compared(*first, *rows("b", {("s1", "x"): 3}, alone=True)) == {}
