"""The live view: what is said of a play as it happens, to those who watch and to those who play."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from personae.cli import main
from personae.models.person import Terminal
from personae.records import Beliefs, Call, Event, Failure, Scene, Secret
from personae.world.live import MOST_SHOWN, LiveView
from personae.world.observe import told
from personae.world.state import first_state
from tests.test_play_stage import BAKER, TEMPLE, WORLD, scene_file
from tests.world.stage import played, scene, scripted


async def watched(played_scene: Scene, reply: Any = None, **view: Any) -> list[str]:
    """The lines that an audience sees of a play."""
    lines: list[str] = []
    live = LiveView(lambda text: lines.append(text.plain), **view)
    given = {} if reply is None else {"reply": reply}
    await played(played_scene, heard=live.hear, **given)
    return lines


def whispering(call: Call) -> dict[str, Any] | None:
    if call.meta["character"] != "Ann":
        return None
    return {"manner": "whisper", "to": ["Bob"], "speech": "The key is under the stone"}


def moving(call: Call) -> dict[str, Any]:
    actor = str(call.meta["character"])
    return {
        "changes": [{"who": actor, "position": f"{actor} stands", "state": f"{actor} is uneasy"}]
    }


async def test_a_watcher_sees_rounds_acts_speech_changes_and_intentions_in_order() -> None:
    lines = await watched(scene(2), scripted(influence=moving))
    assert lines[0] == "test/2"
    assert lines[1] == "A storm comes up."
    assert lines[2:5] == ["Time: dusk", "Location: an inn", "A low room."]
    assert lines[5] == "- Ann: Ann is a guest. · Ann sits · Ann is well"
    start = lines.index("── Round 1 ──")
    assert lines[start + 1 : start + 5] == [
        "Ann: action of Ann act 1",
        'Ann says: "speech of Ann act 1"',
        "Ann, position: Ann stands",
        "Ann, body and mind: Ann is uneasy",
    ]
    assert "Bob means to do: intention of Bob belief 1" in lines
    assert lines.index("── Round 2 ──") > lines.index("Ann means to do: intention of Ann belief 1")


async def test_from_a_seat_a_whisper_among_others_and_their_minds_are_not_seen() -> None:
    reply = scripted(act=whispering, influence=moving)
    mine = await watched(scene(3), reply, seats=["Cid"])
    text = "\n".join(mine)
    assert "under the stone" not in text
    assert "Ann is uneasy" not in text
    assert "Bob is uneasy" not in text
    assert "means to do" not in text
    assert "Cid, body and mind: Cid is uneasy" in mine
    assert "Bob, position: Bob stands" in mine  # positions are seen by all at the place
    theirs = "\n".join(await watched(scene(3), reply, seats=["Bob"]))
    assert 'Ann whispers to Bob: "The key is under the stone"' in theirs


async def test_a_seat_shows_of_the_story_exactly_what_its_character_perceived() -> None:
    lines: list[str] = []
    live = LiveView(lambda text: lines.append(text.plain), seats=["Bob"])
    places = {"Ann": "hall", "Bob": "hall", "Cid": "attic", "Dee": "attic"}
    play, _ = await played(scene(4, places=places), scripted(act=whispering), heard=live.hear)
    kinds = ("action", "speech", "influence", "reaction", "result")
    perceived = [told(e, "en") for e in play.seen_by("Bob") if e.kind in kinds]
    assert len(perceived) > 5
    assert [line for line in lines if line in set(perceived)] == perceived
    assert not any("Cid" in line or "Dee" in line for line in lines)


async def test_with_several_places_a_watcher_is_told_where_it_happens() -> None:
    lines = await watched(scene(2, places={"Ann": "hall", "Bob": "attic"}))
    assert "- Ann [hall]: Ann is a guest. · Ann sits · Ann is well" in lines
    assert "[hall] Ann: action of Ann act 1" in lines
    assert "[attic] Bob: action of Bob act 1" in lines


async def test_what_one_group_changes_does_not_undo_what_another_has() -> None:
    places = {"Ann": "hall", "Bob": "attic"}

    def stand_up(call: Call) -> dict[str, Any]:
        (change,) = moving(call)["changes"]
        return {"changes": [{**change, "place": places[change["who"]]}]}

    lines = await watched(scene(2, places=places), scripted(influence=stand_up))
    for name, place in (("Ann", "hall"), ("Bob", "attic")):
        assert lines.count(f"[{place}] {name}, position: {name} stands") == 1
    assert not any("position: Ann sits" in line or "position: Bob sits" in line for line in lines)


async def test_of_a_secret_a_seat_sees_nothing() -> None:
    secret = Secret(fact="The innkeeper is a ghost", known_by=("Ann",))
    lines = await watched(scene(2, secrets=(secret,)), seats=["Bob"])
    assert "ghost" not in "\n".join(lines)
    assert "Ann is well" not in "\n".join(lines)


def test_nothing_that_a_model_writes_is_interpreted() -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, color_system=None, width=200)
    view = LiveView(Terminal(console).say)
    one = scene(1)
    view.hear(one, Event(round=0, turn=-1, kind="opening", state=first_state(one)))
    hostile = "[red]x[/red] \x1b[2J\x07:smile: {who} \u202egnp"
    view.hear(one, Event(round=1, turn=0, kind="speech", actor="Ann", text=hostile + "\n\nmore"))
    (line,) = [ln for ln in file.getvalue().splitlines() if "says" in ln]
    assert "\x1b" not in file.getvalue()
    assert "\x07" not in line
    assert "[red]x[/red]" in line
    assert ":smile: {who} [U+202E]gnp more" in line


def test_a_text_without_an_end_is_cut() -> None:
    lines: list[Text] = []
    view, one = LiveView(lines.append), scene(1)
    view.hear(one, Event(round=0, turn=-1, kind="opening", state=first_state(one)))
    view.hear(one, Event(round=1, turn=0, kind="action", actor="Ann", text="x" * 50_000))
    assert len(lines[-1].plain) == MOST_SHOWN
    assert lines[-1].plain.endswith("…")


def test_failures_and_the_end_are_said_in_both_languages() -> None:
    for language, failed, end in (
        ("en", "No reply: Ann, act (malformed: not JSON)", "The story is concluded."),
        ("zh", "没有答复：Ann，act（malformed: not JSON）", "故事结束了。"),
    ):
        lines: list[str] = []
        view = LiveView(lambda text, to=lines: to.append(text.plain), language=language)  # type: ignore[arg-type,misc]
        one = scene(2)
        view.hear(one, Event(round=0, turn=-1, kind="opening", state=first_state(one)))
        failure = Failure(cause="malformed", detail="not JSON")
        view.hear(
            one,
            Event(round=1, turn=0, kind="failure", actor="Ann", text="act", failure=failure),
        )
        beliefs = Beliefs(intention="I leave")
        view.hear(one, Event(round=1, turn=-1, kind="belief", actor="Ann", beliefs=beliefs))
        view.hear(one, Event(round=1, turn=-1, kind="concluded"))
        assert failed in lines
        assert lines[-1] == end
        assert any("I leave" in line for line in lines)


# The command ----------------------------------------------------------------------------------


def command(tmp_path: Path, *more: str, scenes: tuple[Scene, ...] = (BAKER,)) -> int:
    path = scene_file(tmp_path, *scenes)
    common = [str(path), "--characters", WORLD, "--narrator", WORLD, "--rounds", "1"]
    return main(["play", *common, "--out", str(tmp_path / "run"), *more])


def test_without_a_terminal_the_play_shows_when_it_is_asked_for(tmp_path: Path, capsys) -> None:
    assert command(tmp_path) == 0
    assert "── Round 1 ──" not in capsys.readouterr().out
    assert command(tmp_path, "--live") == 0
    out = capsys.readouterr().out
    assert "── Round 1 ──\n" in out
    assert "\x1b" not in out
    assert "Holmes says" in out


def test_json_is_one_document_and_the_view_goes_elsewhere(tmp_path: Path, capsys) -> None:
    import json

    assert command(tmp_path, "--json", "--live") == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["plays"][0]["scene"] == "baker/1"
    assert "── Round 1 ──" in shown.err


def test_lines_of_several_scenes_say_whose_they_are(tmp_path: Path, capsys) -> None:
    assert command(tmp_path, "--live", "--lang", "zh", scenes=(BAKER, TEMPLE)) == 0
    out = capsys.readouterr().out
    assert "baker/1 | ── 第 1 轮 ──" in out
    assert "西游记/1 | ── 第 1 轮 ──" in out


def test_a_replay_shows_the_same_lines(tmp_path: Path, capsys) -> None:
    assert command(tmp_path, "--live") == 0
    first, page = capsys.readouterr().out.split("The page: ")
    assert page  # of the first time: a replay writes nothing
    assert command(tmp_path, "--live", "--replay") == 0
    assert capsys.readouterr().out == first


@pytest.mark.parametrize("source", ["starter:en", "starter:zh", "starter:disc"])
def test_the_shipped_scenes_are_a_source(tmp_path: Path, capsys, source: str) -> None:
    run = str(tmp_path / "run")
    common = ["--characters", WORLD, "--narrator", WORLD, "--rounds", "1", "--out", run]
    language = ["--lang", "zh"] if source == "starter:disc" else []
    assert main(["play", source, *language, *common, "--dry-run"]) == 0
    assert main(["play", "starter:xx", *common]) == 2
    assert "There are: starter, starter:en" in capsys.readouterr().err


def test_one_shipped_scene_is_played_with_its_cards_and_resumed(tmp_path: Path, capsys) -> None:
    run = str(tmp_path / "run")
    common = ["--characters", WORLD, "--narrator", WORLD, "--rounds", "1", "--out", run]
    scene_id = "starter/zh-poem-wager"
    assert main(["play", "starter", "--scene", scene_id, *common, "--max-calls", "2"]) == 3
    assert main(["resume", run, "--trust-scripts"]) == 0
    assert f"{scene_id}: 1 rounds" in capsys.readouterr().out
    assert (tmp_path / "run" / "cards.jsonl").read_text("utf-8").count("林黛玉") > 1
    assert main(["play", "starter", *common[:-1], str(tmp_path / "two")]) == 2
    assert "two languages" in capsys.readouterr().err
