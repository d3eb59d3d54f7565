"""`personae cast` as it is typed: what is printed, what is written, the exit codes."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from personae.cast.store import read_cast, write_cast
from personae.characters.starter import starter
from personae.cli import main
from personae.records import Character
from personae.records.cast import Block, CastCharacter
from tests.cast.serving import loaded, random_blocks
from tests.commands.test_character import document
from tests.test_formats import check, lines

torch.set_num_threads(1)

VOICES = {
    "Ada Byron": "engine numbers weave algebra",
    "Bob Kelp": "fish sea boat tide",
}


def write_talks(path: Path, talks: list[tuple[str, str]]) -> Path:
    rows = [
        {"characters": [who], "source": f"{path.name}, line {n}", "licence": "CC-BY-4.0",
         "turns": [{"text": "What now?"}, {"speaker": who, "text": said}]}
        for n, (who, said) in enumerate(talks, 1)
    ]  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def write_card(path: Path, name: str, voice: str) -> Path:
    card = Character(
        name=name,
        description=f"{name} is known for {voice}, and talks of {voice} all day long.",
        mes_example=f"<START>\n{{{{user}}}}: Who are you?\n{{{{char}}}}: {voice}.",
    )
    value = {"spec": "chara_card_v2", "spec_version": "2.0", "data": {
        "name": card.name, "description": card.description, "mes_example": card.mes_example}}  # fmt: skip
    path.write_text(json.dumps(value), "utf-8")
    return path


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory, tiny_base: Path) -> Path:
    """Cards, dialogues, and a cast that `personae cast train` made of them."""
    folder = tmp_path_factory.mktemp("cast")
    cards = [write_card(folder / f"{n}.json", who, v) for n, (who, v) in enumerate(VOICES.items())]
    write_talks(
        folder / "talks.jsonl", [(who, f"{v} {k}") for k in range(3) for who, v in VOICES.items()]
    )
    args = ["cast", "train", *map(str, cards), str(folder / "talks.jsonl"), "--base",
            str(tiny_base), "--out", str(folder / "cast"), "--rank", "2", "--epochs", "4",
            "--max-tokens", "600"]  # fmt: skip
    assert main(args) == 0
    return folder


@pytest.fixture
def cast(room: Path, tmp_path: Path) -> Path:
    """A copy that may be changed."""
    shutil.copytree(room / "cast", tmp_path / "cast")
    return tmp_path / "cast"


def said(capsys: pytest.CaptureFixture[str]) -> str:
    """What stands on standard error, in one line."""
    return " ".join(capsys.readouterr().err.split())


# train -------------------------------------------------------------------------------------------


def test_every_option_of_a_training_reaches_the_plan(
    room: Path, tiny_base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "cast"
    args = [
        "cast", "train", str(room / "talks.jsonl"), "--base", str(tiny_base), "--out", str(out),
        "--mode", "speaker", "--rank", "3", "--alpha", "6", "--lr", "0.01", "--shared-lr", "0.02",
        "--tokens-per-role", "90", "--batch-rows", "1", "--max-tokens", "500",
        "--development", "0.3", "--patience", "2", "--targets", "q_proj", "v_proj",
        "--dtype", "float32", "--seed", "7", "--card", str(room / "0.json"), str(room / "1.json"),
        "--json",
    ]  # fmt: skip
    assert main(args) == 0
    printed = document(capsys)
    check("cast_train", printed)
    plan = json.loads((out / "training" / "plan.json").read_text("utf-8"))["plan"]
    wanted = {
        "mode": "speaker", "rank": 3, "alpha": 6.0, "lr": 0.01, "shared_lr": 0.02,
        "tokens_per_role": 90, "batch_rows": 1, "max_tokens": 500, "development": 0.3,
        "patience": 2, "targets": ["q_proj", "v_proj"], "dtype": "float32", "seed": 7,
        "protocol": "personae",
    }  # fmt: skip
    assert {name: plan[name] for name in wanted} == wanted
    manifest = read_cast(out).manifest
    assert (manifest.seed, manifest.rank, manifest.alpha, manifest.mode) == (7, 3, 6.0, "speaker")
    assert {t.rpartition(".")[2] for t in manifest.targets} == {"q_proj", "v_proj"}
    assert printed["characters"][0]["card"] == "cards/Ada-Byron.json"
    assert printed["cast"] == str(out)
    # After the end the same command is a look at the cast, and prints the same.
    assert main(args) == 0
    assert document(capsys) == printed


def test_the_papers_protocol_has_the_papers_blocks_and_gate(
    room: Path, tiny_base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["cast", "train", str(room / "talks.jsonl"), "--base", str(tiny_base), "--out",
            str(tmp_path / "cast"), "--protocol", "paper", "--epochs", "1"]  # fmt: skip
    assert main(args) == 2
    assert "'Ada Byron' has none. Give its card with --card" in said(capsys)
    args += ["--card", str(room / "0.json"), "--card", str(room / "1.json"), "--baselines"]
    assert main([*args, "--json"]) == 0
    printed = document(capsys)
    check("cast_train", printed)
    assert (printed["protocol"], printed["rank"]) == ("paper", 4)
    assert set(printed["baselines"].values()) == {"trained"}
    assert (tmp_path / "cast" / "gate.json").is_file()
    assert main(["cast", "route", str(tmp_path / "cast"), "Ada Byron", "--json"]) == 0
    check("cast_route", document(capsys))


def test_the_files_of_a_training_meet_their_schemas(room: Path) -> None:
    training = room / "cast" / "training"
    check("cast", json.loads((room / "cast" / "cast.json").read_text("utf-8")))
    check("cast_rows", *lines(training / "rows.jsonl"))
    check("cast_history", *lines(training / "history.jsonl"))
    check("cast_spent", json.loads((training / "spent.json").read_text("utf-8")))
    check("cast_outcome", json.loads((training / "outcome.json").read_text("utf-8")))


def test_who_speaks_and_under_which_licence_can_be_said_for_data_that_do_not(
    tiny_base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    talk = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "I, the reed."}]
    (tmp_path / "bare.jsonl").write_text(json.dumps({"messages": talk}) + "\n")
    args = ["cast", "train", str(tmp_path / "bare.jsonl"), "--base", str(tiny_base), "--out",
            str(tmp_path / "cast"), "--rank", "1", "--epochs", "1"]  # fmt: skip
    assert main(args) == 2
    assert "--speaker" in said(capsys)
    assert main([*args, "--speaker", "Reed", "--licence", "MIT", "--json"]) == 0
    printed = document(capsys)
    assert [one["name"] for one in printed["characters"]] == ["Reed"]
    assert {s["licence"] for block in printed["blocks"] for s in block["data"]} == {"MIT"}


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["--rank", "0"], "rank = 0"),
        (["--patience", "2"], "--patience needs rows to watch: give --development"),
        (["--lr", "-1"], "lr = -1.0"),
        (["--out", "{room}"], "is not a training of ours; choose another --out"),
        (["--base", "{room}/nothing"], "there is no such directory"),
    ],
)
def test_what_cannot_be_trained_ends_with_2_and_a_reason(
    more: list[str], why: str, room: Path, tiny_base: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    args = ["cast", "train", str(room / "talks.jsonl"), "--base", str(tiny_base), "--out",
            str(tmp_path / "cast"), *(word.format(room=room) for word in more)]  # fmt: skip
    assert main([*args, "--json"]) == 2
    out, err = capsys.readouterr()
    assert why in " ".join(err.split())
    assert json.loads(out) == {"error": json.loads(out)["error"], "exit_code": 2}
    assert why in json.loads(out)["error"]
    assert not (tmp_path / "cast").exists()


def test_a_folder_that_cannot_be_made_ends_with_1(
    room: Path, tiny_base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["cast", "train", str(room / "talks.jsonl"), "--base", str(tiny_base)]
    assert main([*args, "--out", str(room / "talks.jsonl" / "cast")]) == 1
    assert "cannot be written (Not a directory)" in said(capsys)


def test_ctrl_c_ends_a_training_with_3_and_says_how_to_go_on(
    room: Path, tiny_base: Path, tmp_path: Path
) -> None:
    out = tmp_path / "cast"
    started = subprocess.Popen(
        [sys.executable, "-m", "personae.cli", "cast", "train", str(room / "talks.jsonl"), "--base",
         str(tiny_base), "--out", str(out), "--rank", "1", "--epochs", "5000"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert started.stderr is not None
    seen = []
    for line in started.stderr:
        seen.append(line)
        if re.match(r"shared (\d+):|shared: [1-9]", line):  # a step is behind it
            started.send_signal(signal.SIGINT)
            break
    rest = started.communicate(timeout=120)[1]
    assert started.returncode == 3, "".join(seen) + rest
    assert "run the same command again to go on" in rest
    assert "Traceback" not in rest
    assert (out / "training" / "checkpoint" / "state.json").is_file()


# route -------------------------------------------------------------------------------------------


def test_a_route_has_the_keys_of_the_contract_and_what_told(
    room: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # `by` stands beside the four keys that are promised: docs/routing.md tells what it says.
    cast = str(room / "cast")
    assert main(["cast", "route", cast, "Be Ada Byron for me.", "--json"]) == 0
    found = document(capsys)
    check("cast_route", found)
    assert found == {
        "decision": "accept", "role": "Ada Byron", "confidence": 1.0,
        "weights": {"Ada Byron": 1.0}, "by": "name",
    }  # fmt: skip
    assert main(["cast", "route", cast, "Be Napoleon Bonaparte.", "--json"]) == 0
    found = document(capsys)
    check("cast_route", found)
    assert (found["decision"], found["role"]) == ("reject", None)
    assert main(["cast", "route", cast, "And then?", "--previous", "Bob Kelp", "--json"]) == 0
    found = document(capsys)
    assert (found["role"], found["by"]) == ("Bob Kelp", "dialogue")
    assert main(["cast", "route", cast, "Bob Kelp, please"]) == 0
    assert "Bob Kelp" in capsys.readouterr().out


def test_a_route_in_no_cast_or_after_nobody_is_a_usage_error(
    room: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cast", "route", str(tmp_path), "Ada?"]) == 2
    assert "holds no cast" in said(capsys)
    assert main(["cast", "route", str(room / "cast"), "Ada?", "--previous", "Zoe"]) == 2
    assert "Zoe" in said(capsys)


# add ---------------------------------------------------------------------------------------------


def test_a_character_is_added_without_a_model_under_the_names_that_are_given(
    cast: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    card = write_card(tmp_path / "cy.json", "Cy", "fish sea boat and engine numbers")
    args = ["cast", "add", str(cast), "--role", str(card)]
    assert (
        main([*args, "--how", "profile", "--name", "Cyrus", "--alias", "The Old Man", "--json"])
        == 0
    )
    added = document(capsys)
    check("cast_add", added)
    check("cast_addition", json.loads(Path(added["record"]).read_text("utf-8")))
    assert (added["role"], added["aliases"], added["how"]) == ("Cyrus", ["The Old Man"], "profile")
    assert (added["weights"], added["refused"]) == ({"shared": 1.0}, [])
    assert main([*args, "--how", "fuse", "--seed", "3", "--json"]) == 0
    fused = document(capsys)
    check("cast_add", fused)
    assert fused["seed"] == 3
    assert sum(w for name, w in fused["weights"].items() if name != "shared") == pytest.approx(1)
    assert main(["cast", "route", str(cast), "Play the Old Man.", "--json"]) == 0
    assert document(capsys)["role"] == "Cyrus"
    assert main([*args, "--how", "fuse"]) == 2
    assert "the cast has 'Cy' already" in said(capsys)


def test_a_block_of_its_own_is_trained_for_a_new_character_and_the_old_stay_as_they_are(
    cast: Path, room: Path, tiny_base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    card = write_card(tmp_path / "cy.json", "Cy", "engine boat")
    data = write_talks(tmp_path / "cy.jsonl", [("Cy", f"engine boat {n}") for n in range(3)])
    with data.open("a") as file:
        file.write(json.dumps({"messages": []}) + "\n")
    shutil.move(tiny_base, tmp_path / "moved")
    try:
        args = ["cast", "add", str(cast), "--role", str(card), "--how", "expand", "--data",
                str(data), "--epochs", "2", "--lr", "0.02", "--heldout", str(room / "talks.jsonl")]  # fmt: skip
        assert main(args) == 2, "the base is not where it was"
        capsys.readouterr()
        assert main([*args, "--base", str(tmp_path / "moved"), "--licence", "MIT", "--json"]) == 0
    finally:
        shutil.move(tmp_path / "moved", tiny_base)
    added = document(capsys)
    check("cast_add", added)
    assert added["block"]["name"] == "Cy"
    assert [one["place"] for one in added["refused"]] == ["line 4"]
    assert added["forgetting"]["measured"] is True
    assert all(one["blocks_identical"] for one in added["forgetting"]["characters"])
    assert all(one["logit_difference"] == 0 for one in added["forgetting"]["characters"])
    old, new = read_cast(room / "cast"), read_cast(cast)
    assert all(np.array_equal(new.tensors[n][:3], old.tensors[n]) for n in old.tensors)
    check("cast_history", *lines(next((cast / "additions").glob("*.history.jsonl"))))
    rates = {line["lr"] for line in lines(next((cast / "additions").glob("*.history.jsonl")))}
    assert max(rates) == pytest.approx(0.02)


@pytest.mark.parametrize("name", ["base", "shared", "a\x1bb", "<b>", "a#b"])
def test_a_new_character_cannot_go_by_a_name_that_means_something_else(
    name: str, cast: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    card = write_card(tmp_path / "cy.json", "Cy", "engine")
    before = (cast / "cast.json").read_bytes()
    for more in (["--name", name], ["--alias", name]):
        assert main(["cast", "add", str(cast), "--role", str(card), "--how", "profile", *more]) == 2
        err = said(capsys)
        assert "no character can be named" in err
        assert "\x1b" not in err
    assert (cast / "cast.json").read_bytes() == before


# chat --------------------------------------------------------------------------------------------


def test_a_talk_ends_with_its_input_and_a_stranger_is_a_usage_error(
    room: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cast", "chat", str(room / "cast"), "--role", "Zoe"]) == 2
    assert "no 'Zoe'" in said(capsys)
    done = subprocess.run(
        [sys.executable, "-m", "personae.cli", "cast", "chat", str(room / "cast"), "--role", "ada byron"],
        input="/quit\n", check=False, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


# export ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("to", ["peft", "gguf", "vllm"])
def test_a_cast_is_exported_whole_or_in_part(
    to: str, room: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["cast", "export", str(room / "cast"), "--to", to, "--out"]
    assert main([*args, str(tmp_path / "all"), "--json"]) == 0
    found = document(capsys)
    check("cast_export", found)
    assert list(found["adapters"]) == list(VOICES)
    assert all(Path(path).exists() for path in found["adapters"].values())
    assert main([*args, str(tmp_path / "all")]) == 2, "it is not empty"
    capsys.readouterr()
    assert main([*args, str(tmp_path / "one"), "--role", "Bob Kelp", "--json"]) == 0
    assert list(document(capsys)["adapters"]) == ["Bob Kelp"]
    assert main([*args, str(tmp_path / "zoe"), "--role", "Zoe"]) == 2
    assert "no character is named 'Zoe'" in said(capsys)
    own = main([*args, str(tmp_path / "own"), "--own-only", "--json"])
    if to == "vllm":
        assert own == 2
    else:
        assert own == 0
        check("cast_export", document(capsys))


def test_a_base_that_is_another_is_refused_at_export(
    room: Path, tiny_base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(tiny_base, tmp_path / "other")
    weights = bytearray((tmp_path / "other" / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (tmp_path / "other" / "model.safetensors").write_bytes(weights)
    args = ["cast", "export", str(room / "cast"), "--to", "gguf", "--out", str(tmp_path / "out")]
    assert main([*args, "--base", str(tmp_path / "other")]) == 2
    assert "is another model" in said(capsys)
    assert not (tmp_path / "out").exists()


def test_the_room_without_a_command_shows_its_help_and_ends_with_2(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["cast"]) == 2
    err = capsys.readouterr().err
    for name in ("train", "add", "route", "chat", "eval", "export"):
        assert name in err


# What a stranger reads -----------------------------------------------------------------------------

HOLMES, QUIXOTE = "Sherlock Holmes", "Don Quixote"


@pytest.fixture(scope="module")
def starters(tmp_path_factory: pytest.TempPathFactory, tiny_base: Path) -> Path:
    base = loaded(tiny_base)
    names = (HOLMES, QUIXOTE)
    cards = dict(zip(names, (starter("sherlock-holmes"), starter("don-quixote")), strict=True))
    return write_cast(
        tmp_path_factory.mktemp("casts") / "cast",
        base=base.ref,
        rank=4,
        alpha=8.0,
        blocks=[Block(name=name) for name in ("shared", *names)],
        characters=[CastCharacter(name=n, weights={"shared": 1.0, n: 1.0}) for n in names],
        tensors=random_blocks(base, 3, 4, 1),
        cards=cards,
    ).path


def mira(path: Path) -> Path:
    rows = [
        {"messages": [{"role": "user", "content": f"{n}?"},
                      {"role": "assistant", "content": said}], "character": "Mira"}
        for n, said in enumerate(["The lamp burns.", "As an AI language model, I cannot."])
    ]  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_training_says_the_losses_what_was_not_learnt_and_no_costs(
    tiny_base: Path, tmp_path: Path, capsys
) -> None:
    data, out = mira(tmp_path / "talk.jsonl"), tmp_path / "my cast"
    said = ["cast", "train", str(data), "--base", str(tiny_base), "--out", str(out)]
    assert main([*said, "--epochs", "3"]) == 0
    shown, heard = capsys.readouterr()
    assert "loss before" in shown
    assert "watch the same rows with --development" in " ".join(shown.split())
    assert "1 line or row was not learnt" in shown
    assert f"personae cast chat '{out}'" in shown, "a path is not broken, and can be pasted"
    assert "shared 1: Mira " in heard
    assert "USD" not in heard


def test_training_says_how_many_rows_lost_turns(tiny_base: Path, tmp_path: Path, capsys) -> None:
    turns = [{"role": "user", "content": "A?"}, {"role": "assistant", "content": "Yes."}]
    rows = [{"messages": turns * times, "character": "Mira"} for times in (1, 9)]
    data, out = tmp_path / "talk.jsonl", tmp_path / "cast"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    said = ["cast", "train", str(data), "--base", str(tiny_base), "--out", str(out)]
    assert main([*said, "--max-tokens", "300"]) == 0
    shown = capsys.readouterr().out
    assert "1 row was longer than --max-tokens, and lost turns from the front" in shown


def test_epochs_and_tokens_are_not_given_both(tmp_path: Path, capsys) -> None:
    said = ["cast", "train", "x", "--base", "b", "--out", "o"]
    with pytest.raises(SystemExit):
        main([*said, "--epochs", "1", "--tokens-per-role", "9"])
    assert "not allowed with argument --epochs" in capsys.readouterr().err


def test_help_says_the_default_of_every_number_of_a_training(capsys) -> None:
    with pytest.raises(SystemExit):
        main(["cast", "train", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "rows of each character in a step (default 4; paper: 8)" in shown
    assert "(default 3; paper: 10)" in shown


def test_who_is_near_is_not_taken_for_who_is_meant(starters: Path, capsys) -> None:
    assert main(["cast", "route", str(starters), f"Play {HOLMES}"]) == 0
    assert capsys.readouterr().out.splitlines() == [f"accept: {HOLMES} (100%, by name)"]
    assert main(["cast", "route", str(starters), "Play Hercule Poirot, the Belgian detective"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "reject: nobody (0%, by name)",
        "Nearest by what their cards say:",
        f"  1.00  {HOLMES}",
    ]


def test_an_addition_says_what_it_did_where_it_is_told_and_how_to_talk_to_it(
    starters: Path, tmp_path: Path, capsys
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(starters, copy)
    assert main(["cast", "add", str(copy), "--role", "starter:alice", "--how", "profile"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[:2] == ["Alice (profile) speaks through 1.00 shared",
                         "Blocks as before: 2 of 2 characters"]  # fmt: skip
    record = json.loads((copy / "additions" / "Alice.json").read_text("utf-8"))
    changes = record["forgetting"]["routes"]["changes"]
    gained = sum(one["meant"] is None and one["after"]["role"] == "Alice" for one in changes)
    told = f"{gained} of 436 tried instructions asked for nobody of the old cast and now go to Alic"
    assert gained
    assert any(line.startswith(told) for line in shown)
    assert f"All of it: {copy / 'additions' / 'Alice.json'}" in shown
    assert f"Talk to it: personae cast chat {copy} --role Alice" in shown


def test_dialogues_of_a_new_character_that_are_too_long_are_named(
    cast: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    card = write_card(tmp_path / "cy.json", "Cy", "engine boat")
    data = write_talks(tmp_path / "cy.jsonl", [("Cy", "engine"), ("Cy", "on " * 600)])
    args = ["cast", "add", str(cast), "--role", str(card), "--how", "expand", "--data", str(data)]
    assert main([*args, "--epochs", "1"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert "Dialogues too long to be learnt: cy.jsonl, line 2" in shown
    assert "Greatest difference of a logit of theirs: 0" in shown


def test_what_taught_nothing_is_said_after_a_training(
    room: Path, tiny_base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_talks(tmp_path / "t.jsonl", [("Ada Byron", "algebra"), ("Ada Byron", "hm " * 300)])
    args = ["cast", "train", str(data), "--base", str(tiny_base), "--out", str(tmp_path / "cast"),
            "--rank", "1", "--epochs", "1", "--max-tokens", "500", "--card", str(room / "1.json")]  # fmt: skip
    assert main(args) == 0
    shown = capsys.readouterr().out
    assert "1 dialogue does not fit into --max-tokens and taught nothing" in shown
    assert "Cards of nobody who speaks in these data: Bob Kelp" in shown


def test_an_addition_says_the_likelihood_of_old_lines_and_what_tuning_gained(
    starters: Path, tmp_path: Path, capsys
) -> None:
    copy, held = tmp_path / "copy", tmp_path / "held.jsonl"
    shutil.copytree(starters, copy)
    said = {"role": "assistant", "content": "Quite so."}
    row = {"messages": [{"role": "user", "content": "A clay stain?"}, said], "character": HOLMES}
    held.write_text(json.dumps(row) + "\n")
    given = ["cast", "add", str(copy), "--role", "starter:alice", "--how", "fuse", "--tune"]
    assert main([*given, "--heldout", str(held)]) == 0
    record = json.loads((copy / "additions" / "Alice.json").read_text("utf-8"))
    old, _ = record["forgetting"]["characters"]
    shown = capsys.readouterr().out
    assert (
        f"{HOLMES}, nats a token: {old['nll_before']:.4f} before, {old['nll_after']:.4f} af"
        in shown
    )
    tuned = record["tuning"]
    assert f"{tuned['start_loss']:.4f} with the router's weights, {tuned['loss']:.4f} wi" in shown


def test_numbers_of_a_training_are_refused_where_nothing_is_trained(starters: Path, capsys) -> None:
    given = ["cast", "add", str(starters), "--role", "starter:alice", "--how", "profile"]
    assert main([*given, "--epochs", "2"]) == 2
    assert "nothing is trained by --how profile: leave out --epochs" in capsys.readouterr().err


def test_with_json_the_progress_is_shown_to_who_watches_a_terminal(
    tiny_base: Path, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    data = mira(tmp_path / "talk.jsonl")
    said = ["cast", "train", str(data), "--base", str(tiny_base), "--json", "--epochs", "1"]
    assert main([*said, "--out", str(tmp_path / "watched")]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["rows"] == 1
    assert "shared" in shown.err
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False)
    assert main([*said, "--out", str(tmp_path / "alone")]) == 0
    assert capsys.readouterr().err == ""
