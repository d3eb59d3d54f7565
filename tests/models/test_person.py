"""A person in a seat: asked field by field, kept in the journal, never asked twice."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from personae.errors import StoppedEarlyError, UnsupportedError
from personae.journal.client import Client
from personae.journal.store import Journal
from personae.models import Registry, ScriptedModel
from personae.models.person import Person, Terminal, readable, words
from personae.models.prices import load_prices
from personae.play_stage import play_scenes, read_plays
from personae.prompts.world_schemas import (
    act_schema,
    concluded_schema,
    influence_schema,
    result_schema,
    update_schema,
)
from personae.records import Call, Environment, Message, ReplySchema, Scene, SceneCharacter, Secret
from personae.records.structured import check_value
from personae.session import JOURNAL, read_manifest, repair_messages
from personae.world.scene_file import write_scenes
from personae.world.state import Bounds
from tests.world.stage import answer

WORLD = f"scripted:{Path(__file__).parents[1] / 'scripts' / 'world.py'}"
INN = Scene(
    id="inn/1",
    event="A storm comes up.",
    environment=Environment(time="dusk", location="an inn", description="A low room."),
    characters=(
        SceneCharacter(name="Ann", description="A guest.", state="afraid", goal="get away"),
        SceneCharacter(name="Bob", description="The host.", state="greedy", goal="keep her"),
        SceneCharacter(name="Cid", description="A cook."),
    ),
    secrets=(Secret(fact="Bob has poisoned the soup", known_by=("Bob",)),),
)


@contextmanager
def typing(text: str) -> Iterator[tuple[Terminal, io.StringIO]]:
    """A terminal at which that is typed, and what it shows."""
    source, end = os.pipe()
    try:
        os.write(end, text.encode())
        os.close(end)
        shown = io.StringIO()
        yield Terminal(Console(file=shown, width=200), source=source), shown
    finally:
        os.close(source)


def call_for(schema: ReplySchema, role: str = "character", **meta: str | int) -> Call:
    return Call(
        role=role,
        model="person:Ann",
        messages=(Message(role="user", content="?"),),
        reply_schema=schema,
        meta={
            "scene": "inn/1",
            "character": "Ann",
            "round": 1,
            "step": "act",
            "language": "en",
            "who": "You are Ann.",
            "situation": "With you are:\n<others>\n- Bob\n</others>",
            **meta,
        },
    )


async def filled(text: str, call: Call) -> tuple[dict[str, Any], str]:
    """What a person answers who types that, and what was shown."""
    with typing(text) as (terminal, shown):
        reply = await Person(call.model, terminal).complete(call)
    assert call.reply_schema is not None
    value = json.loads(reply.text or "")
    check_value(value, call.reply_schema)
    assert (reply.usage.tokens_in, reply.usage.tokens_out) == (0, 0)
    return value, shown.getvalue()


ACT = act_schema(("Bob", "Cid"))


# A form ---------------------------------------------------------------------------------------


async def test_a_character_is_asked_for_act_speech_addressees_and_manner() -> None:
    value, shown = await filled("Ann bars the door\nQuick!\n2 1\ny\n", call_for(ACT))
    assert value == {
        "action": "Ann bars the door", "speech": "Quick!", "manner": "whisper", "to": ["Bob", "Cid"],
    }  # fmt: skip
    assert list(value) == list(ACT.body["properties"])
    assert "To whom?  1 Bob   2 Cid  [Enter: nobody in particular]" in shown
    assert "With you are:\n  - Bob\n" in shown
    assert "<others>" not in shown


async def test_in_chinese_the_questions_and_the_commands_are_chinese() -> None:
    value, shown = await filled("/看\n/帮助\n\n你好\n1\n是\n", call_for(ACT, language="zh"))
    assert value == {"action": "", "speech": "你好", "manner": "whisper", "to": ["Bob"]}
    assert "你做什么？" in shown
    assert "对谁？" in shown
    assert shown.count("You are Ann.") == 2
    assert not re.search(r"What do you|Enter:", shown)
    assert words("zh").keys() == words("en").keys()
    assert {k: set(v) for k, v in words("zh").items() if isinstance(v, dict)} == {
        k: set(v) for k, v in words("en").items() if isinstance(v, dict)
    }


async def test_without_addressees_nobody_asks_whether_it_is_whispered() -> None:
    value, shown = await filled("Ann waits\n\n\n", call_for(ACT))
    assert value == {"action": "Ann waits", "speech": "", "manner": "open", "to": []}
    assert "whisper" not in shown.split("To whom?")[1]


async def test_names_do_as_well_as_numbers_and_zero_is_nobody() -> None:
    value, _ = await filled("a\n\nbob，CID\nn\n", call_for(ACT))
    assert value["to"] == ["Bob", "Cid"]
    value, _ = await filled("a\n\n0\n", call_for(ACT))
    assert value["to"] == []


async def test_what_cannot_stand_is_asked_again_with_the_reason() -> None:
    typed = "\n\n\n" + "x" * 801 + "\nAnn waits\n\n7\nDora\n1\nmaybe\nno\n"
    value, shown = await filled(typed, call_for(ACT))
    assert value == {"action": "Ann waits", "speech": "", "manner": "open", "to": ["Bob"]}
    assert "Nothing is done and nothing is said" in shown
    assert "At most 800 characters; that were 801." in shown
    assert shown.count("Give numbers from 1 to 2, or 0 for none.") == 2
    assert "Answer y or n." in shown


async def test_a_speech_may_be_silent_where_the_step_allows_it() -> None:
    speech = act_schema(("Bob",), action=False)
    value, _ = await filled("\n\n", call_for(speech, step="dialogue"))
    assert value == {"speech": "", "manner": "open", "to": []}


async def test_commands_look_again_and_a_text_that_begins_with_a_slash() -> None:
    typed = "/look\nwrong\n/again\n//bow\n/dance\nHello\n\n"
    value, shown = await filled(typed, call_for(ACT))
    assert value["action"] == "/bow"
    assert value["speech"] == "Hello"
    assert shown.count("You are Ann.") == 2
    assert "From the beginning." in shown
    assert "There is no command /dance" in shown


BOUNDS = Bounds(("Ann", "Bob", "Cid"), places=("hall", "attic"), place="hall")


async def test_a_narrator_names_witnesses_the_affected_and_what_changes() -> None:
    schema = influence_schema("Ann", ("Bob", "Cid"), ("Bob", "Cid"), BOUNDS, concludes=True)
    typed = "\n2\nThe door slams in his face\n2\nat the door\n\n2\n1\n\n\n\n\ny\nnight\n\n\n\ny\n"
    call = call_for(schema, "narrator", step="influence", place="hall")
    value, shown = await filled(typed, call)
    assert value["perceived_by"] == ["Bob", "Cid"]
    assert value["affected"] == "Cid"
    assert value["influence"] == "The door slams in his face"
    assert value["changes"] == [
        {"who": "Bob", "position": "at the door", "state": "", "place": "attic"},
        {"who": "Ann", "position": "", "state": "", "place": "hall"},
    ]
    assert value["environment"] == {"time": "night", "location": "", "description": ""}
    assert value["surroundings"] == ""
    assert value["concluded"] is True
    assert "How does it touch Cid, as Cid perceives it?" in shown
    assert "Your seat: the narrator" in shown


async def test_a_narrator_whose_act_touches_nobody_is_not_asked_how() -> None:
    schema = influence_schema("Ann", ("Bob",), ("Bob",), BOUNDS, concludes=True)
    value, shown = await filled("0\n\n\n\n\n\n", call_for(schema, "narrator", step="influence"))
    assert value["perceived_by"] == []
    assert value["affected"] == "Ann"
    assert value["influence"] == ""
    assert value["changes"] == []
    assert value["concluded"] is False
    assert "How does it touch" not in shown


async def test_a_result_must_be_told_and_an_update_names_whom_it_is_about() -> None:
    value, shown = await filled("\nIt holds\n\n\n\n\n\n", call_for(
        result_schema(("Cid",), BOUNDS, concludes=True), "narrator", step="result"))  # fmt: skip
    assert value["result"] == "It holds"
    assert value["perceived_by"] == ["Cid"]
    assert "Something must stand here." in shown
    call = call_for(update_schema(BOUNDS), "narrator", step="update", whom="Bob", place="hall")
    value, shown = await filled("by the fire\n\n\n", call)
    assert value == {"position": "by the fire", "state": "", "place": "hall"}
    assert "Position of Bob" in shown
    value, _ = await filled("是\n", call_for(concluded_schema(), "narrator", step="concluded"))
    assert value == {"concluded": True}


async def test_control_characters_reach_neither_the_terminal_nor_the_journal() -> None:
    call = call_for(ACT, situation="a\x1b[2Jb\x07 [red]x[/red] \u202e")
    value, shown = await filled("Ann\x1b[D\x1b[A \x07waits\r\n\n\n", call)
    assert value["action"] == "Ann \ufffdwaits"
    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert "[red]x[/red] [U+202E]" in shown


def test_what_stands_between_tags_is_indented_and_the_tags_are_gone() -> None:
    assert readable("A\n<scene>\nB\n\nC\n</scene>\nD ‹scene›") == "A\n  B\n  \n  C\nD ‹scene›"


async def test_bytes_that_are_no_text_are_no_crash() -> None:
    source, end = os.pipe()
    os.write(end, b"Ann \xff\xfe waits\n\n\n")
    os.close(end)
    terminal = Terminal(Console(file=io.StringIO()), source=source)
    reply = await Person("person:Ann", terminal).complete(call_for(ACT))
    os.close(source)
    assert json.loads(reply.text or "")["action"] == "Ann \ufffd\ufffd waits"


async def test_only_a_form_can_be_filled_in() -> None:
    with typing("x\n") as (terminal, _):
        call = call_for(ACT).model_copy(update={"reply_schema": None})
        with pytest.raises(UnsupportedError):
            await Person("person:Ann", terminal).complete(call)


# Leaving --------------------------------------------------------------------------------------


@pytest.mark.parametrize("typed", ["/pause\n", "/quit\n", "Ann waits\n/暂停\n", "Ann waits\n", ""])
async def test_a_pause_and_the_end_of_the_input_stop_the_run(typed: str) -> None:
    with typing(typed) as (terminal, _), pytest.raises(StoppedEarlyError):
        await Person("person:Ann", terminal).complete(call_for(ACT))


async def test_an_interrupted_question_ends_at_once_and_no_other_is_asked() -> None:
    source, end = os.pipe()
    shown = io.StringIO()
    terminal = Terminal(Console(file=shown), source=source)
    ann, bob = Person("person:Ann", terminal), Person("person:Bob", terminal)
    asked = asyncio.create_task(ann.complete(call_for(ACT)))
    waits = asyncio.create_task(bob.complete(call_for(ACT)))
    while "> " not in shown.getvalue():
        await asyncio.sleep(0)
    ann.interrupt("interrupted")
    for task in (asked, waits):
        with pytest.raises(StoppedEarlyError, match="interrupted"):
            await task
    assert shown.getvalue().count("> ") == 1
    os.close(end)  # `source` stays open: the thread may not have come to read from it yet


async def test_one_question_at_a_time_and_what_is_said_meanwhile_waits() -> None:
    source, end = os.pipe()
    shown = io.StringIO()
    terminal = Terminal(Console(file=shown), source=source)
    people = [Person(f"person:{name}", terminal) for name in ("Ann", "Bob")]
    tasks = [
        asyncio.create_task(one.complete(call_for(ACT, character=name)))
        for one, name in zip(people, ("Ann", "Bob"), strict=True)
    ]
    while "> " not in shown.getvalue():
        await asyncio.sleep(0)
    terminal.say(Text("Elsewhere a door slams"))
    assert "slams" not in shown.getvalue()
    os.write(end, b"first\n\n\nsecond\n\n\n")
    first, second = [json.loads((await task).text or "") for task in tasks]
    assert (first["action"], second["action"]) == ("first", "second")
    text = shown.getvalue()
    seats = [text.index("Your seat: Ann"), text.index("slams"), text.index("Your seat: Bob")]
    assert seats == sorted(seats)
    os.close(end)
    os.close(source)


def people_in(terminal: Terminal, **script: Any) -> Registry:
    registry = Registry()
    registry.register("person", lambda model_id: Person(model_id, terminal))
    return registry


async def test_a_pause_stops_all_that_the_run_would_still_ask(tmp_path: Path) -> None:
    with typing("/pause\n") as (terminal, _), Journal(tmp_path / "j.sqlite") as journal:
        client = Client(journal, people_in(terminal), repair=repair_messages("en"))
        with pytest.raises(StoppedEarlyError, match="paused"):
            await client.ask(call_for(ACT))
        other = call_for(ACT).model_copy(update={"model": WORLD})
        with pytest.raises(StoppedEarlyError, match="paused"):
            await client.ask(other)
        await client.close()


async def test_an_answer_is_kept_and_nobody_is_asked_twice(tmp_path: Path) -> None:
    with typing("Ann waits\n\n\n") as (terminal, shown), Journal(tmp_path / "j.sqlite") as journal:
        client = Client(journal, people_in(terminal), repair=repair_messages("en"), replay=False)
        first = await client.ask(call_for(ACT))
        again = await client.ask(call_for(ACT, situation="told in other words"))
        assert again.reused
        assert again.value == first.value
        assert shown.getvalue().count("What do you do?") == 1
        await client.close()
    assert load_prices()("person:Ann") is not None
    assert client.spent_usd == 0


# A play ---------------------------------------------------------------------------------------


def scenes_at(tmp_path: Path) -> Path:
    path = tmp_path / "scenes.jsonl"
    write_scenes([INN], path)
    return path


def world(registry: Registry, **changes: Any) -> Registry:
    """A registry whose model `test:world` plays the rest: nothing affects anybody."""

    def reply(call: dict[str, Any]) -> dict[str, Any]:
        schema = {"name": "asked", "body": call["schema"]}
        known = {k: call[k] for k in ("role", "model", "messages", "meta")}
        return answer(Call.from_dict({**known, "schema": schema}), **changes)

    registry.register("test", lambda _id: ScriptedModel(reply, name="test"))
    return registry


async def seated(tmp_path: Path, typed: str, **fields: Any) -> tuple[Any, str, list[Call]]:
    """A play in which Ann is a person, what was shown, and the calls that went to a person."""
    with typing(typed) as (terminal, shown):
        registry = world(people_in(terminal))
        given = {"by_name": {"Ann": "person:Ann"}, "rounds": 2, **fields}
        done = await play_scenes(
            scenes_at(tmp_path), tmp_path / "run", "test:world", given.pop("narrator", "test:world"),
            registry=registry, **given,
        )  # fmt: skip
    with Journal(tmp_path / "run" / JOURNAL, read_only=True) as journal:
        calls = [c for c, _ in journal.items() if c.model.startswith("person:")]
    return done.plays[0], shown.getvalue(), calls


async def test_one_person_may_play_several_and_is_told_who_it_is_now(tmp_path: Path) -> None:
    typed = "Ann hides\n\n\nBob looks\n\n\n"
    by_name = {"Ann": "person:me", "Bob": "person:me"}
    play, shown, _ = await seated(tmp_path, typed, by_name=by_name, rounds=1)
    assert play.complete
    for name in ("Ann", "Bob"):
        assert shown.count(f"Your seat: {name}") == 1
        assert shown.count(f"You are {name}.") == 1


@pytest.mark.parametrize("protocol", ["personae", "paper"])
async def test_a_person_plays_and_is_asked_for_neither_plans_nor_beliefs(
    tmp_path: Path, protocol: Any
) -> None:
    acts = {
        "personae": "Ann hides\nHush\n1\n\nAnn runs\n\n\n",
        "paper": "Ann hides\nHush\n1\n\nAnn runs\n\n\n",
    }
    play, _, calls = await seated(tmp_path, acts[protocol], protocol=protocol)
    assert play.complete
    steps = ["act"] if protocol == "personae" else ["action", "dialogue"]
    assert [c.meta["step"] for c in calls] == steps * 2
    mine = [(e.kind, e.text) for e in play.events if e.actor == "Ann"]
    assert mine == [("action", "Ann hides"), ("speech", "Hush"), ("action", "Ann runs")]
    believed = {e.actor for e in play.events if e.kind == "belief"}
    assert believed == {"Bob", "Cid"}
    assert play.models["Ann"] == "person:Ann"


async def test_a_person_is_told_what_a_model_in_its_place_would_be_and_no_more(
    tmp_path: Path,
) -> None:
    _, shown, calls = await seated(tmp_path, "Ann hides\n\n\nAnn runs\n\n\n")
    assert "Bob: action of Bob act 1" in shown
    for secret in ("poisoned", "greedy", "keep her", "plan of Bob", "belief of Bob"):
        assert secret not in shown
    for call in calls:
        prompt = "\n".join(m.content for m in call.messages)
        for part in ("who", "situation"):
            told = str(call.meta[part]).replace("It is your turn, Ann.", "").strip()
            assert told in prompt  # the same words, without the form
        assert "JSON" not in str(call.meta["who"]) + str(call.meta["situation"])


async def test_a_person_narrates_and_calls_the_story_concluded(tmp_path: Path) -> None:
    plain = "\n\n\n\n"  # all perceive it, nobody is touched, nothing changes
    typed = f"{plain}\n{plain}\n{plain}y\n"
    play, shown, calls = await seated(tmp_path, typed, by_name={}, narrator="person:narrator")
    assert [(c.meta["step"], c.meta["character"]) for c in calls] == [
        ("influence", "Ann"), ("influence", "Bob"), ("influence", "Cid"),
    ]  # fmt: skip
    assert (play.rounds, play.concluded, play.narrator) == (1, True, "person:narrator")
    assert play.events[1].perceived_by == ("Ann", "Bob", "Cid")
    assert read_manifest(tmp_path / "run").models["narrator"] == ("person:narrator",)
    for known in ("known to Bob alone: Bob has poisoned the soup", "wants: keep her", "greedy"):
        assert known in shown  # a narrator knows all


async def test_a_secret_given_away_is_refused_until_it_is_not(tmp_path: Path) -> None:
    scene = INN.model_copy(update={"characters": INN.characters[:2]})
    leak = "\n1\n{}\n\n\n\n"
    texts = ["She learns that Bob has poisoned the soup"] * 3 + ["She shivers"]
    # Bob's turn: it affects Ann, who must not be told.
    typed = "\n\n\n\n\n" + "".join(leak.format(text) for text in texts) + "All is still\n\n\n\n"
    with typing(typed) as (terminal, shown):
        done = await play_scenes(
            [scene], tmp_path / "run", "test:world", "person:narrator", rounds=1,
            registry=world(people_in(terminal)),
        )  # fmt: skip
    (play,) = done.plays
    assert not [e for e in play.events if e.kind == "failure"]
    assert [e.text for e in play.events if e.kind == "influence"] == ["She shivers"]
    assert shown.getvalue().count("That cannot stand: this gives away to 'Ann'") == 3
    assert all("poisoned" not in e.text for e in play.events)


# The command, killed and interrupted ----------------------------------------------------------

MAIN = "import sys; from personae.cli import main; sys.exit(main(sys.argv[1:]))"
ON_A_TERMINAL = (
    "import fcntl, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "from personae.cli import main; sys.exit(main(sys.argv[1:]))"
)


def command(tmp_path: Path, *seats: str) -> list[str]:
    return [
        "play", str(scenes_at(tmp_path)), "--characters", WORLD, "--narrator", WORLD,
        *(part for seat in seats for part in ("--as", seat)),
        "--rounds", "2", "--no-live", "--out", str(tmp_path / "run"),
    ]  # fmt: skip


def people_asked(run: Path) -> dict[tuple[Any, ...], tuple[int, str]]:
    """Of each answer of a person: which it was, how often it was asked, and what it was."""
    found: dict[tuple[Any, ...], tuple[int, str]] = {}
    with Journal(run / JOURNAL, read_only=True) as journal:
        for call, reply in journal.items():
            if call.model.startswith("person:"):
                (times,) = journal._db.execute(
                    "SELECT exchanges FROM replies WHERE key = ?", (call.key(),)
                ).fetchone()
                meta = call.meta
                key = meta["character"], meta["round"], meta["step"], len(found)
                found[key] = times, reply.text or ""
    return found


def test_after_a_kill_a_person_is_asked_only_for_what_was_not_answered(tmp_path: Path) -> None:
    run = tmp_path / "run"
    everyone = ("Ann", "Bob", "Cid")
    first = subprocess.Popen(
        [sys.executable, "-u", "-c", MAIN, *command(tmp_path, *everyone)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8",
    )  # fmt: skip
    assert first.stdin is not None
    assert first.stdout is not None
    asked = 0
    for line in first.stdout:
        if line.startswith("What do you do?"):
            asked += 1
            if asked == 3:  # two answers have been committed before a third is asked for
                first.send_signal(signal.SIGKILL)
                break
            first.stdin.write(f"does thing {asked}\n\n\n")
            first.stdin.flush()
    first.stdout.close()
    first.stdin.close()
    assert first.wait() == -signal.SIGKILL
    before = people_asked(run)
    assert len(before) == 2
    assert [json.loads(text)["action"] for _, text in before.values()] == [
        "does thing 1", "does thing 2",
    ]  # fmt: skip
    resume = [sys.executable, "-c", MAIN, "resume", str(run), "--trust-scripts"]
    left = "".join(f"does more {n}\n\n\n" for n in range(40))
    second = subprocess.run(
        resume, input=left, capture_output=True, text=True, encoding="utf-8", check=False
    )
    assert second.returncode == 0, second.stderr
    after = people_asked(run)
    assert {key: after[key] for key in before} == before
    assert all(times == 1 for times, _ in after.values())
    assert second.stdout.count("What do you do?") == len(after) - 2
    (play,) = read_plays(run)
    assert play.complete
    assert next(e.text for e in play.events if e.kind in ("action", "reaction")) == "does thing 1"


def test_when_nobody_watches_any_more_the_run_stops_and_can_be_resumed(tmp_path: Path) -> None:
    arguments = [a if a != "--no-live" else "--live" for a in command(tmp_path)]
    nobody, ours = os.pipe()
    os.close(nobody)
    process = subprocess.run(
        [sys.executable, "-c", MAIN, *arguments],
        stdout=ours, stderr=subprocess.PIPE, text=True, encoding="utf-8", check=False,
    )  # fmt: skip
    os.close(ours)
    assert process.returncode == 3
    assert "nobody watches any more. Nothing answered is lost." in process.stderr
    assert read_manifest(tmp_path / "run").status == "stopped"


def shown_until(terminal: int, wanted: str, shown: str = "") -> str:
    """What a terminal shows until that comes."""
    while wanted not in shown:
        shown += os.read(terminal, 65536).decode("utf-8", "replace")
    return shown


def test_on_a_terminal_one_plays_sees_the_story_and_leaves_with_ctrl_c(tmp_path: Path) -> None:
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    arguments = [a for a in command(tmp_path, "Ann") if a != "--no-live"]
    process = subprocess.Popen(
        [sys.executable, "-c", ON_A_TERMINAL, *arguments],
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "200", "NO_COLOR": "1"},
    )  # fmt: skip
    os.close(theirs)
    shown = shown_until(ours, "What do you do?")
    assert "You are Ann." in shown
    assert "greedy" not in shown
    os.write(ours, "Ann grüßt 你好\n\n\n".encode())
    shown = shown_until(ours, "── Round 1 ──")
    shown = shown_until(ours, "What do you do?", shown.partition("── Round 1 ──")[2])
    assert "Ann: Ann grüßt 你好" in shown
    os.write(ours, b"\x03")
    shown = shown_until(ours, "personae resume", shown)
    assert process.wait() == 3
    os.close(ours)
    assert "Stopped early: interrupted. Nothing answered is lost." in shown
    (play,) = read_plays(tmp_path / "run")
    assert not play.complete
    assert next(e.text for e in play.events if e.actor == "Ann") == "Ann grüßt 你好"
