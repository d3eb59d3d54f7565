"""Who is interviewed: every kind of card, each once; what is known of them, and what stays out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from personae.characters.card import card_of
from personae.characters.convert import write_card
from personae.characters.importers import PROFILE_KEY
from personae.characters.starter import starter_ids
from personae.errors import InputError
from personae.interview.people import (
    MAX_NAME,
    PROFILE_TOKENS,
    SHORT_TOKENS,
    UNIT_TOKENS,
    _packed,
    interviewee,
    read_interviewees,
)
from personae.prompts import LANGUAGES
from personae.records import Character, Language, Lorebook, LoreEntry, Secret
from personae.records.tokens import estimate_tokens
from tests.characters.samples import json_file, picture, v1, v2, v3

both = pytest.mark.parametrize("language", LANGUAGES)

WIKI = """# Hypatia of Alexandria

Hypatia taught mathematics.

## Death
A mob killed her in 415.

Damascius blames the bishop.
"""


def card(
    name: str = "Ann", description: str = "Ann keeps a lighthouse.", **fields: Any
) -> Character:
    return Character(name=name, description=description, **fields)


def ours(**fields: Any) -> dict[str, Any]:
    return {"personae": fields}


def secret(fact: str, *known_by: str) -> dict[str, Any]:
    return Secret(fact=fact, known_by=known_by).to_dict()


def everything(card: Character, language: Language = "en") -> str:
    made = interviewee(card, language)
    return "\n".join((made.name, made.profile, made.short, *made.passages))


# Where they come from ----------------------------------------------------------------------------


@both
def test_everybody_of_the_starter_cast_can_be_interviewed_in_both_languages(
    language: Language,
) -> None:
    ids = [f"starter:{name}" for name in starter_ids()]
    for id_ in ids:
        (made,) = read_interviewees([id_], language)
        assert made.source == id_
        assert made.language == language
        assert made.card.description[:40].strip() in made.profile
        assert 0 < estimate_tokens(made.short) <= SHORT_TOKENS + 1
        assert len(made.passages) > 20
        assert "…" not in made.profile.split("\n\n")  # nothing is cut
        assert "{{" not in "".join((made.profile, made.short, *made.passages))


def test_cards_of_every_kind_profiles_and_folders_of_both_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "people"
    folder.mkdir()
    json_file(folder, {**v1(), "name": "One"}, "one.json")
    two, three, picture_card = v2(), v3(), v2()
    two["data"]["name"], three["data"]["name"] = "Two", "Three"
    picture_card["data"]["name"] = "Four"
    json_file(folder, two, "two.json")
    json_file(folder, three, "three.json")
    png = picture(("chara", json.dumps(picture_card).encode()))
    (folder / "four.png").write_bytes(png.to_bytes())
    write_card(card_of(card("Five")), folder / "five.charx")
    (folder / "wiki_Hypatia.txt").write_text(WIKI, "utf-8")
    (folder / "notes.txt").write_text("nobody", "utf-8")
    alone = tmp_path / "profile.txt"
    alone.write_text("# Zeno\n\nZeno came from Citium.\n", "utf-8")
    found = read_interviewees([folder, str(alone), "starter:alice"], "en")
    assert {p.name for p in found} == {
        "One", "Two", "Three", "Four", "Five", "Hypatia of Alexandria", "Zeno", "Alice",
    }  # fmt: skip
    assert {Path(p.source).name for p in found} >= {"four.png", "wiki_Hypatia.txt", "profile.txt"}


@pytest.mark.parametrize("second", ["Ann", "ANN", " Ａｎｎ "])
def test_two_of_one_name_are_an_error_that_names_both_files(tmp_path: Path, second: str) -> None:
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    write_card(card_of(card("Ann")), one)
    write_card(card_of(card(second)), two)
    with pytest.raises(InputError, match=r"two\.json: the same name as in .*one\.json: "):
        read_interviewees([one, two], "en")


def test_what_holds_nobody_is_an_error_that_says_where(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "notes.txt").write_text("nobody", "utf-8")
    with pytest.raises(InputError, match="empty: holds no card and no profile"):
        read_interviewees([empty], "en")
    with pytest.raises(InputError, match="does not begin with the character"):
        read_interviewees([empty / "notes.txt"], "en")
    with pytest.raises(InputError, match="no such file"):
        read_interviewees([tmp_path / "absent.json"], "en")
    with pytest.raises(InputError, match="the starter cast has no"):
        read_interviewees(["starter:nobody"], "en")
    with pytest.raises(InputError, match="nobody to interview"):
        read_interviewees([], "en")


def test_a_card_that_says_nothing_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    path = json_file(tmp_path, {**v1(), "description": "", "personality": "", "mes_example": ""})
    with pytest.raises(InputError, match=r"card\.json: the card says nothing of Ada Lovelace"):
        read_interviewees([path], "en")


def test_a_name_is_one_line_and_no_longer_than_a_name(tmp_path: Path) -> None:
    assert interviewee(card("Ann\n of  Kent"), "en").name == "Ann of Kent"
    with pytest.raises(InputError, match="a name of 201 characters"):
        interviewee(card("x" * (MAX_NAME + 1)), "en")


def test_a_profile_that_is_no_list_of_paragraphs_is_an_error(tmp_path: Path) -> None:
    for value in ("text", [1], {"a": "b"}):
        with pytest.raises(InputError, match=f"extensions.{PROFILE_KEY}: not a list"):
            interviewee(card(extensions={PROFILE_KEY: value}), "en")


# What is told, and what is not -------------------------------------------------------------------


def test_what_a_card_holds_for_people_and_programs_is_told_to_nobody() -> None:
    told = everything(
        card(
            creator_notes="NOTES",
            system_prompt="SYSTEM",
            post_history_instructions="POST",
            tags=("TAG",),
            creator="CREATOR",
            creator_notes_multilingual={"zh": "ZHNOTES"},
            first_mes="GREETING",
            scenario="SCENARIO",
        )
    )
    for word in ("NOTES", "SYSTEM", "POST", "TAG", "CREATOR", "GREETING", "SCENARIO"):
        assert word not in told


@both
def test_a_character_is_told_its_own_secrets_and_nobody_is_told_those_of_others(
    language: Language,
) -> None:
    made = interviewee(
        card(
            nickname="Annie",
            extensions=ours(
                secrets=[
                    secret("She put out the light.", "Ann", "Bob"),
                    secret("The lamp oil is watered.", "Annie"),
                    secret("Bob means to sell the tower.", "Bob"),
                ]
            ),
        ),
        language,
    )
    for known in ("She put out the light.", "The lamp oil is watered."):
        assert known in made.profile
        assert known in made.passages
        assert known not in made.short
    for text in (made.profile, made.short, *made.passages):
        assert "sell the tower" not in text


def test_more_secrets_than_can_be_told_are_an_error() -> None:
    many = [secret(f"Number {n} is a secret of hers.", "Ann") for n in range(400)]
    with pytest.raises(InputError, match=r"extensions\.personae\.secrets: secrets of about"):
        interviewee(card(extensions=ours(secrets=many)), "en")


def test_what_is_told_of_a_long_card_is_whole_paragraphs_and_says_that_it_goes_on() -> None:
    paragraphs = [f"Paragraph {n}: " + "she trims the wick. " * 40 for n in range(40)]
    made = interviewee(card(description="\n\n".join(paragraphs)), "en")
    assert estimate_tokens(made.profile) <= PROFILE_TOKENS + 1
    told = made.profile.split("\n\n")
    assert told[-1] == "…"
    assert told[:-1] == [p.strip() for p in paragraphs[: len(told) - 1]]
    assert len(told) == 9 + 1  # of 204 tokens each, and the mark


def test_of_a_single_paragraph_that_is_too_long_the_beginning_is_told() -> None:
    made = interviewee(card(description="灯" * 20_000), "zh")
    assert made.profile.endswith("灯\n\n…")
    assert estimate_tokens(made.profile) <= PROFILE_TOKENS + 1


@pytest.mark.parametrize("title", ["", "Ann.\n\n"])
def test_a_long_paragraph_fills_the_room_that_there_is_to_the_end_of_a_word(title: str) -> None:
    made = interviewee(card(description=title + "Ann trims the wick, " * 1_000), "en")
    assert PROFILE_TOKENS - 20 < estimate_tokens(made.profile) <= PROFILE_TOKENS + 1
    assert made.profile.endswith((" Ann\n\n…", " trims\n\n…", " the\n\n…", " wick,\n\n…"))


def test_a_short_card_is_told_whole_without_a_mark_of_cutting() -> None:
    made = interviewee(card(personality="patient", extensions=ours(voice="slowly")), "en")
    for text in ("Ann keeps a lighthouse.", "patient", "slowly"):
        assert text in made.profile
    assert "…" not in made.profile


def test_of_a_longer_profile_there_follows_what_has_room(tmp_path: Path) -> None:
    path = tmp_path / "wiki_Hypatia.txt"
    path.write_text(WIKI, "utf-8")
    (made,) = read_interviewees([path], "en")
    assert made.profile.index("taught mathematics") < made.profile.index("A mob killed her")
    assert made.profile.count("Hypatia taught mathematics.") == 1
    assert made.passages == (
        "Hypatia taught mathematics.",
        "Death\nA mob killed her in 415.",
        "Death\nDamascius blames the bishop.",
    )


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("Ann keeps a lighthouse.", "Ann keeps a lighthouse."),
        ("Ann (c. 1800) keeps it. " + "She waits and waits. " * 30, None),
        ("安守着灯塔。" * 60, None),
        ("word " * 200, None),
    ],
)
def test_the_short_line_is_whole_sentences_or_says_that_it_is_cut(
    text: str, short: str | None
) -> None:
    made = interviewee(card(description=text), "en").short
    if short is not None:
        assert made == short
    else:
        assert made.endswith((".", "。", "…"))
        assert not made.startswith("Ann (c.") or len(made) > 200
    assert estimate_tokens(made) <= SHORT_TOKENS + 1


# Passages ----------------------------------------------------------------------------------------


def test_passages_hold_description_personality_voice_lore_and_examples() -> None:
    made = interviewee(
        card(
            description="She keeps the light.\n\nShe is sixty.",
            personality="patient",
            mes_example="<START>\n{{user}}: Cold?\n{{char}}: Never.",
            character_book=Lorebook(
                entries=(
                    LoreEntry(keys=("Bob",), content="@@depth 4\nHe sells oil."),
                    LoreEntry(keys=("tower",), content="The tower leans."),
                    LoreEntry(keys=(r"b\w+",), content="A pattern.", use_regex=True),
                    LoreEntry(keys=("/b.*/i",), content="Another pattern."),
                    LoreEntry(keys=("x",), content="Switched off.", enabled=False),
                    LoreEntry(keys=("y",), content="@@dont_activate\nNever told."),
                )
            ),
            extensions=ours(
                voice="slow", dialogue=[{"user": "Alone?", "character": "With gulls."}]
            ),
        ),
        "en",
    )
    assert made.passages == (
        "She keeps the light.",
        "She is sixty.",
        "patient",
        "slow",
        "Bob\nHe sells oil.",
        "The tower leans.",
        "A pattern.",
        "Another pattern.",
        "someone: Cold?\nAnn: Never.",
        "someone: Alone?\nAnn: With gulls.",
    )


@given(st.text(st.sampled_from("ab .!?\n灯。”"), max_size=1500), st.integers(5, 300))
def test_cutting_a_text_loses_nothing_but_space_and_keeps_to_the_size(
    text: str, tokens: int
) -> None:
    pieces = _packed(text, tokens)
    assert "".join("".join(pieces).split()) == "".join(text.split())
    for piece in pieces:
        assert estimate_tokens(piece) <= tokens


def test_a_long_paragraph_is_cut_between_sentences_and_keeps_its_heading(tmp_path: Path) -> None:
    sentences = [f"In {year} he dined with Dr. Wren at no. 4 and said so." for year in range(100)]
    path = tmp_path / "wiki_X.txt"
    path.write_text(f"# X\n\nShort.\n\n## Dinners\n{' '.join(sentences)}\n", "utf-8")
    (made,) = read_interviewees([path], "en")
    pieces = [p.removeprefix("Dinners\n") for p in made.passages if p.startswith("Dinners\n")]
    assert len(pieces) > 5
    assert " ".join(pieces).split() == " ".join(sentences).split()
    for piece in pieces:
        assert piece.startswith("In ")
        assert piece.endswith("said so.")
        assert estimate_tokens(piece) <= UNIT_TOKENS


def test_neekos_profiles_are_cut_into_passages_without_losing_a_word(
    shared_data: Callable[..., Path],
) -> None:
    folder = shared_data("neeko", "profiles")
    people = read_interviewees([folder], "en")
    assert len(people) == len(list(folder.glob("wiki_*.txt"))) >= 6
    for person in people:
        assert estimate_tokens(person.profile) <= PROFILE_TOKENS + 40
        kept = "\n".join(person.passages)
        for part in person.card.extensions[PROFILE_KEY]:
            for word in [] if part.startswith("#") else part.split():
                assert word in kept


@pytest.mark.parametrize("unit", ["x", "灯", "word ", "A. ", "Yes. ", "。", "\n\n", "{{char}} "])
def test_a_card_of_many_pages_is_read_like_any_other(unit: str) -> None:
    made = interviewee(card(description="Ann. " + unit * (2**16 // len(unit))), "en")
    assert estimate_tokens(made.profile) <= PROFILE_TOKENS + 1
    assert estimate_tokens(made.short) <= SHORT_TOKENS + 1
    assert all(estimate_tokens(one) <= UNIT_TOKENS for one in made.passages)
