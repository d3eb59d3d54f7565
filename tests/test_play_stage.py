"""The stage `play` end to end on a scripted world: play, stop, resume, replay, dry run."""

from pathlib import Path

import pytest

from personae.cli import main
from personae.errors import StoppedEarlyError
from personae.journal.store import Journal
from personae.play_stage import PLAYS, play_scenes, read_plays
from personae.records import Environment, Scene, SceneCharacter, Secret
from personae.session import JOURNAL, Options
from personae.world.scene_file import write_scenes

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
