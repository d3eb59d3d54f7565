"""The stage `play` end to end on a scripted world: play, stop, resume, replay, dry run."""

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from personae.cli import main
from personae.errors import InputError, StoppedEarlyError, UsageError
from personae.journal.store import Journal
from personae.models import Registry, ScriptedModel
from personae.models.scripted import read_script
from personae.play_stage import PLAYS, SCENES, play_scenes, read_plays
from personae.records import Call, Environment, Play, Reply, Scene, SceneCharacter, Secret
from personae.records.files import read_jsonl
from personae.session import JOURNAL, Options, read_manifest
from personae.world.scene_file import read_scenes, write_scenes
from personae.world.scene_import import import_characterbox
from tests.world.stage import answer

WORLD = f"scripted:{Path(__file__).parent / 'scripts' / 'world.py'}"

BAKER = Scene(
    id="baker/1",
    title="Baker Street",
    event="A letter has come.",
    environment=Environment(time="evening", location="221B", description="A sitting room."),
    characters=(
        SceneCharacter(name="Holmes", description="A detective.", position="by the fire"),
        SceneCharacter(name="Watson", description="A doctor.", position="at the door"),
    ),
    secrets=(Secret(fact="The letter was forged by Moriarty", known_by=("Holmes",)),),
)
TEMPLE = Scene(
    id="西游记/1",
    title="西游记",
    language="zh",
    event="师徒来到一座破庙前。",
    environment=Environment(time="黄昏", location="庙前", description="一座破庙，门虚掩着。"),
    characters=(
        SceneCharacter(name="孙悟空", description="齐天大圣。", position="树上", state="警觉"),
        SceneCharacter(name="唐僧", description="取经人。", position="马上", state="疲惫"),
        SceneCharacter(name="猪八戒", description="二徒弟。", position="路边", state="饿"),
    ),
)


def scene_file(tmp_path: Path, *scenes: Scene) -> Path:
    path = tmp_path / "scenes.jsonl"
    write_scenes(scenes, path)
    return path


def requests(run: Path) -> int:
    with Journal(run / JOURNAL, read_only=True) as journal:
        return journal.totals().made


@pytest.mark.parametrize("protocol", ["personae", "paper"])
@pytest.mark.parametrize("scene", [BAKER, TEMPLE], ids=["en", "zh"])
async def test_a_scene_is_played_and_replayed_bit_for_bit_without_a_model(
    tmp_path: Path, scene: Scene, protocol
):
    run = tmp_path / "run"
    path = scene_file(tmp_path, scene)
    done = await play_scenes(path, run, WORLD, WORLD, rounds=2, protocol=protocol)
    (play,) = done.plays
    assert play.complete
    assert play.rounds == 2
    assert {e.actor for e in play.events if e.kind == "action"} == {
        c.name for c in scene.characters
    }
    assert read_plays(run) == done.plays
    before = (run / PLAYS).read_bytes()
    made = requests(run)
    again = await play_scenes(
        path, run, WORLD, WORLD, rounds=2, protocol=protocol, options=Options(replay=True)
    )
    assert again.plays == done.plays
    assert requests(run) == made
    await play_scenes(path, run, WORLD, WORLD, rounds=2, protocol=protocol)
    assert (run / PLAYS).read_bytes() == before


@pytest.mark.parametrize("protocol", ["personae", "paper"])
async def test_a_cap_in_the_middle_of_a_scene_loses_nothing_and_resuming_redoes_no_answered_call(
    tmp_path: Path, protocol
):
    path = scene_file(tmp_path, TEMPLE)
    whole = tmp_path / "whole"
    await play_scenes(path, whole, WORLD, WORLD, rounds=2, protocol=protocol)
    run = tmp_path / "run"
    with pytest.raises(StoppedEarlyError):
        await play_scenes(
            path, run, WORLD, WORLD, rounds=2, protocol=protocol, options=Options(max_calls=11)
        )
    (part,) = read_plays(run)
    assert not part.complete
    assert len(part.events) > 3
    assert requests(run) == 11
    await play_scenes(path, run, WORLD, WORLD, rounds=2, protocol=protocol)
    assert requests(run) == requests(whole)
    assert (run / PLAYS).read_bytes() == (whole / PLAYS).read_bytes()


