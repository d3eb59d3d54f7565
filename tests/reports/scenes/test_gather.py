"""Play runs on disk become what a report shows: nothing twice, nothing compared that differs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from personae import rate_stage
from personae.errors import InputError, UsageError
from personae.judging.trajectory_scores import AVERAGE
from personae.play_stage import play_scenes
from personae.reports.scenes import are_play_runs
from tests.judging.plays import a_play, a_scene

from .sample import (
    a_rated_run,
    an_eventful_play,
    audit,
    by_name,
    four_scenes,
    play_run,
    rate,
    report,
)

WORLD = f"scripted:{Path(__file__).parents[2] / 'scripts' / 'world.py'}"


def test_a_models_score_is_the_mean_over_scenes_of_the_mean_over_characters(tmp_path: Path) -> None:
    # Extracted: Ada 4, Bede 2; generated: one less. Scenes 3, 2, 3, 2.
    (scores,) = report(a_rated_run(tmp_path / "run")).models
    assert (scores.model, scores.lang, scores.n, scores.missing) == ("test:player", "en", 4, 0)
    assert scores.average.mean == pytest.approx(2.5)
    assert {key: e.mean for key, e in scores.metrics.items()} == dict.fromkeys(
        ("KA", "BA", "EE", "PT", "IM", "AD", "BC"), pytest.approx(2.5)
    )
    assert scores.average.low == pytest.approx(2)
    assert scores.average.high == pytest.approx(3)


def test_the_worst_trajectories_come_lowest_first(tmp_path: Path) -> None:
    worst = report(a_rated_run(tmp_path / "run")).worst()
    assert [(u.unit_id, v) for u, v in worst[:3]] == [
        ("Ferry/generated/0#Bede@test:player", 1),
        ("Mill/generated/0#Bede@test:player", 1),
        ("Ferry/extracted/0#Bede@test:player", 2),
    ]


def test_scenes_with_a_single_character_enter_no_other_figure(tmp_path: Path) -> None:
    plays = [*four_scenes(), a_play(a_scene("Well/extracted/0", names=("Cleo",)))]
    data = report(a_rated_run(tmp_path / "run", plays))
    assert data.models[0].average.mean == pytest.approx(2.5)
    (alone,) = data.alone
    assert (alone.average.mean, alone.n) == (5, 1)
    assert all(not unit.alone for unit, _ in data.worst())
    assert [u.scene for u, _ in data.worst(alone=True)] == ["Well/extracted/0"]


def test_two_models_on_the_same_scenes_are_compared_scene_by_scene(tmp_path: Path) -> None:
    one = a_rated_run(tmp_path / "one")
    plays = four_scenes(model="test:better")
    two = play_run(tmp_path / "two", plays)
    # One point more in extracted scenes, the same in generated ones: (1 + 0 + 1 + 0) / 4.
    rate(two, plays, score=lambda c, m: by_name(c, m) + (c.scene.origin == "extracted"))
    data = report(one, two)
    of_all = next(d for d in data.differences if d.metric == AVERAGE)
    assert (of_all.model, of_all.other) == ("test:better", "test:player")
    assert of_all.estimate.mean == pytest.approx(0.5)
    assert of_all.estimate.n == 4
    assert data.scenes["differences"][0] == of_all.to_dict()


def test_one_model_in_two_runs_stands_once_for_each_with_the_runs_name(tmp_path: Path) -> None:
    one = a_rated_run(tmp_path / "one")
    two = a_rated_run(tmp_path / "two", score=lambda c, m: by_name(c, m) + 1)
    data = report(one, two)
    means = {s.model: s.average.mean for s in data.models}
    assert means == {"test:player [one]": pytest.approx(2.5), "test:player [two]": 3.5}
    assert {play.models["Ada"] for _, play in data.plays} == set(means)
    of_all = next(d for d in data.differences if d.metric == AVERAGE)
    assert of_all.estimate.mean == pytest.approx(-1)


def test_a_run_that_nobody_rated_is_told_apart_from_the_same_play_that_was(tmp_path: Path) -> None:
    one = a_rated_run(tmp_path / "one")
    two = play_run(tmp_path / "two", four_scenes())
    data = report(one, two)
    assert [s.model for s in data.models] == ["test:player [one]"]
    assert "some_unrated" in data.caveats


def test_scenes_that_only_share_their_id_are_not_compared(tmp_path: Path) -> None:
    one = a_rated_run(tmp_path / "one")
    other = [
        a_play(p.scene.model_copy(update={"event": "Another event"}), model="test:other")
        for p in four_scenes()
    ]
    two = a_rated_run(tmp_path / "two", other)
    data = report(one, two)
    assert data.differences == ()
    assert data.differences_reason == "nothing_common"


def test_ratings_of_other_judges_or_by_other_rubrics_are_not_compared(tmp_path: Path) -> None:
    one = a_rated_run(tmp_path / "one")
    plays = four_scenes(model="test:better")
    two = a_rated_run(tmp_path / "two", plays, judge="test:else")
    assert report(one, two).differences_reason == "different_judges"
    three = a_rated_run(tmp_path / "three", plays, rubric="ab" * 32)
    data = report(one, three)
    assert data.differences_reason == "different_rules"
    assert data.caveats == ("rules",)


def test_what_differs_between_runs_beside_the_model_is_said(tmp_path: Path) -> None:
    one = a_rated_run(tmp_path / "one")
    plays = four_scenes(model="test:better", narrator="test:bard", rounds=3)
    two = a_rated_run(tmp_path / "two", plays)
    assert set(report(one, two).caveats) == {"narrators", "rounds"}


def test_a_branch_is_said_to_be_one(tmp_path: Path) -> None:
    arguments = {"rounds": 2, "branch": {"from_round": 2}}
    run = play_run(tmp_path / "run", four_scenes(), arguments=arguments)
    assert report(run).caveats == ("branches",)


def test_plays_that_nobody_rated_have_no_score_and_no_zero(tmp_path: Path) -> None:
    data = report(play_run(tmp_path / "run", four_scenes()))
    assert data.trust == "unrated"
    assert data.models == ()
    assert data.averages == {}
    assert data.differences_reason == "unrated"
    assert len(data.plays) == 4


def test_a_stopped_run_is_reported_as_far_as_it_came(tmp_path: Path) -> None:
    plays = [a_play(), a_play("Mill/extracted/0", complete=False)]
    data = report(play_run(tmp_path / "run", plays, status="stopped"))
    assert data.trust == "unrated"
    assert [play.complete for _, play in data.plays] == [True, False]


@pytest.mark.parametrize("state", ["passed", "failed"])
def test_an_audit_beside_the_run_says_whether_its_judge_is_to_be_trusted(
    tmp_path: Path, state: str
) -> None:
    run = a_rated_run(tmp_path / "run")
    assert report(run).trust == "none"
    audit(tmp_path / "audit", verdict=state)
    assert report(run).trust == state


def test_an_audit_of_answers_says_nothing_of_trajectories(tmp_path: Path) -> None:
    run = a_rated_run(tmp_path / "run", rubric="cd" * 32)  # another rubric than the audit's
    audit(tmp_path / "audit")
    assert report(run).trust == "none"


def test_one_judge_without_an_audit_is_enough_for_distrust(tmp_path: Path) -> None:
    run = a_rated_run(tmp_path / "run")
    rate(run, four_scenes(), "test:second")
    audit(tmp_path / "audit")
    assert report(run).trust == "mixed"


def test_narrators_are_scored_apart_and_their_judges_have_no_part_in_the_trust(
    tmp_path: Path,
) -> None:
    run = a_rated_run(tmp_path / "run")
    rate(run, four_scenes(), "test:second", lambda _c, _m: 3, kind="narrator")
    audit(tmp_path / "audit")
    data = report(run)
    assert data.trust == "passed"
    assert [(s.model, s.average.mean) for s in data.narrators] == [("test:teller", 3)]
    assert data.models[0].average.mean == pytest.approx(2.5)


def test_missing_acts_and_refused_replies_are_counted_by_model(tmp_path: Path) -> None:
    data = report(play_run(tmp_path / "run", [an_eventful_play()]))
    player, teller = data.missing
    # Ada had two acts, Bede three, Cleo lost her only one: the mean of 0, 0 and 1.
    assert player.share == pytest.approx(1 / 3)
    assert (player.model, player.lost) == ("test:player", 1)
    assert (teller.model, teller.share, teller.lost, teller.refused) == ("test:teller", None, 1, 1)
    assert [(f.step, f.cause, f.count) for f in data.lost] == [
        ("act", "timeout", 1),
        ("influence", "refused", 1),
    ]


def test_what_a_run_without_its_journal_cost_is_unknown(tmp_path: Path) -> None:
    data = report(a_rated_run(tmp_path / "run"))
    assert data.cost.tokens_in is None
    for part in data.scenes["cost"].values():
        assert (part["usd"], part["tokens_in"], part["per_play"]["usd"]) == (None, None, None)


async def test_calls_and_tokens_are_those_of_the_journals_of_plays_and_ratings(
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    await play_scenes([a_scene()], run, WORLD, WORLD, rounds=1)
    await rate_stage.rate(run, [WORLD])
    data = report(run)
    parts = data.scenes["cost"]
    assert parts["judges"]["calls"] == 2 * 8  # two characters: a critique and seven metrics
    assert data.calls.made == sum(part["calls"] for part in parts.values())
    assert data.cost.tokens_in == sum(part["tokens_in"] for part in parts.values())
    assert data.cost.usd == 0  # scripted models are free
    assert data.trust == "none"
    assert len(data.rows) == 2 * 7


def test_a_rating_is_no_run_of_its_own_and_the_mend_names_its_play(tmp_path: Path) -> None:
    run = play_run(tmp_path / "run", four_scenes())
    rating = rate(run, four_scenes())
    with pytest.raises(InputError, match=f"personae report {run}"):
        are_play_runs([rating])


def test_plays_and_interviews_are_reported_apart(tmp_path: Path) -> None:
    run = a_rated_run(tmp_path / "run")
    other = tmp_path / "eval"
    other.mkdir()
    was = json.loads((run / "manifest.json").read_text("utf-8"))
    (other / "manifest.json").write_text(json.dumps({**was, "kind": "eval"}), "utf-8")
    assert are_play_runs([run])
    assert not are_play_runs([other])
    with pytest.raises(UsageError, match=r"Report them apart: personae report .*eval; personae"):
        are_play_runs([run, other])


def test_a_run_without_plays_says_how_to_finish_it(tmp_path: Path) -> None:
    run = play_run(tmp_path / "run", four_scenes(), status="running")
    (run / "plays.jsonl").unlink()
    with pytest.raises(InputError, match="personae resume"):
        report(run)


def test_a_run_that_is_named_twice_is_refused(tmp_path: Path) -> None:
    run = a_rated_run(tmp_path / "run")
    with pytest.raises(UsageError, match="named twice"):
        report(run, run)


def test_a_wanted_scene_that_was_not_played_is_refused_with_those_that_were(tmp_path: Path) -> None:
    run = a_rated_run(tmp_path / "run")
    with pytest.raises(UsageError, match=r"no play of a scene 'x'; there are: Ferry/extracted/0"):
        report(run, wanted=["x"])
