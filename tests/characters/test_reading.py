"""The JSON of a card: what it plainly means is read, what was found is kept."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from personae.characters.card import Card, card_from_bytes, card_of
from personae.characters.reading import (
    MAX_DEPTH,
    MAX_JSON_CHARS,
    MAX_NAME_CHARS,
    MAX_PARTS,
    document_of,
    merged,
    parse_json,
    read_document,
)
from personae.errors import InputError
from personae.records import (
    Asset,
    Character,
    Lorebook,
    LoreEntry,
    PersonaeExtension,
    canonical_json,
)
from tests.characters import samples
from tests.characters.samples import text, worded


def read(value: Any) -> Card:
    return card_from_bytes(json.dumps(value).encode(), path="card.json")


def rewritten(card: Card) -> Any:
    """What the card is written as, the bytes that it came in forgotten."""
    return json.loads(replace(card, raw=None).to_bytes())


def v2(**fields: Any) -> dict[str, Any]:
    card = samples.v2()
    card["data"] |= fields
    return card


# Round trips -----------------------------------------------------------------------------------


@given(samples.any_card)
@settings(max_examples=80)
def test_any_card_that_is_read_is_written_with_an_equal_json_value(value: dict[str, Any]) -> None:
    card = read(value)
    changed = card.with_character(card.character.model_copy(update={"creator": "someone else"}))
    back = changed.with_character(changed.character.model_copy(update=vars(card.character)))
    assert canonical_json(rewritten(card)) == canonical_json(value)
    assert back.character == card.character


entries = st.builds(
    LoreEntry,
    keys=st.lists(text, max_size=2).map(tuple),
    content=text,
    extensions=samples.unknown,
    enabled=st.booleans(),
    insertion_order=st.integers() | st.floats(allow_nan=False, allow_infinity=False),
    case_sensitive=st.none() | st.booleans(),
    use_regex=st.booleans(),
    constant=st.none() | st.booleans(),
    name=st.none() | text,
    priority=st.none() | st.integers(),
    id=st.none() | st.integers() | text,
    comment=st.none() | text,
    selective=st.none() | st.booleans(),
    secondary_keys=st.none() | st.lists(text, max_size=2).map(tuple),
    position=st.none() | st.sampled_from(["before_char", "after_char"]),
)
books = st.builds(
    Lorebook,
    name=st.none() | text,
    description=st.none() | text,
    scan_depth=st.none() | st.integers(0, 99),
    token_budget=st.none() | st.integers(0, 9999),
    recursive_scanning=st.none() | st.booleans(),
    extensions=samples.unknown,
    entries=st.lists(entries, max_size=2).map(tuple),
)
characters = st.builds(
    Character,
    spec=st.sampled_from(["v1", "v2", "v3"]),
    name=worded,
    description=text,
    first_mes=text,
    creator_notes=text,
    tags=st.lists(text, max_size=2).map(tuple),
    alternate_greetings=st.lists(text, max_size=2).map(tuple),
    nickname=st.none() | text,
    source=st.none() | st.lists(text, max_size=2).map(tuple),
    creation_date=st.none() | st.integers() | st.floats(allow_nan=False, allow_infinity=False),
    creator_notes_multilingual=st.none() | st.dictionaries(text, text, max_size=2),
    assets=st.none()
    | st.lists(st.builds(Asset, type=text, uri=text, name=text, ext=text), max_size=2).map(tuple),
    character_book=st.none() | books,
    extensions=samples.unknown,
)


@given(characters)
def test_a_character_made_by_code_is_read_back_as_it_was(character: Character) -> None:
    card = card_of(character)
    again = card_from_bytes(card.to_bytes(), path="card.json").character
    assert again.model_copy(update={"spec_version": None}) == character


def test_a_change_touches_nothing_else_of_a_sloppy_card() -> None:
    value = v2(tags=None, character_version=1.5, zzz=[1], alternate_greetings="one")
    value["data"]["character_book"]["entries"][0] |= {"position": 4, "probability": "100"}
    value["create_date"] = "yesterday"
    card = read(value)
    changed = card.with_character(card.character.model_copy(update={"description": "New."}))
    wanted = json.loads(json.dumps(value))
    wanted["data"]["description"] = "New."
    assert canonical_json(changed.document) == canonical_json(wanted)


def test_a_change_inside_of_one_entry_leaves_the_others_as_found() -> None:
    value = samples.v3()
    value["data"]["character_book"]["entries"][1]["insertion_order"] = "20"
    card = read(value)
    book = card.character.character_book
    assert book is not None
    first = book.entries[0].model_copy(update={"content": "Never built."})
    book = book.model_copy(update={"entries": (first, *book.entries[1:])})
    changed = card.with_character(card.character.model_copy(update={"character_book": book}))
    value["data"]["character_book"]["entries"][0]["content"] = "Never built."
    assert canonical_json(changed.document) == canonical_json(value)


def test_a_value_set_where_an_odd_one_stood_replaces_it() -> None:
    card = read(v2(tags=None))
    changed = card.with_character(card.character.model_copy(update={"tags": ("new",)}))
    assert changed.document["data"]["tags"] == ["new"]


def test_merging_no_change_is_the_found_value_itself() -> None:
    found = {"a": [1, {"b": None}]}
    assert merged(found, {"a": [1, {}]}, {"a": [1, {}]}) is found
    assert merged({"a": 1, "b": 2}, {"a": 1, "b": 2}, {"b": 3}) == {"b": 3}


# What is read ----------------------------------------------------------------------------------


def test_each_version_is_told_by_its_shape() -> None:
    for version, make in samples.CARDS.items():
        assert read(make()).version == version
    bare = samples.v2()
    del bare["spec"], bare["spec_version"]
    assert read(bare).version == "v2"
    assert read({**samples.v3(), "spec": "chara_card_v4", "spec_version": "4.0"}).version == "v3"
    assert read({**samples.v1(), "spec": "chara_card_v2"}).version == "v1"


def test_all_fields_of_v3_arrive() -> None:
    character = read(samples.v3()).character
    assert character.called == "Ada"
    assert character.name == "Ada Lovelace"
    assert character.creator_notes_multilingual == {"zh": "请用耐心的模型。"}
    assert character.source == ("https://example.org/ada",)
    assert character.modification_date == 1700000001.5
    assert character.assets == (Asset(type="icon", uri="ccdefault:", name="main", ext="png"),)
    book = character.character_book
    assert book is not None
    assert [entry.id for entry in book.entries] == [1, "father"]
    assert book.entries[1].use_regex
    assert book.entries[0].extensions == {"depth": 4}


def test_unknown_fields_are_kept_at_every_level() -> None:
    value = samples.v3()
    value["top"] = 1
    value["data"]["inner"] = 2
    value["data"]["character_book"]["of_book"] = 3
    value["data"]["character_book"]["entries"][0]["of_entry"] = 4
    character = read(value).character
    assert character.outer == {"top": 1}
    assert character.extra == {"inner": 2}
    book = character.character_book
    assert book is not None
    assert (book.extra, book.entries[0].extra) == ({"of_book": 3}, {"of_entry": 4})


def test_the_first_cards_of_tavern_ai_are_v1_under_other_names() -> None:
    old = {"char_name": "Ada", "char_persona": "Exact.", "world_scenario": "London",
           "char_greeting": "Hello.", "example_dialogue": "…"}  # fmt: skip
    character = read(old).character
    assert (character.name, character.description) == ("Ada", "Exact.")
    assert (character.scenario, character.first_mes) == ("London", "Hello.")
    assert character.mes_example == "…"


SLOPPY: list[tuple[dict[str, Any], str, Any]] = [
    ({"character_book": None}, "character_book", None),
    ({"character_book": []}, "character_book", None),
    ({"tags": None}, "tags", ()),
    ({"tags": "a, b，c"}, "tags", ("a", "b", "c")),
    ({"description": None}, "description", ""),
    ({"description": 12}, "description", "12"),
    ({"description": True}, "description", "true"),
    ({"extensions": None}, "extensions", {}),
    ({"extensions": []}, "extensions", {}),
    ({"alternate_greetings": "Hello"}, "alternate_greetings", ("Hello",)),
    ({"alternate_greetings": [None, "Hello"]}, "alternate_greetings", ("", "Hello")),
    ({"character_version": 1.5}, "character_version", "1.5"),
    ({"creation_date": "1700"}, "creation_date", 1700),
    ({"creation_date": "soon"}, "creation_date", None),
    ({"assets": {"a": 1}}, "assets", None),
    ({"creator_notes_multilingual": [3]}, "creator_notes_multilingual", None),
    ({"nickname": None}, "nickname", None),
    ({"description": "\ud800!"}, "description", "\ufffd!"),
]


@pytest.mark.parametrize(("fields", "name", "wanted"), SLOPPY)
def test_what_is_plainly_meant_is_read_and_said_and_kept(
    fields: dict[str, Any], name: str, wanted: Any
) -> None:
    value = v2(**fields)
    card = read(value)
    assert getattr(card.character, name) == wanted
    assert any(finding.place.startswith(f"data.{name}") for finding in card.findings)
    assert canonical_json(rewritten(card)) == canonical_json(value)


@pytest.mark.parametrize(
    ("fields", "name", "wanted"),
    [
        ({"insertion_order": "30"}, "insertion_order", 30),
        ({"enabled": None}, "enabled", True),
        ({"enabled": "false"}, "enabled", False),
        ({"enabled": 0}, "enabled", False),
        ({"keys": "a, b"}, "keys", ("a", "b")),
        ({"keys": None}, "keys", ()),
        ({"keys": [1, "a"]}, "keys", ("1", "a")),
        ({"position": 4}, "position", None),
        ({"position": ""}, "position", None),
        ({"extensions": None}, "extensions", {}),
        ({"priority": "high"}, "priority", None),
        ({"secondary_keys": "x"}, "secondary_keys", ("x",)),
        ({"constant": "yes"}, "constant", None),
        ({"id": "a-b"}, "id", "a-b"),
        ({"id": 1.5}, "id", "1.5"),
    ],
)
def test_a_sloppy_entry_is_read_where_it_can_be(
    fields: dict[str, Any], name: str, wanted: Any
) -> None:
    value = samples.v2()
    value["data"]["character_book"]["entries"][0] |= fields
    book = read(value).character.character_book
    assert book is not None
    assert getattr(book.entries[0], name) == wanted


def test_entries_may_lack_everything_and_a_book_may_number_its_entries() -> None:
    value = v2(character_book={"entries": {"0": {}, "7": {"content": "seven", "keys": ["7"]}}})
    book = read(value).character.character_book
    assert book is not None
    assert book.entries == (LoreEntry(), LoreEntry(content="seven", keys=("7",)))


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"description": ["a"]}, "data.description"),
        ({"first_mes": {"a": 1}}, "data.first_mes"),
        ({"name": None}, "data.name"),
        ({"name": "  "}, "data.name"),
        ({"name": "x" * (MAX_NAME_CHARS + 1)}, "data.name"),
        ({"nickname": "x" * (MAX_NAME_CHARS + 1)}, "data.nickname"),
        ({"extensions": "x"}, "data.extensions"),
        ({"character_book": 3}, "data.character_book"),
        ({"character_book": {"entries": "x"}}, "data.character_book.entries"),
        ({"character_book": {"entries": [3]}}, "data.character_book.entries[0]"),
        ({"character_book": {"entries": [{"keys": {"a": 1}}]}}, "entries[0].keys"),
        ({"character_book": {"entries": [{"content": [1]}]}}, "entries[0].content"),
        ({"alternate_greetings": 3}, "data.alternate_greetings"),
    ],
)
def test_what_a_model_would_be_told_wrongly_is_refused_by_its_place(
    fields: dict[str, Any], place: str
) -> None:
    with pytest.raises(InputError) as caught:
        read(v2(**fields))
    assert caught.value.path == "card.json"
    assert caught.value.place.endswith(place)
    assert caught.value.mend


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([], "JSON object"),
        ("x", "JSON object"),
        ({}, "no character card"),
        ({"data": {}}, "no name"),
        ({"data": 3}, "no character card"),
        ({"spec": "lorebook_v3", "data": {"entries": []}}, "lorebook"),
        ({"entries": {"0": {}}}, "lorebook"),
    ],
)
def test_what_is_no_card_is_refused_in_words(value: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read(value)


def test_a_key_that_stands_twice_is_said_and_the_last_one_read() -> None:
    card = card_from_bytes(b'{"name": "Ada", "name": "Eve", "x": {"a": 1}}', path="card.json")
    assert card.character.name == "Eve"
    assert [(f.place, "twice" in f.message) for f in card.findings] == [("name", True)]


# Hostile JSON ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), "deeper"),
        ("[" * 100_000, "deeper|not JSON"),
        ('{"a": 1e999}', "too large"),
        ('{"a": NaN}', "NaN"),
        ('{"a": -Infinity}', "Infinity"),
        ("9" * 5000, "too large"),
        ("9" * 400, "too large"),
        ('{"a": }', "line 1, column 7"),
        ("", "not JSON"),
        ("," * (MAX_PARTS + 1), "parts"),
        ('"' + "a" * MAX_JSON_CHARS + '"', "longer"),
    ],
)
def test_json_that_would_hurt_is_refused(body: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        parse_json(body, path="card.json")
    assert str(caught.value).startswith("card.json")


def test_json_of_the_allowed_depth_is_read() -> None:
    parse_json("[" * MAX_DEPTH + "]" * MAX_DEPTH, path="card.json")


def test_a_character_keeps_what_is_ours_among_the_extensions() -> None:
    ours = {"language": "zh", "voice": "dry", "secrets": [{"fact": "f", "known_by": ["Ada"]}]}
    character = read(v2(extensions={"personae": ours})).character
    assert character.ours == PersonaeExtension.from_dict(ours)
    wrong = read(v2(extensions={"personae": 3})).character
    with pytest.raises(InputError, match=r"extensions\.personae"):
        _ = wrong.ours


def test_what_is_read_can_be_read_again_from_what_it_would_be_written_as() -> None:
    for make in samples.CARDS.values():
        character, findings = read_document(make())
        assert not findings
        assert read_document(document_of(character))[0] == character
        assert document_of(character) == make()


def test_a_blank_nickname_is_none() -> None:
    assert read(v2(nickname=" \t")).character.called == v2()["data"]["name"]
    assert read(v2(nickname="Countess")).character.called == "Countess"