async def test_what_was_refused_twice_is_asked_again_on_resume_and_stays_in_a_replay(
    tmp_path: Path,
):
    world = read_script(Path(WORLD.partition(":")[2]))
    blabs = True

    def narrator(call: dict[str, Any]) -> Any:
        given = world(call)
        if blabs and call["role"] == "narrator" and isinstance(given, dict):
            given = {**given, **{k: "The letter was forged by Moriarty" for k in ("influence",)
                                 if given.get("affected") == "Watson"}}  # fmt: skip
        return given

    def registry() -> Registry:
        made = Registry()
        made.register("odd", lambda name: ScriptedModel(narrator, name=name))
        return made

    async def play(*, replay: bool = False) -> tuple[Play, ...]:
        done = await play_scenes(
            (BAKER,), tmp_path / "run", "odd:a/b", "odd:a/c", rounds=2,
            options=Options(replay=replay), registry=registry(),
        )  # fmt: skip
        return done.plays

    def refusals(plays: tuple[Play, ...]) -> int:
        return sum(e.failure is not None and e.failure.cause == "refused" for e in plays[0].events)

    first = await play()
    assert refusals(first)
    assert await play(replay=True) == first
    blabs = False
    assert not refusals(await play())


def test_the_command_plays_stops_and_resumes(tmp_path: Path, capsys):
    path = scene_file(tmp_path, BAKER)
    run = tmp_path / "run"
    common = [str(path), "--characters", WORLD, "--narrator", WORLD, "--out", str(run)]
    assert main(["play", *common, "--rounds", "2", "--max-calls", "4"]) == 3
    assert f"personae resume {run}" in capsys.readouterr().err.replace("\n", "")
    assert main(["resume", str(run), "--trust-scripts"]) == 0
    (play,) = read_plays(run)
    assert play.complete
    assert "baker/1: 2 rounds" in capsys.readouterr().out


# Who plays what -------------------------------------------------------------------------------


async def test_one_character_may_be_played_by_another_model(tmp_path: Path):
    other = tmp_path / "other.py"
    other.write_text((Path(__file__).parent / "scripts" / "world.py").read_text("utf-8"), "utf-8")
    path = scene_file(tmp_path, BAKER)
    run = tmp_path / "run"
    mine = f"scripted:{other}"
    done = await play_scenes(path, run, WORLD, WORLD, by_name={"Watson": mine}, rounds=2)
    (play,) = done.plays
    assert play.models == {"Holmes": WORLD, "Watson": mine}
    for event in play.events:
        if event.kind in ("action", "speech", "reaction", "belief"):
            assert event.model == play.models[event.actor or ""]
        elif event.kind in ("influence", "result", "update"):
            assert event.model == play.narrator
    manifest = read_manifest(run)
    assert manifest.models == {"character": (WORLD, mine), "narrator": (WORLD,)}
    assert set(manifest.sampling) == {"character", "narrator"}
    assert "en/world/act" in manifest.prompts
    assert "en/judge" not in manifest.prompts
    with Journal(run / JOURNAL, read_only=True) as journal:
        asked = {(c.role, c.meta["character"], c.model) for c, _ in journal.items()}
    assert {model for role, name, model in asked if (role, name) == ("character", "Watson")} == {
        mine
    }


async def test_the_protocols_sample_as_documented(tmp_path: Path):
    path = scene_file(tmp_path, BAKER)
    for protocol, wanted in (("paper", (0.5, 0.5)), ("personae", (0.8, 0.3))):
        run = tmp_path / protocol
        await play_scenes(path, run, WORLD, WORLD, rounds=1, protocol=protocol, seed=7)  # type: ignore[arg-type]  # a word of the table
        with Journal(run / JOURNAL, read_only=True) as journal:
            sent = {(c.role, c.sampling.temperature, c.sampling.seed) for c, _ in journal.items()}
        assert sent == {("character", wanted[0], 7), ("narrator", wanted[1], 7)}


async def test_many_scenes_are_played_at_once_and_stand_in_the_order_of_the_file(tmp_path: Path):
    scenes = [
        BAKER.model_copy(update={"id": f"baker/{n}", "event": f"Letter {n}"}) for n in range(6)
    ]
    path = scene_file(tmp_path, *scenes)
    waiting = 0
    peak = 0
    everyone = asyncio.Event()

    async def reply(call):
        nonlocal waiting, peak
        waiting += 1
        peak = max(peak, waiting)
        if peak == len(scenes):
            everyone.set()
        await everyone.wait()  # for ever, if the scenes were not played at once
        waiting -= 1
        return answer(
            Call.model_validate({**call, "schema": {"name": "x", "body": call["schema"]}})
        )

    registry = Registry()
    registry.register("together", lambda name: ScriptedModel(reply, name=name))
    done = await play_scenes(
        path, tmp_path / "run", "together:c", "together:n", rounds=1, registry=registry
    )
    assert [play.scene.id for play in done.plays] == [scene.id for scene in scenes]
    assert peak == len(scenes)


