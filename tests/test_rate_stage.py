"""`personae rate` from end to end: ratings as runs of their own inside of a play run."""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from personae.characters.starter import starter, starter_scenes
from personae.cli import main
from personae.errors import InputError, ReplayMissError, StoppedEarlyError, UsageError
from personae.judging.metrics import MAXIMS, METRICS, rating_hash
from personae.models.registry import Registry
from personae.models.scripted import ScriptedModel
from personae.play_stage import CARDS, PLAYS, play_scenes
from personae.prompts import quoted
from personae.rate_stage import Rated, rate
from personae.records import Audit, Play, Price
from personae.records.files import read_jsonl
from personae.reports.ratings import read_rated, scenes_document, told_apart
from personae.session import RESULTS, Options, read_manifest
from personae.stages import write_results
from personae.world.scene_file import write_scenes
from tests.judging.plays import NAMES, a_play, a_scene

WORLD = f"scripted:{Path(__file__).parent / 'scripts' / 'world.py'}"

SCORES: dict[str, Callable[[str], int]] = {
    "test:three": lambda _metric: 3,
    "test:five": lambda _metric: 5,
    "test:steps": lambda metric: 1 + (METRICS + MAXIMS).index(metric) % 5,
}


class Endpoints:
    """A registry whose judges say what their names say; counts what they are asked."""

    def __init__(self) -> None:
        self.registry = Registry()
        self.registry.register("test", self._backend)
        self.asked: list[dict[str, Any]] = []

    def _backend(self, model: str) -> ScriptedModel:
        def reply(call: dict[str, Any]) -> str | dict[str, Any]:
            self.asked.append(call)
            if model == "test:nonsense":
                return "Lovely weather today."
            if model == "test:mute" and call["meta"]["step"] == "critique":
                return "No."
            if call["meta"]["step"] == "critique":
                return {"critique": f"A critique by {model}."}
            score = SCORES[model](call["meta"]["metric"])
            if "justification" in call["schema"]["properties"]:
                return {"justification": "So it is.", "score": score}
            return {"score": score}

        return ScriptedModel(reply, name=model)


def a_run(folder: Path, plays: Sequence[Play] | None = None) -> Path:
    """A play run with two scenes of two characters, one of each origin."""
    run = folder / "run"
    run.mkdir()
    found = plays or [a_play("T/extracted/0"), a_play("T/generated/0")]
    write_results(found, run / PLAYS)
    return run


async def rated(run: Path, *judges: str, **more: Any) -> Rated:
    more.setdefault("registry", Endpoints().registry)
    return await rate(run, judges, **more)


