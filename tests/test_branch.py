"""Branches: a play that shares an earlier one's first rounds and is played anew from there."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from personae.branch_stage import branch, plan_branch
from personae.cli import main
from personae.errors import InputError, ReplayMissError, StoppedEarlyError, UsageError
from personae.journal.store import Journal, copy_journal
from personae.models import Registry, ScriptedModel
from personae.play_stage import PLAYS, PlayedScenes, play_scenes, read_plays
from personae.records import Call, Event, Play
from personae.session import JOURNAL, MANIFEST, Options, read_manifest
from tests.test_play_stage import BAKER, TEMPLE, WORLD, scene_file
from tests.world.stage import answer

SCRIPT = (Path(__file__).parent / "scripts" / "world.py").read_text("utf-8")


class Counted:
    """Models `test:...` that say little, and the calls that they were asked."""

    def __init__(self, **changes: Any) -> None:
        self.calls: list[Call] = []
        self.changes = changes
        self.fails: set[tuple[Any, ...]] = set()

    def registry(self) -> Registry:
        registry = Registry()
        registry.register("test", lambda model_id: ScriptedModel(self._reply, name=model_id))
        return registry

    def _reply(self, seen: dict[str, Any]) -> Any:
        known = {k: seen[k] for k in ("role", "model", "messages", "meta")}
        call = Call.from_dict({**known, "schema": {"name": "asked", "body": seen["schema"]}})
        self.calls.append(call)
        meta = call.meta
        if (meta["character"], meta["round"], meta["step"]) in self.fails:
            return "no JSON at all"
        value = answer(call, **self.changes)
        if "action" in value:
            value["action"] += f" by {call.model}"
        return value

    @property
    def rounds(self) -> set[int]:
        return {int(call.meta["round"]) for call in self.calls}


async def parent_of(
    tmp_path: Path, models: Counted, *, rounds: int = 3, **fields: Any
) -> tuple[Path, PlayedScenes]:
    run = tmp_path / "parent"
    path = scene_file(tmp_path, fields.pop("scene", BAKER))
    done = await play_scenes(
        path, run, "test:old", "test:narrator", rounds=rounds, registry=models.registry(), **fields
    )
    return run, done


def before(play: Play, from_round: int) -> list[Event]:
    return [event for event in play.events if event.round < from_round]


def fingerprint(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("protocol", ["personae", "paper"])
async def test_rounds_before_are_the_same_to_the_letter_and_nobody_is_asked_for_them_again(
    tmp_path: Path, protocol: Any
) -> None:
    run, done = await parent_of(tmp_path, Counted(), protocol=protocol)
    (old,) = done.plays
    mark = fingerprint(run)
    models = Counted()
    planned = plan_branch(run, 2, characters="test:new")
    out = tmp_path / "branch"
    made = await branch(planned, out, registry=models.registry())
    (new,) = made.plays
    assert new.complete
    assert before(new, 2) == before(old, 2)
    assert models.rounds == {2, 3}
    assert {c.model for c in models.calls if c.role == "character"} == {"test:new"}
    later = [e for e in new.events if e.round >= 2 and e.kind == "action"]
    assert later
    assert all(e.model == "test:new" and e.text.endswith("by test:new") for e in later)
    assert all(e.model == "test:old" for e in before(new, 2) if e.actor is not None)
    assert new.models == {"Holmes": "test:new", "Watson": "test:new"}
    with Journal(out / JOURNAL, read_only=True) as journal:
        assert journal.totals().made == len(models.calls)
        asked = [int(call.meta["round"]) for call, _ in journal.items()]
    with Journal(run / JOURNAL, read_only=True) as journal:
        first = [call for call, _ in journal.items() if int(call.meta["round"]) < 2]
    assert asked.count(1) == len(first)  # and of what the parent played later, nothing
    assert len(asked) == len(first) + len(models.calls)
    assert fingerprint(run) == mark
    assert read_plays(out) == made.plays


async def test_the_manifest_names_what_a_branch_was_made_from(tmp_path: Path) -> None:
    run, _ = await parent_of(tmp_path, Counted())
    planned = plan_branch(run, 2, by_name={"Watson": "test:new"})
    await branch(planned, tmp_path / "b", registry=Counted().registry())
    manifest = read_manifest(tmp_path / "b")
    taken = manifest.arguments["branch"]
    assert taken["from_round"] == 2
    assert taken["parent"] == str(run)
    assert manifest.made_from == (BAKER.hash, taken["plays"])
    assert taken["casts"] == [
        {"from_round": 1, "characters": "test:old", "by_name": {}, "narrator": "test:narrator"}
    ]
    assert manifest.models["character"] == ("test:old", "test:new")


async def test_a_branch_stopped_in_the_middle_goes_on_even_without_its_parent(
    tmp_path: Path,
) -> None:
    run, _ = await parent_of(tmp_path, Counted())
    planned, out = plan_branch(run, 2, characters="test:new"), tmp_path / "b"
    few = Options(max_calls=3)
    with pytest.raises(StoppedEarlyError):
        await branch(planned, out, registry=Counted().registry(), options=few)
    run.rename(tmp_path / "elsewhere")
    models = Counted()
    done = await play_scenes(
        out / "scenes.jsonl", out, "test:new", "test:narrator",
        rounds=3, branch=planned.taken, registry=models.registry(),
    )  # fmt: skip
    assert done.plays[0].complete
    assert models.rounds <= {2, 3}
    with Journal(out / JOURNAL, read_only=True) as journal:
        assert journal.totals().made == 3 + len(models.calls)
    again = await play_scenes(
        out / "scenes.jsonl", out, "test:new", "test:narrator",
        rounds=3, branch=planned.taken, options=Options(replay=True),
        registry=Counted().registry(),
    )  # fmt: skip
    assert again.plays == done.plays


async def test_a_recorded_failure_of_an_earlier_round_stays_one(tmp_path: Path) -> None:
    models = Counted()
    models.fails = {("Watson", 1, "act")}
    run, done = await parent_of(tmp_path, models)
    (old,) = done.plays
    assert [e.kind for e in before(old, 2)].count("failure") == 1
    again = Counted()  # would answer now
    made = await branch(plan_branch(run, 2), tmp_path / "b", registry=again.registry())
    assert before(made.plays[0], 2) == before(old, 2)
    assert again.rounds == {2, 3}


async def test_without_another_model_the_later_rounds_are_asked_anew(tmp_path: Path) -> None:
    run, _ = await parent_of(tmp_path, Counted())
    models = Counted(speech="Another word")
    made = await branch(plan_branch(run, 3), tmp_path / "b", registry=models.registry())
    said = {e.text for e in made.plays[0].events if e.round == 3 and e.kind == "speech"}
    assert said == {"Another word"}
    assert models.rounds == {3}


@pytest.mark.parametrize("protocol", ["personae", "paper"])
async def test_a_play_can_be_gone_on_with_after_its_last_round(
    tmp_path: Path, protocol: Any
) -> None:
    run, done = await parent_of(tmp_path, Counted(), rounds=2, protocol=protocol)
    models = Counted()
    planned = plan_branch(run, 3, characters="test:new", rounds=4)
    made = await branch(planned, tmp_path / "b", registry=models.registry())
    (new,) = made.plays
    assert new.rounds == 4
    assert [e for e in new.events if e.round < 3 and e.kind != "belief"] == [
        e for e in done.plays[0].events if e.round < 3 and e.kind != "belief"
    ]
    # What nobody would have read after the last round is asked of those who played it.
    after = [c for c in models.calls if int(c.meta["round"]) == 2]
    assert {str(c.meta["step"]) for c in after} <= {
        "belief", "self_belief", "env_belief", "concluded",
    }  # fmt: skip
    assert {c.model for c in after if c.role == "character"} == {"test:old"}


async def test_a_branch_of_a_branch_keeps_who_played_when(tmp_path: Path) -> None:
    run, _ = await parent_of(tmp_path, Counted())
    first = await branch(
        plan_branch(run, 2, characters="test:b"), tmp_path / "b", registry=Counted().registry()
    )
    models = Counted()
    planned = plan_branch(tmp_path / "b", 3, characters="test:c")
    second = await branch(planned, tmp_path / "c", registry=models.registry())
    assert before(second.plays[0], 3) == before(first.plays[0], 3)
    assert models.rounds == {3}
    acts = [(e.round, e.model) for e in second.plays[0].events if e.kind == "action"]
    assert acts == [(1, "test:old")] * 2 + [(2, "test:b")] * 2 + [(3, "test:c")] * 2
    # A branch before that one leaves it out.
    third = plan_branch(tmp_path / "c", 2)
    assert [c.characters for c in third.taken.casts] == ["test:old"]
    assert third.cast.characters == "test:b"


async def test_characters_with_a_model_of_their_own_keep_it_unless_they_are_named(
    tmp_path: Path,
) -> None:
    run, _ = await parent_of(tmp_path, Counted(), by_name={"Watson": "test:watson"})
    cast = plan_branch(run, 2, characters="test:new").cast
    assert (cast.of("Holmes"), cast.of("Watson")) == ("test:new", "test:watson")
    cast = plan_branch(run, 2, by_name={"Watson": "test:new"}, narrator="test:n").cast
    assert (cast.of("Holmes"), cast.of("Watson"), cast.narrator) == (
        "test:old", "test:new", "test:n",
    )  # fmt: skip


async def test_a_dry_run_counts_only_what_would_be_asked_and_writes_nothing(
    tmp_path: Path,
) -> None:
    run, _ = await parent_of(tmp_path, Counted())
    planned = plan_branch(run, 3, characters="test:new")
    registry = Counted().registry()
    done = await branch(planned, tmp_path / "b", registry=registry, options=Options(dry_run=True))
    assert done.plan is not None
    # Two turns of four calls, and no beliefs after the last round.
    assert sum(done.plan.calls.values()) == 8
    assert not (tmp_path / "b").exists()


# What cannot be branched ----------------------------------------------------------------------


async def test_rounds_that_are_not_there_are_refused_with_the_reason(tmp_path: Path) -> None:
    run, _ = await parent_of(tmp_path, Counted(), rounds=2)
    for from_round, rounds, reason in (
        (0, None, "counts from 1"),
        (3, None, "after the last of 2 rounds"),
        (4, 6, "has played 2 rounds"),
    ):
        with pytest.raises(UsageError, match=reason):
            plan_branch(run, from_round, rounds=rounds)
    with pytest.raises(UsageError, match="played no scene 'x'"):
        plan_branch(run, 2, only=["x"])


async def test_what_was_concluded_has_no_later_round(tmp_path: Path) -> None:
    run, done = await parent_of(tmp_path, Counted(concluded=True))
    assert done.plays[0].rounds == 1
    with pytest.raises(UsageError, match="was concluded in round 1"):
        plan_branch(run, 2)
    assert plan_branch(run, 1, characters="test:new").cast.characters == "test:new"


async def test_a_play_that_was_stopped_before_is_to_be_gone_on_with_first(tmp_path: Path) -> None:
    with pytest.raises(StoppedEarlyError):
        await parent_of(tmp_path, Counted(), options=Options(max_calls=3))
    with pytest.raises(UsageError, match="personae resume"):
        plan_branch(tmp_path / "parent", 2)


async def test_scenes_that_are_no_longer_those_that_were_played_are_refused(tmp_path: Path) -> None:
    run, _ = await parent_of(tmp_path, Counted())
    scene_file(run, BAKER.model_copy(update={"event": "Another letter."}))
    with pytest.raises(InputError, match="as it stands in scenes"):
        plan_branch(run, 2)


async def test_prompts_of_another_version_are_refused(tmp_path: Path) -> None:
    run, _ = await parent_of(tmp_path, Counted())
    manifest = json.loads((run / MANIFEST).read_text("utf-8"))
    manifest["prompts"]["en/world/act"] = "0" * 64
    (run / MANIFEST).write_text(json.dumps(manifest), "utf-8")
    with pytest.raises(UsageError, match="other prompts than this version's"):
        plan_branch(run, 2)


async def test_what_is_no_play_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such run directory"):
        plan_branch(tmp_path / "nowhere", 2)
    run, _ = await parent_of(tmp_path, Counted())
    manifest = json.loads((run / MANIFEST).read_text("utf-8"))
    (run / MANIFEST).write_text(json.dumps({**manifest, "kind": "eval"}), "utf-8")
    with pytest.raises(UsageError, match="only a play can be branched"):
        plan_branch(run, 2)
    broken = {**manifest, "arguments": {**manifest["arguments"], "by_name": 7}}
    (run / MANIFEST).write_text(json.dumps(broken), "utf-8")
    with pytest.raises(InputError, match="does not say who played"):
        plan_branch(run, 2)


async def test_a_journal_that_lacks_an_earlier_round_is_an_error_and_no_bill(
    tmp_path: Path,
) -> None:
    run, _ = await parent_of(tmp_path, Counted())
    whole = run / JOURNAL
    part = tmp_path / "part.sqlite"
    copy_journal(whole, part, lambda call: call.meta["character"] != "Watson")
    part.replace(whole)
    models = Counted()
    with pytest.raises(ReplayMissError, match="round 1 cannot be taken over"):
        await branch(plan_branch(run, 2), tmp_path / "b", registry=models.registry())
    assert models.calls == []


async def test_a_journal_is_copied_whole_while_others_write_to_it(tmp_path: Path) -> None:
    run, _ = await parent_of(tmp_path, Counted())
    with Journal(run / JOURNAL) as writer:  # WAL from here on
        (call, reply), *rest = list(writer.items())
        new = call.model_copy(update={"repeat": 7})
        await writer.put(new.key(), new, reply)
        copy_journal(run / JOURNAL, tmp_path / "copy.sqlite", lambda _call: True)
    with Journal(tmp_path / "copy.sqlite", read_only=True) as copy:
        assert len(copy) == len(rest) + 2
        assert copy.get(new.key()) is not None
        assert copy.totals().made == 0
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith("copy")] == ["copy.sqlite"]


# The command ----------------------------------------------------------------------------------


def played(tmp_path: Path) -> tuple[Path, str]:
    """A play of two scenes by the command, and another model."""
    path = scene_file(tmp_path, TEMPLE)
    run = tmp_path / "run"
    common = ["--characters", WORLD, "--narrator", WORLD, "--rounds", "2"]
    assert main(["play", str(path), *common, "--out", str(run)]) == 0
    other = tmp_path / "other.py"
    other.write_text(SCRIPT.replace("推开窗户", "跳上房梁"), "utf-8")
    return run, f"scripted:{other}"


def test_the_command_branches_a_run_and_the_branch_resumes(tmp_path: Path, capsys) -> None:
    run, other = played(tmp_path)
    out = tmp_path / "branch"
    common = ["play", str(run), "--from-round", "2", "--characters", other, "--out", str(out)]
    assert main(common) == 2
    assert "--trust-scripts" in capsys.readouterr().err
    assert main([*common, "--trust-scripts", "--max-calls", "2"]) == 3
    assert f"personae resume {out}" in capsys.readouterr().err.replace("\n", "")
    assert main(["resume", str(out), "--trust-scripts"]) == 0
    assert main([*common, "--trust-scripts", "--replay"]) == 0
    (old,), (new,) = read_plays(run), read_plays(out)
    assert before(old, 2) == before(new, 2)
    assert set(new.models.values()) == {other}
    assert new.language == "zh"
    for option, value in (("--lang", "en"), ("--protocol", "paper"), ("--seed", "5")):
        assert main([*common, "--trust-scripts", option, value]) == 2
        assert f"a branch keeps what the play has: {option}" in capsys.readouterr().err


def test_from_a_scene_file_the_branch_lies_inside_the_run_and_is_named(
    tmp_path: Path, capsys
) -> None:
    run, other = played(tmp_path)
    plays = (run / PLAYS).read_bytes()
    scenes = str(tmp_path / "scenes.jsonl")
    more = ["--from-round", "2", "--narrator", other, "--trust-scripts", "--out", str(run)]
    assert main(["play", scenes, *more]) == 0
    (where,) = (run / "branches").iterdir()
    assert where.name.startswith("from-2-")
    assert f"The branch goes to {where}" in capsys.readouterr().err.replace("\n", "")
    assert read_plays(where)[0].narrator == other
    assert (run / PLAYS).read_bytes() == plays
    assert main(["play", str(run), *more]) == 0  # the same branch, by another way
    assert len(list((run / "branches").iterdir())) == 1
    scene_file(tmp_path, TEMPLE.model_copy(update={"event": "夜里下雨。"}))
    assert main(["play", scenes, *more]) == 2
    assert "was not played from these scenes" in capsys.readouterr().err


def test_a_branch_needs_a_play_to_leave(tmp_path: Path, capsys) -> None:
    path = str(scene_file(tmp_path, BAKER))
    models = ["--characters", WORLD, "--narrator", WORLD, "--out", str(tmp_path / "new")]
    assert main(["play", path, "--from-round", "2", *models]) == 2
    assert "give its run directory in place of SCENES.jsonl" in capsys.readouterr().err
    assert main(["play", str(tmp_path), *models]) == 2
    assert "is a directory" in capsys.readouterr().err
    assert main(["play", str(tmp_path), "--from-round", "2", *models]) == 2
    assert "not a run directory" in capsys.readouterr().err
    assert main(["play", path, "--out", str(tmp_path / "new")]) == 2
    assert "--characters MODEL is missing" in capsys.readouterr().err


def test_a_play_and_its_branch_are_compared(tmp_path: Path, capsys) -> None:
    run, other = played(tmp_path)
    more = ["--from-round", "2", "--characters", other, "--trust-scripts"]
    assert main(["play", str(run), *more, "--out", str(tmp_path / "b")]) == 0
    for one in (run, tmp_path / "b"):
        assert main(["rate", str(one), "--judge", WORLD]) == 0
    capsys.readouterr()
    assert main(["report", str(run), str(tmp_path / "b"), "--json"]) == 0
    models = json.loads(capsys.readouterr().out)["scenes"]["models"]
    assert {m["model"] for m in models} == {WORLD, other}
