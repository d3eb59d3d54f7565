"""A card as a whole, as docs/characters.md uses it; and how long hostile ones may take."""

import json
import re
from pathlib import Path

import pytest

from personae.characters.card import card_from_bytes, card_of, read_card, read_character
from personae.characters.convert import write_card
from personae.characters.lint import lint
from personae.characters.macros import expand, macros_in
from personae.data import __file__ as data_file
from personae.errors import InputError
from personae.records import Character
from tests.characters import samples
from tests.conftest import ROOT


def test_the_example_of_the_page_does_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_card(card_from_bytes(json.dumps(samples.v3()).encode(), path="a"), "ada.png")
    page = (ROOT / "docs" / "characters.md").read_text("utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(compile(code, "docs/characters.md", "exec"), {})
    assert capsys.readouterr().out == ""  # a sound card, and a CHARX holds all of it
    assert read_card("ada.charx").container == "charx"
    assert read_card("ada-v2.json").version == "v2"


def test_a_card_is_told_by_its_content_and_not_by_its_name(tmp_path: Path) -> None:
    png = tmp_path / "card.png"
    write_card(card_of(Character(name="Ada")), png)
    renamed = png.rename(tmp_path / "card.json")
    assert read_card(renamed).container == "png"
    assert read_character(str(renamed)).name == "Ada"


def test_a_character_of_another_version_needs_a_conversion_first() -> None:
    card = card_of(Character(name="Ada"))
    with pytest.raises(InputError, match="Convert the card first"):
        card.with_character(card.character.model_copy(update={"spec": "v1"}))


def test_the_shipped_cast_is_sound_and_written_as_it_was(tmp_path: Path) -> None:
    cards = sorted((Path(data_file).parent / "cast").glob("*.json"))
    assert len(cards) >= 8
    for path in cards:
        card = read_card(path)
        assert lint(card) == [], path.name
        out = tmp_path / "card.charx"
        write_card(card, out)
        write_card(read_card(out), tmp_path / "card.json", "v3")
        back = json.loads((tmp_path / "card.json").read_text("utf-8"))
        assert back == json.loads(path.read_text("utf-8")), path.name


@pytest.mark.parametrize(
    "text",
    ["{{" * 150_000, "}}" * 150_000, "{{random:" * 15_000, "{{user}} " * 15_000, "<USER>" * 15_000,
     "\n" * 300_000, " " * 300_000, "{{roll:" + "9" * 300_000 + "}}", "{{ " + " " * 300_000,
     "{{random:" + "," * 300_000 + "}}", "{{char}}:" * 15_000, "*" * 300_000, "@@" * 150_000],
    ids=lambda text: text[:10],
)  # fmt: skip
def test_a_hostile_text_costs_time_in_proportion_to_its_length(text: str) -> None:
    value = samples.v2()
    value["data"] |= {"description": text, "first_mes": text, "mes_example": text}
    value["data"]["character_book"]["entries"][0]["content"] = text
    lint(card_from_bytes(json.dumps(value).encode(), path="card.json"))
    expand(text, char="Ada", user="Sam", seed=1)
    list(macros_in(text))


@pytest.mark.parametrize(
    ("begins", "kind"),
    [
        (b"\xff\xd8\xff\xe0\0\x10JFIF", "JPEG"),
        (b"RIFF\x1a\n\0\0WEBPVP8 ", "WebP"),
        (b"GIF89a", "GIF"),
        (b"\0\0\0\x1cftypavif", "AVIF"),
    ],
)
def test_what_a_browser_made_of_the_picture_is_said(begins: bytes, kind: str) -> None:
    with pytest.raises(InputError, match=f"a {kind} picture, which holds no card"):
        card_from_bytes(begins + b"\0" * 40, path="card.png")