async def test_a_replay_of_groups_that_played_at_once_is_exact(tmp_path: Path):
    """Replies come in another order each time; the play is the same."""
    apart = TEMPLE.model_copy(
        update={
            "characters": tuple(
                c.model_copy(update={"place": place})
                for c, place in zip(TEMPLE.characters, ("庙里", "庙外", "庙里"), strict=True)
            )
        }
    )
    path = scene_file(tmp_path, apart)
    script = ScriptedModel(read_script(Path(WORLD.partition(":")[2])))

    def unsteady(seed: int) -> Registry:
        """A model whose replies take now more passes of the event loop, now fewer."""
        chance = random.Random(seed)

        class Unsteady(ScriptedModel):
            async def complete(self, call: Call) -> Reply:
                for _ in range(chance.randrange(40)):
                    await asyncio.sleep(0)
                return await script.complete(call)

        registry = Registry()
        registry.register("unsteady", lambda name: Unsteady(str, name=name))
        return registry

    models = ("unsteady:c", "unsteady:n")
    one, two = [
        await play_scenes(path, tmp_path / str(seed), *models, registry=unsteady(seed))
        for seed in (1, 2)
    ]
    assert len({e.turn for e in one.plays[0].events if e.round == 1}) >= 3
    assert one.plays == two.plays
    assert (tmp_path / "1" / PLAYS).read_bytes() == (tmp_path / "2" / PLAYS).read_bytes()
    again = await play_scenes(
        path, tmp_path / "2", *models, options=Options(replay=True), registry=unsteady(3)
    )
    assert again.plays == one.plays


async def test_only_the_scenes_that_are_named_are_played(tmp_path: Path):
    path = scene_file(tmp_path, BAKER, TEMPLE)
    done = await play_scenes(path, tmp_path / "run", WORLD, WORLD, only=["西游记/1"], rounds=1)
    assert [play.scene.id for play in done.plays] == ["西游记/1"]
    assert [scene.id for scene in read_scenes(tmp_path / "run" / SCENES)] == ["西游记/1"]
    assert done.plays[0].language == "zh"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"only": ["baker/9"]}, "there is no scene 'baker/9'"),
        ({"by_name": {"Moriarty": WORLD}}, "'Moriarty', who is in none of the scenes"),
        ({"rounds": 0}, "--rounds counts from 1"),
        ({"language": None}, "two languages"),
        ({"embedder": "nonsense"}, "'nonsense' is no embedder"),
    ],
)
async def test_a_wrong_argument_is_refused_before_anything_is_asked(tmp_path: Path, changes, why):
    path = scene_file(tmp_path, BAKER, TEMPLE)
    with pytest.raises(UsageError, match=why):
        await play_scenes(path, tmp_path / "run", WORLD, WORLD, **{"language": "en", **changes})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["Ann ", "A\nB", "<system>"])
async def test_a_name_that_a_model_cannot_copy_is_refused(tmp_path: Path, name):
    scene = BAKER.model_copy(update={"characters": (SceneCharacter(name=name),)})
    with pytest.raises(InputError, match="cannot stand in a sentence"):
        await play_scenes([scene], tmp_path / "run", WORLD, WORLD)


async def test_the_public_scenes_play_two_rounds(tmp_path: Path, shared_data):
    """A sample; benchmarks of the day play them all (docs/log.md)."""
    found = import_characterbox(shared_data("characterbox"))[::40]
    assert {scene.language for scene in found} == {"en", "zh"}
    for language in ("en", "zh"):
        some = [scene for scene in found if scene.language == language]
        done = await play_scenes(some, tmp_path / language, WORLD, WORLD, rounds=2)
        assert all(play.complete and play.rounds == 2 for play in done.plays)
        assert not [e for play in done.plays for e in play.events if e.kind == "failure"]


def test_a_model_for_a_character_is_named_as_name_equals_model(tmp_path: Path, capsys):
    path = scene_file(tmp_path, BAKER)
    common = ["play", str(path), "--characters", WORLD, "--narrator", WORLD, "--out", str(tmp_path)]
    for given, why in (("Watson", "is not NAME=MODEL"), ("=x", "is not NAME=MODEL")):
        assert main([*common, "--character", given]) == 2
        assert why in capsys.readouterr().err
    assert main([*common, "--character", "Watson=a/b", "--character", "Watson=c/d"]) == 2
    assert "twice" in capsys.readouterr().err


