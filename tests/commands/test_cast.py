"""`personae cast` as it is typed: what is printed, and what an error says to do."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from personae.cast.store import write_cast
from personae.characters.starter import starter
from personae.cli import main
from personae.records.cast import Block, CastCharacter
from tests.cast.serving import loaded, random_blocks

HOLMES, QUIXOTE = "Sherlock Holmes", "Don Quixote"


@pytest.fixture(scope="module")
def cast(tmp_path_factory: pytest.TempPathFactory, tiny_base: Path) -> Path:
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


def talk(path: Path) -> Path:
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
    data, out = talk(tmp_path / "talk.jsonl"), tmp_path / "my cast"
    said = ["cast", "train", str(data), "--base", str(tiny_base), "--out", str(out)]
    assert main([*said, "--epochs", "3"]) == 0
    shown, heard = capsys.readouterr()
    assert "loss before" in shown
    assert "1 line or row was not learnt" in shown
    assert f"personae cast chat '{out}'" in shown, "a path is not broken, and can be pasted"
    assert "shared 1: Mira " in heard
    assert "USD" not in heard


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


def test_who_is_near_is_not_taken_for_who_is_meant(cast: Path, capsys) -> None:
    assert main(["cast", "route", str(cast), f"Play {HOLMES}"]) == 0
    assert capsys.readouterr().out.splitlines() == [f"accept: {HOLMES} (100%, by name)"]
    assert main(["cast", "route", str(cast), "Play Hercule Poirot, the Belgian detective"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "reject: nobody (0%, by name)",
        "Nearest by what their cards say:",
        f"  1.00  {HOLMES}",
    ]


def test_an_addition_says_what_it_did_where_it_is_told_and_how_to_talk_to_it(
    cast: Path, tmp_path: Path, capsys
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(cast, copy)
    assert main(["cast", "add", str(copy), "--role", "starter:alice", "--how", "profile"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[:2] == ["Alice (profile) speaks through 1.00 shared",
                         "Blocks as before: 2 of 2 characters"]  # fmt: skip
    assert any("tried instructions asked for nobody of the cast" in line for line in shown)
    assert f"All of it: {copy / 'additions' / 'Alice.json'}" in shown
    assert f"Talk to it: personae cast chat {copy} --role Alice" in shown
