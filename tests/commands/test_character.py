"""`personae character` as it is typed: what is printed, what is written, the exit codes."""

import json
from pathlib import Path
from typing import Any

import pytest

from personae.characters.card import read_card
from personae.cli import main
from tests.characters import samples
from tests.test_formats import check


@pytest.fixture
def ada(tmp_path: Path) -> Path:
    return samples.json_file(tmp_path, samples.v3(), "ada.json")


def document(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    out = capsys.readouterr().out
    assert out.count("\n") == 1, "one JSON document and nothing else"
    found: dict[str, Any] = json.loads(out)
    return found


def test_show_prints_what_the_card_holds(ada: Path, capsys) -> None:
    assert main(["character", "show", str(ada)]) == 0
    shown = capsys.readouterr().out
    for part in ("Ada Lovelace", "V3 in JSON", "history, science", "Best with a patient model.",
                 "2 entries", "0 errors, 0 hints"):  # fmt: skip
        assert part in shown
    assert main(["character", "show", str(ada), "--json"]) == 0
    found = document(capsys)
    assert (found["name"], found["called"]) == ("Ada Lovelace", "Ada")
    assert found["lorebook"] == {"name": "Ada's world", "entries": 2, "enabled": 2, "constant": 0}
    check("character_show", found)


def test_show_prints_no_control_character_and_no_markup(tmp_path: Path, capsys) -> None:
    value = samples.v3()
    value["data"]["name"] = "\x1b[31mRed\x07\u202eEvil[bold]"
    value["data"]["description"] = "\x9b2J\r\x00hidden [link=x]y[/link] \ud800"
    path = samples.json_file(tmp_path, value)
    for extra in ([], ["--json"]):
        assert main(["character", "show", str(path), *extra]) == 0
        out = capsys.readouterr().out
        assert not set(out) & set("\x1b\x07\u202e\x9b\r\x00")
        assert "[bold]" in out
        assert "[link=x]y[/link]" in out
    assert main(["character", "lint", str(path)]) == 1
    assert "\x1b" not in capsys.readouterr().out


def test_lint_ends_with_1_for_errors_and_with_0_for_hints(ada: Path, tmp_path, capsys) -> None:
    assert main(["character", "lint", str(ada)]) == 0
    assert "0 errors, 0 hints." in capsys.readouterr().out
    hints = samples.json_file(tmp_path, samples.v1(), "hints.json")
    assert main(["character", "lint", str(hints), "--json"]) == 0
    assert document(capsys)["hints"] == 1
    value = samples.v3()
    value["data"]["tags"] = "a, b"
    errors = samples.json_file(tmp_path, value, "errors.json")
    assert main(["character", "lint", str(errors), "--json"]) == 1
    found = document(capsys)
    assert found["errors"] == 1
    assert found["findings"][0]["place"] == "data.tags"
    check("character_lint", found)


def test_what_is_no_card_ends_with_2_and_its_place(tmp_path: Path, capsys) -> None:
    path = tmp_path / "card.json"
    path.write_text('{"name": ')
    for name in ("show", "lint"):
        assert main(["character", name, str(path)]) == 2
        assert f"{path}, line 1, column 10" in capsys.readouterr().err
    assert main(["character", "show", str(tmp_path / "none.png")]) == 2
    assert "no such file" in capsys.readouterr().err


def test_convert_writes_every_version_and_says_what_is_not_expressed(
    ada: Path, tmp_path: Path, capsys
) -> None:
    for to, name in (("v1", "a.json"), ("v2", "a.png"), ("v3", "b.png"), ("charx", "a.charx")):
        out = tmp_path / name
        assert main(["character", "convert", str(ada), "--to", to, "--out", str(out)]) == 0
        said = capsys.readouterr()
        assert str(out) in said.out.replace("\n", "")
        assert ("nickname" in said.err) == (to in ("v1", "v2"))
        assert read_card(out).version == ("v3" if to == "charx" else to)
        home = tmp_path / f"home-{to}.json"
        assert main(["character", "convert", str(out), "--to", "v3", "--out", str(home)]) == 0
        capsys.readouterr()
        back = json.loads(home.read_text("utf-8"))
        assert back == samples.v3()


def test_convert_prints_one_document_with_json(ada: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "a.json"
    args = ["character", "convert", str(ada), "--to", "v1", "--out", str(out), "--json"]
    assert main(args) == 0
    found = document(capsys)
    assert (found["was"], found["to"]) == ("v3", "v1")
    check("character_convert", found)
    assert {"place", "message"} == set(found["not_expressed"][0])


def test_convert_takes_the_given_picture(ada: Path, tmp_path: Path, capsys) -> None:
    image, out = tmp_path / "image.png", tmp_path / "card.png"
    image.write_bytes(samples.picture(seed=b"given").to_bytes())
    args = ["character", "convert", str(ada), "--to", "v3", "--image", str(image)]
    assert main([*args, "--out", str(out)]) == 0
    assert capsys.readouterr().err == ""
    idat = next(c.raw for c in samples.picture(seed=b"given").chunks if c.type == b"IDAT")
    assert idat in out.read_bytes()
    assert main([*args, "--out", str(tmp_path / "card.json")]) == 2
    assert "no picture" in capsys.readouterr().err


def test_a_refused_conversion_writes_nothing(ada: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "new" / "card.charx"
    assert main(["character", "convert", str(ada), "--to", "v1", "--out", str(out)]) == 2
    assert "CHARX" in capsys.readouterr().err
    assert not out.parent.exists()


def test_lint_names_the_whole_place_on_a_narrow_terminal(
    tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    value = samples.v3()
    value["data"]["character_book"]["entries"][0]["insertion_order"] = "7"
    assert main(["character", "lint", str(samples.json_file(tmp_path, value))]) == 1
    rows = [line.split("│")[2].strip() for line in capsys.readouterr().out.splitlines()[3:-2]]
    assert "".join(rows) == "data.character_book.entries[0].insertion_order"