# Dry runs, copies -----------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["personae", "paper"])
async def test_a_dry_run_counts_no_fewer_calls_than_any_play_has_and_writes_nothing(
    tmp_path: Path, protocol
):
    path = scene_file(tmp_path, BAKER)
    dry = await play_scenes(
        path, tmp_path / "dry", WORLD, WORLD, protocol=protocol, options=Options(dry_run=True)
    )
    assert dry.plan is not None
    assert dry.plays == ()
    assert not (tmp_path / "dry").exists()
    # Two characters, three rounds, two belief rounds; `paper` has 11 calls an interaction of two.
    wanted = {"personae": 3 * 2 * 4 + 2 * 2, "paper": 3 * 2 * 9 + 2 * 4 + 2}[protocol]
    assert sum(dry.plan.calls.values()) == wanted
    await play_scenes(path, tmp_path / "run", WORLD, WORLD, protocol=protocol)
    assert requests(tmp_path / "run") <= wanted


def test_the_dry_run_says_that_it_counts_the_most(tmp_path: Path, capsys):
    path = scene_file(tmp_path, BAKER)
    common = ["play", str(path), "--characters", WORLD, "--narrator", WORLD]
    assert main([*common, "--out", str(tmp_path / "run"), "--dry-run"]) == 0
    assert "At most" in capsys.readouterr().out
    assert main([*common, "--out", str(tmp_path / "run"), "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["calls"] == 28


def test_a_run_keeps_its_scenes_and_cards_and_needs_neither_file_to_go_on(tmp_path: Path, capsys):
    card = {"spec": "chara_card_v2", "spec_version": "2.0", "data": {
        "name": "Holmes", "description": "CARD of Holmes", "personality": "", "scenario": "",
        "first_mes": "", "mes_example": "", "creator_notes": "", "system_prompt": "",
        "post_history_instructions": "", "alternate_greetings": [], "tags": [], "creator": "",
        "character_version": "", "extensions": {}}}  # fmt: skip
    folder = tmp_path / "given"
    folder.mkdir()
    (folder / "holmes.json").write_text(json.dumps(card), encoding="utf-8")
    one, two = BAKER.characters
    scene = BAKER.model_copy(
        update={"characters": (one.model_copy(update={"card": "holmes.json"}), two)}
    )
    path = scene_file(folder, scene)
    run = tmp_path / "run"
    common = ["play", str(path), "--characters", WORLD, "--narrator", WORLD, "--out", str(run)]
    assert main([*common, "--max-calls", "3"]) == 3
    with Journal(run / JOURNAL, read_only=True) as journal:
        prompts = [c.messages[0].content for c, _ in journal.items() if c.role == "character"]
    assert "CARD of Holmes" in prompts[0]
    for file in folder.iterdir():
        file.unlink()
    assert main(["resume", str(run), "--trust-scripts"]) == 0
    assert read_plays(run)[0].complete
    assert main(["play", str(run / SCENES), *common[2:], "--replay"]) == 0
    capsys.readouterr()


async def test_a_changed_card_is_another_run(tmp_path: Path):
    path = scene_file(tmp_path, BAKER)
    await play_scenes(path, tmp_path / "run", WORLD, WORLD, rounds=1)
    first, second = BAKER.characters
    other = BAKER.model_copy(
        update={"characters": (first.model_copy(update={"goal": "To win."}), second)}
    )
    with pytest.raises(UsageError, match="what it is made from"):
        await play_scenes([other], tmp_path / "run", WORLD, WORLD, rounds=1)


async def test_a_folder_without_plays_is_an_error_that_names_it(tmp_path: Path):
    with pytest.raises(InputError, match="no such file"):
        read_plays(tmp_path)


def test_what_a_play_leaves_and_prints_meets_the_published_schemas(tmp_path: Path, capsys):
    one, two = BAKER.characters
    carded = one.model_copy(update={"card": "starter:sherlock-holmes"})
    path = scene_file(tmp_path, BAKER.model_copy(update={"characters": (carded, two)}))
    run = tmp_path / "run"
    common = ["play", str(path), "--characters", WORLD, "--narrator", WORLD, "--out", str(run)]
    assert main([*common, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    formats = Path(__file__).parents[1] / "docs" / "formats"
    lines = {name: read_jsonl(run / f"{name}.jsonl") for name in ("scenes", "plays", "cards")}
    for name, values in (*lines.items(), ("play", [(0, document)])):
        schema = json.loads((formats / f"{name}.schema.json").read_text("utf-8"))
        found = [value for _, value in values]
        assert found
        for value in found:
            Draft202012Validator(schema).validate(value)