async def test_every_character_is_rated_by_every_judge_on_seven_metrics(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    done = await rated(run, "test:three", "test:steps")
    assert len(done.rows) == 2 * 2 * 2 * 7
    assert {r.unit_id for r in done.rows} == {
        f"T/{origin}/0#{name}@test:player"
        for origin in ("extracted", "generated")
        for name in ("Ada", "Bede")
    }
    kept = [line for _, line in read_jsonl(run / RESULTS)]
    assert kept == [row.to_dict() for row in done.rows]
    manifest = read_manifest(done.rating)
    assert (manifest.kind, manifest.status) == ("rate", "done")
    assert manifest.rubric_hash == rating_hash("en", "personae")
    assert set(manifest.prompts) == {
        f"en/{name}"
        for name in ("rating/critique", "rating/metric", "rating/narrator_critique",
                     "rating/narrator_metric", "repair")
    }  # fmt: skip


async def test_a_judge_costs_eight_calls_a_trajectory_and_five_a_narration(tmp_path: Path) -> None:
    run, endpoints = a_run(tmp_path), Endpoints()
    await rated(run, "test:three", registry=endpoints.registry)
    assert len(endpoints.asked) == 4 * 8
    await rated(run, "test:three", narrator=True, registry=endpoints.registry)
    assert len(endpoints.asked) == 4 * 8 + 2 * 5
    assert {c["role"] for c in endpoints.asked} == {"judge"}
    assert {c["sampling"]["temperature"] for c in endpoints.asked} == {0.0}


async def test_rating_again_with_other_judges_adds_and_overwrites_nothing(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    first = await rated(run, "test:three")
    before = (first.rating / RESULTS).read_bytes()
    second = await rated(run, "test:five")
    assert first.rating != second.rating
    assert (first.rating / RESULTS).read_bytes() == before
    rows = read_rated(run).rows
    assert {r.judge for r in rows} == {"test:three", "test:five"}
    assert len([*read_jsonl(run / RESULTS)]) == len(rows) == 2 * 4 * 7


async def test_a_judge_that_rated_already_is_not_asked_again_under_another_panel(
    tmp_path: Path,
) -> None:
    run = a_run(tmp_path)
    await rated(run, "test:three")
    with pytest.raises(UsageError, match="test:three has rated this run already"):
        await rated(run, "test:three", "test:five")
    # Of the narrator it has said nothing yet.
    await rated(run, "test:three", "test:five", narrator=True)


async def test_the_order_of_judges_is_nothing_and_the_same_rating_costs_nothing(
    tmp_path: Path,
) -> None:
    run, endpoints = a_run(tmp_path), Endpoints()
    first = await rated(run, "test:three", "test:five", registry=endpoints.registry)
    asked = len(endpoints.asked)
    again = await rated(run, "test:five", "test:three", registry=endpoints.registry)
    assert len(endpoints.asked) == asked
    assert again.rows == first.rows
    assert again.rating == first.rating


async def test_a_judge_that_is_named_twice_is_asked_twice(tmp_path: Path) -> None:
    run, endpoints = a_run(tmp_path), Endpoints()
    done = await rated(run, "test:three", "test:three", registry=endpoints.registry)
    assert len(endpoints.asked) == 2 * 4 * 8
    assert sorted({r.repeat for r in done.rows}) == [0, 1]


async def test_ratings_of_other_plays_are_refused_with_the_mend(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    done = await rated(run, "test:three")
    write_results([a_play("T/extracted/0", rounds=3)], run / PLAYS)
    for attempt in ("test:three", "test:five"):
        with pytest.raises(InputError, match="of other plays") as refused:
            await rated(run, attempt)
        assert str(done.rating) in str(refused.value)
    with pytest.raises(InputError, match="of other plays"):
        scenes_document([run], prices=lambda _m: None)


async def test_a_play_that_was_stopped_is_not_rated(tmp_path: Path) -> None:
    run = a_run(tmp_path, [a_play("T/extracted/0"), a_play("T/extracted/1", complete=False)])
    with pytest.raises(InputError, match=r"play 2.*personae resume"):
        await rated(run, "test:three")
    assert not (run / "ratings").exists()


async def test_what_is_no_play_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no plays\.jsonl"):
        await rated(tmp_path, "test:three")
    for path in (tmp_path / "nowhere", a_run(tmp_path) / PLAYS):
        with pytest.raises(InputError, match="no such run directory"):
            await rated(path, "test:three")
    (tmp_path / PLAYS).write_text("")
    with pytest.raises(InputError, match="holds no play"):
        await rated(tmp_path, "test:three")


async def test_lift_is_no_judge_of_trajectories_and_one_judge_is_needed(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    with pytest.raises(UsageError, match="lift:local"):
        await rated(run, "lift:local")
    with pytest.raises(UsageError, match="--judge"):
        await rated(run)


async def test_two_protocols_do_not_stand_in_one_table(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    done = await rated(run, "test:three", protocol="paper")
    assert {r.justification for r in done.rows} == {None}
    with pytest.raises(UsageError, match="another protocol"):
        await rated(run, "test:five", protocol="personae")


async def test_a_rating_goes_by_the_protocol_of_its_plays(tmp_path: Path) -> None:
    run = a_run(tmp_path, [a_play(protocol="paper")])
    done = await rated(run, "test:three")
    assert read_manifest(done.rating).protocol == "paper"


async def test_plays_in_two_languages_are_refused(tmp_path: Path) -> None:
    chinese = a_play(a_scene("T/extracted/1", names=NAMES["zh"][:2], language="zh"))
    run = a_run(tmp_path, [a_play("T/extracted/0"), chinese])
    with pytest.raises(InputError, match="two languages"):
        await rated(run, "test:three")


async def test_a_stopped_rating_keeps_what_there_is_and_asks_only_the_rest(tmp_path: Path) -> None:
    run, endpoints = a_run(tmp_path), Endpoints()
    few = Options(max_calls=10, concurrency=1)
    with pytest.raises(StoppedEarlyError):
        await rated(run, "test:three", registry=endpoints.registry, options=few)
    assert len(endpoints.asked) == 10
    partial = read_rated(run).rows
    assert len(partial) == 4 * 7
    missing = [r for r in partial if r.score is None]
    assert missing
    assert {r.failure.cause for r in missing if r.failure} <= {"not_asked", "critique: not_asked"}
    done = await rated(run, "test:three", registry=endpoints.registry)
    assert len(endpoints.asked) == 4 * 8
    assert all(r.score == 3 for r in done.rows)
    assert read_rated(run).rows == done.rows


async def test_a_failed_rating_is_asked_again_on_resume(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    done = await rated(run, "test:nonsense", "test:three")
    lost = [r for r in done.rows if r.judge == "test:nonsense"]
    assert {r.failure.cause for r in lost if r.failure} == {"critique: malformed"}
    endpoints = Endpoints()
    await rated(run, "test:nonsense", "test:three", registry=endpoints.registry)
    # A critique and its one repair exchange for each of four trajectories; the rest was answered.
    assert {c["model"] for c in endpoints.asked} == {"test:nonsense"}
    assert len(endpoints.asked) == 4 * 2


async def test_a_replay_asks_nobody_and_writes_nothing(tmp_path: Path) -> None:
    run, endpoints = a_run(tmp_path), Endpoints()
    first = await rated(run, "test:three")
    (run / RESULTS).unlink()
    again = await rated(
        run, "test:three", registry=endpoints.registry, options=Options(replay=True)
    )
    assert again.rows == first.rows
    assert endpoints.asked == []
    assert not (run / RESULTS).exists()
    with pytest.raises(ReplayMissError):
        await rated(run, "test:five", options=Options(replay=True))


async def test_a_dry_run_counts_calls_and_writes_nothing(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    dry = await rated(run, "test:three", "test:five", options=Options(dry_run=True))
    assert dry.plan is not None
    assert dict(dry.plan.calls) == {("judge", "test:three"): 32, ("judge", "test:five"): 32}
    assert dry.rows == ()
    assert sorted(p.name for p in run.iterdir()) == [PLAYS]


async def test_a_chinese_run_is_rated_in_chinese(tmp_path: Path) -> None:
    run = a_run(tmp_path, [a_play(a_scene(names=NAMES["zh"][:2], language="zh"))])
    endpoints = Endpoints()
    done = await rated(run, "test:three", registry=endpoints.registry)
    assert {r.language for r in done.rows} == {"zh"}
    assert all("轨迹到此为止" in c["messages"][-1]["content"] for c in endpoints.asked)


async def test_a_judge_is_told_what_the_card_told_the_character_and_no_more(tmp_path: Path) -> None:
    scene = next(s for s in starter_scenes("en") if any(c.card for c in s.characters))
    scenes, run = tmp_path / "scenes.jsonl", tmp_path / "run"
    write_scenes([scene], scenes)
    await play_scenes(scenes, run, WORLD, WORLD, rounds=1)
    endpoints = Endpoints()
    await rate(run, ["test:three"], registry=endpoints.registry)
    secrets = {s.fact: s.known_by for s in scene.secrets}
    for one in scene.characters:
        told = "".join(
            c["messages"][1]["content"]
            for c in endpoints.asked
            if c["meta"]["character"] == one.name
        )
        assert one.card is not None
        card = starter(one.card)
        assert card.description[:200] in told
        for fact, known_by in secrets.items():
            assert (quoted(fact, "x")[4:-5] in told) == (one.name in known_by)
        for other in (c for c in scene.characters if c is not one):
            assert other.card is not None
            assert starter(other.card).description[:200] not in told


async def test_a_run_that_lost_its_cards_is_not_rated_without_them(tmp_path: Path) -> None:
    scene = next(s for s in starter_scenes("en") if any(c.card for c in s.characters))
    scenes, run = tmp_path / "scenes.jsonl", tmp_path / "run"
    write_scenes([scene], scenes)
    await play_scenes(scenes, run, WORLD, WORLD, rounds=1)
    await rated(run, "test:three")
    (run / CARDS).unlink()
    with pytest.raises(InputError, match="of other plays"):
        await rated(run, "test:three")
    shutil.rmtree(run / "ratings")
    with pytest.raises(InputError, match="is not there"):
        await rated(run, "test:three")


# The document of the report ----------------------------------------------------------------------


async def test_scores_of_two_runs_of_two_languages_stand_under_one_model(tmp_path: Path) -> None:
    for name, language in (("en", "en"), ("zh", "zh")):
        (tmp_path / name).mkdir()
        scene = a_scene(names=NAMES[language][:2], language=language)  # type: ignore[index,arg-type]  # two literals
        await rated(a_run(tmp_path / name, [a_play(scene)]), "test:steps")
    runs = [tmp_path / "en" / "run", tmp_path / "zh" / "run"]
    document = scenes_document(runs, prices=lambda _m: None)
    assert [(m["model"], m["lang"]) for m in document["models"]] == [
        ("test:player", "en"), ("test:player", "zh")
    ]  # fmt: skip
    assert document["models"][0]["metrics"]["EE"]["mean"] == 3


async def test_a_model_that_played_a_scene_in_two_runs_stands_once_for_each(tmp_path: Path) -> None:
    runs = []
    for name, judge in (("one", "test:three"), ("two", "test:five")):
        (tmp_path / name).mkdir()
        run = a_run(tmp_path / name).rename(tmp_path / name / f"run-{name}")
        await rated(run, judge)
        runs.append(run)
    document = scenes_document(runs, prices=lambda _m: None)
    assert [(m["model"], m["average"]["mean"]) for m in document["models"]] == [
        ("test:player [run-one]", 3), ("test:player [run-two]", 5)
    ]  # fmt: skip


async def test_two_scenes_of_one_id_in_two_runs_are_two_scenes(tmp_path: Path) -> None:
    runs = []
    for name, names, judge in (
        ("one", ("Ada", "Bede"), "test:three"),
        ("two", ("Cleo", "Dov", "Eve"), "test:five"),
    ):
        (tmp_path / name).mkdir()
        play = a_play(a_scene("T/extracted/0", names=names))
        run = a_run(tmp_path / name, [play]).rename(tmp_path / name / f"run-{name}")
        await rated(run, judge)
        runs.append(run)
    (model,) = scenes_document(runs, prices=lambda _m: None)["models"]
    assert (model["model"], model["n"]) == ("test:player", 2)
    assert model["average"]["mean"] == 4  # over two scenes; over five characters it would be 4.2
    assert {
        row.scene_id for one in told_apart([read_rated(r) for r in runs]) for row in one.rows
    } == {
        "T/extracted/0 [run-one]",
        "T/extracted/0 [run-two]",
    }


async def test_the_judges_audit_for_trajectories_is_found_by_the_ratings_rubric(
    tmp_path: Path,
) -> None:
    run = a_run(tmp_path)
    await rated(run, "test:three", "test:five", "test:steps")

    def audit(judge: str, verdict: str, rubric: str) -> Audit:
        return Audit.from_dict(
            {"judge": judge, "rubric_hash": rubric, "language": "en", "verdict": verdict,
             "reasons": ["It fell asleep."] if verdict == "failed" else [], "groups": [],
             "order_shift": None, "length_slope": None, "repeat_variance": None,
             "swap_shift": None, "missing": 0, "thresholds": {}}
        )  # fmt: skip

    ours = rating_hash("en", "personae")
    audits = [audit("test:three", "passed", ours), audit("test:five", "failed", ours),
              audit("test:steps", "passed", rating_hash("en", "paper"))]  # fmt: skip
    document = scenes_document([run], audits=audits, prices=lambda _m: None)
    states = {j["model"]: (j["audit"], j["reasons"]) for j in document["judges"]}
    assert states == {
        "test:three": ("passed", []),
        "test:five": ("failed", ["It fell asleep."]),
        "test:steps": ("none", []),
    }


async def test_narrator_and_characters_cost_apart(tmp_path: Path) -> None:
    scenes = tmp_path / "scenes.jsonl"
    write_scenes([a_scene(f"T/extracted/{n}") for n in range(2)], scenes)
    run = tmp_path / "run"
    await play_scenes(scenes, run, WORLD, WORLD, rounds=2)
    await rate(run, [WORLD])
    cost = scenes_document([run], prices=lambda _m: Price(tokens_in=1, tokens_out=2))["cost"]
    assert list(cost) == ["characters", "narrator", "judges"]
    for part in cost.values():
        assert part["calls"] > 0
        assert part["usd"] == pytest.approx(part["tokens_in"] / 1e6 + part["tokens_out"] / 5e5)
        assert part["per_play"]["tokens_in"] == part["tokens_in"] / 2
    assert {line["role"] for line in cost["narrator"]["models"]} == {"narrator"}
    assert {line["role"] for line in cost["characters"]["models"]} == {"character"}


# The command ---------------------------------------------------------------------------------------


def test_the_command_rates_says_where_and_can_be_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = a_run(tmp_path)
    assert main(["rate", str(run), "--judge", WORLD, "--max-calls", "5", "--json"]) == 3
    stopped = capsys.readouterr()
    (rating,) = (run / "ratings").iterdir()
    assert f"personae resume {rating}" in stopped.err
    assert main(["resume", str(rating), "--trust-scripts", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["run"], document["rating"]) == (str(run), str(rating))
    assert (document["rows"], document["missing"]) == (4 * 7, 0)
    (model,) = document["scenes"]["models"]
    assert list(model["metrics"]) == list(METRICS)
    assert main(["rate", str(run), "--judge", WORLD, "--narrator"]) == 0
    shown = capsys.readouterr().out
    assert "Narrators" in shown
    assert "Characters" in shown


def test_a_narrow_terminal_shows_every_score_and_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    run = a_run(tmp_path)
    assert main(["rate", str(run), "--judge", WORLD]) == 0
    shown = capsys.readouterr().out
    (model,) = scenes_document([run], prices=lambda _m: None)["models"]
    for key, estimate in (*model["metrics"].items(), ("average", model["average"])):
        (line,) = [one for one in shown.splitlines() if one.split()[:1] == [key]]
        assert f"{estimate['mean']:.2f} (" in line
        assert f"{estimate['high']:.2f})" in line
    assert "ratings missing" in shown
    assert "0.0%" in shown
    assert "\u2026" not in shown


def test_a_rating_outside_of_its_play_run_cannot_be_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = a_run(tmp_path)
    assert main(["rate", str(run), "--judge", WORLD, "--json"]) == 0
    (rating,) = (run / "ratings").iterdir()
    moved = rating.rename(tmp_path / "elsewhere")
    assert main(["resume", str(moved), "--trust-scripts"]) == 2
    assert "belongs into the folder `ratings`" in capsys.readouterr().err


def test_people_and_judges_of_a_rated_run_are_compared_by_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scenes, run, ratings = (tmp_path / n for n in ("scenes.jsonl", "run", "ratings.csv"))
    write_scenes([a_scene(f"T/extracted/{n}") for n in range(3)], scenes)
    played = ["play", str(scenes), "--characters", WORLD, "--narrator", WORLD, "--rounds", "1"]
    assert main([*played, "--out", str(run), "--json"]) == 0
    assert main(["rate", str(run), "--judge", WORLD, "--json"]) == 0
    lines = ["unit_id,rater,metric,score"]
    lines += [
        f"{line['unit_id']},r,{line['metric']},{line['score']}"
        for _, line in read_jsonl(run / RESULTS)
    ]
    ratings.write_text("\n".join(lines))
    capsys.readouterr()
    assert main(["agree", str(run), "--human", str(ratings), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [m["metric"] for m in document["metrics"]] == [*METRICS, "overall"]
    # People who say what the judge says; where it says one number to all there is no correlation.
    found = [m["pearson"]["value"] for m in document["metrics"]]
    assert any(found)
    assert all(value is None or value == pytest.approx(1.0) for value in found)
    assert main(["agree", str(run), "--human", str(ratings)]) == 0
    assert "intervals over scenes" in capsys.readouterr().out
