import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from personae.characters import worldinfo
from personae.characters.lorebook import activate
from personae.characters.worldinfo import (
    document_of_book,
    examined_lorebook,
    read_lorebook,
    write_lorebook,
)
from personae.errors import InputError
from personae.records import Lorebook, LoreEntry

# What SillyTavern writes for an entry of its own.
TAVERN = {
    "key": ["dragon"], "keysecondary": ["gold"], "comment": "Smaug", "content": "It sleeps.",
    "constant": False, "vectorized": False, "selective": True, "selectiveLogic": 0,
    "addMemo": True, "order": 100, "position": 0, "disable": False, "ignoreBudget": False,
    "excludeRecursion": False, "preventRecursion": False, "matchPersonaDescription": False,
    "matchCharacterDescription": False, "matchCharacterPersonality": False,
    "matchCharacterDepthPrompt": False, "matchScenario": False, "matchCreatorNotes": False,
    "delayUntilRecursion": 0, "probability": 100, "useProbability": True, "depth": 4,
    "outletName": "", "group": "", "groupOverride": False, "groupWeight": 100,
    "scanDepth": None, "caseSensitive": None, "matchWholeWords": None, "useGroupScoring": None,
    "automationId": "", "role": 0, "sticky": None, "cooldown": None, "delay": None,
    "triggers": [], "displayIndex": 0, "uid": 0,
}  # fmt: skip

texts = st.sampled_from(["", "a", "b, c", "/x/i", "中文", "{{char}}", "@@depth 1\nx", "personae"])
values: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, False, 0, 1, 2.5, -3, "", "7", [], [1, None], {}, {"a": {"b": []}}]
)
unknown = st.dictionaries(texts.map(lambda name: f"x_{name}"), values, max_size=2)
some = settings(max_examples=40)
world_entries = st.builds(
    lambda known, extensions, other: {**known, **extensions, **other},
    st.fixed_dictionaries(
        {},
        optional={
            "uid": st.integers(0, 5),
            "key": st.lists(texts, max_size=3),
            "keysecondary": st.lists(texts, max_size=3) | st.none(),
            "comment": texts | st.none(),
            "content": texts,
            "constant": st.booleans() | st.none(),
            "selective": st.booleans(),
            "order": st.sampled_from([-9, 0, 100, 0.5, "7"]),
            "disable": st.booleans() | st.sampled_from([0, 1, "yes"]),
            **{name: values for name, _, _ in worldinfo._EXTENSIONS},
        },
    ),
    st.fixed_dictionaries({}, optional={"extensions": st.dictionaries(texts, values, max_size=3)}),
    unknown
    | st.fixed_dictionaries({}, optional={"keys": values, "name": texts, "priority": values}),
)
worlds = st.builds(
    lambda entries, known, other: {"entries": entries, **known, **other},
    st.dictionaries(st.integers(0, 9).map(str) | texts, world_entries, max_size=4),
    st.fixed_dictionaries(
        {}, optional={"name": texts | st.none(), "description": texts, "extensions": st.just({})}
    ),
    unknown,
)
books = st.fixed_dictionaries(
    {
        "extensions": st.dictionaries(texts, values, max_size=2),
        "entries": st.lists(
            st.builds(
                lambda must, may, other: {**must, **may, **other},
                st.fixed_dictionaries(
                    {
                        "keys": st.lists(texts, max_size=3),
                        "content": texts,
                        "extensions": st.dictionaries(texts, values, max_size=2),
                        "enabled": st.booleans(),
                        "insertion_order": st.sampled_from([-9, 0, 7, 0.5, -2.25]),
                        "use_regex": st.booleans(),
                    }
                ),
                st.fixed_dictionaries(
                    {},
                    optional={
                        "case_sensitive": st.booleans() | st.none(),
                        "constant": st.booleans(),
                        "name": texts,
                        "priority": st.integers(-9, 9) | texts,
                        "id": st.integers(0, 9) | texts,
                        "comment": texts,
                        "selective": st.booleans(),
                        "secondary_keys": st.lists(texts, max_size=2),
                        "position": st.sampled_from(["before_char", "after_char", ""]),
                    },
                ),
                unknown,
            ),
            max_size=3,
        ),
    },
    optional={
        "name": texts,
        "description": texts,
        "scan_depth": st.integers(0, 9),
        "token_budget": st.integers(0, 999) | st.none(),
        "recursive_scanning": st.booleans(),
        "x_other": values,
    },
)


def wrote(folder: Path, document: Any, name: str = "book.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def come_back(folder: Path, document: Any, to: worldinfo.Form) -> Any:
    path = wrote(folder, document)
    write_lorebook(read_lorebook(path), path, to)
    return json.loads(path.read_text(encoding="utf-8"))


def assert_nothing_is_lost(was: dict[str, Any], now: dict[str, Any]) -> None:
    for name, value in was.items():
        if name == "entries" and isinstance(value, dict):
            assert list(now["entries"]) == list(value)
            for key, entry in value.items():
                assert_nothing_is_lost(entry, now["entries"][key])
        elif name == "entries":
            for entry, other in zip(value, now["entries"], strict=True):
                assert_nothing_is_lost(entry, other)
        else:
            assert spelt(now[name]) == spelt(value), name


def spelt(value: Any) -> str:
    """One spelling of a JSON value, 1 and 1.0 being one number."""
    return json.dumps(json.loads(json.dumps(value), parse_int=float), sort_keys=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("books")


def test_a_world_info_entry_as_sillytavern_writes_it_comes_back_to_the_letter(tmp_path: Path):
    world = {"entries": {"0": TAVERN, "7": {**TAVERN, "uid": 7, "role": 2, "position": 4}}}
    assert come_back(tmp_path, world, "worldinfo") == world


@some
@given(world=worlds)
def test_no_field_of_a_world_info_file_is_lost(folder: Path, world: dict[str, Any]):
    assert_nothing_is_lost(world, come_back(folder, world, "worldinfo"))


@some
@given(book=books, frame=st.fixed_dictionaries({}, optional={"x_made": texts}))
def test_no_field_of_a_lorebook_file_is_lost(
    folder: Path, book: dict[str, Any], frame: dict[str, Any]
):
    document = {"spec": "lorebook_v3", **frame, "data": book}
    back = come_back(folder, document, "lorebook_v3")
    assert_nothing_is_lost(book, back.pop("data"))
    assert back == {"spec": "lorebook_v3", **frame}


@some
@given(world=worlds)
def test_a_world_info_file_survives_a_stay_as_a_lorebook_file(folder: Path, world: dict[str, Any]):
    between = come_back(folder, world, "lorebook_v3")
    assert_nothing_is_lost(world, come_back(folder, between, "worldinfo"))


@some
@given(book=books)
def test_what_was_written_once_is_written_the_same_again(folder: Path, book: dict[str, Any]):
    document = {"spec": "lorebook_v3", "data": book}
    for form in ("lorebook_v3", "worldinfo"):
        once = come_back(folder, document, form)
        assert come_back(folder, once, form) == once


def test_a_world_info_entry_means_in_a_card_what_sillytavern_makes_of_it(tmp_path: Path):
    world = {"entries": {"3": {**TAVERN, "uid": 3, "scanDepth": 2, "selectiveLogic": 3, "role": 1}}}
    entry = read_lorebook(wrote(tmp_path, world)).entries[0]
    assert (entry.keys, entry.secondary_keys, entry.id) == (("dragon",), ("gold",), 3)
    assert (entry.insertion_order, entry.enabled, entry.position) == (100, True, "before_char")
    assert entry.extensions["selectiveLogic"] == 3
    assert entry.extensions["scan_depth"] == 2
    assert entry.extensions["role"] == 1
    assert entry.extra == {"addMemo": True}


def test_a_changed_field_is_written_as_changed_and_not_as_it_was_found(tmp_path: Path):
    path = wrote(tmp_path, {"entries": {"0": {**TAVERN, "order": "7", "comment": None}}})
    book = read_lorebook(path)
    assert book.entries[0].insertion_order == 7
    entry = book.entries[0].model_copy(update={"insertion_order": 8})
    made = document_of_book(book.model_copy(update={"entries": (entry,)}), "worldinfo")
    assert made["entries"]["0"]["order"] == 8
    assert made["entries"]["0"]["comment"] is None  # not touched


def test_an_entry_of_a_card_becomes_a_whole_world_info_entry():
    book = Lorebook(entries=(LoreEntry(keys=("a/b",), content="x", use_regex=True, id=4),))
    made = document_of_book(book, "worldinfo")["entries"]["4"]
    assert TAVERN.keys() <= made.keys()
    assert made["key"] == ["/a\\/b/i"]
    assert made["position"] == 1


def test_a_pattern_fires_the_same_before_and_after_it_went_to_sillytavern(tmp_path: Path):
    book = Lorebook(entries=(LoreEntry(keys=("drag(on|ons)$",), content="x", use_regex=True),))
    write_lorebook(book, tmp_path / "w.json", "worldinfo")
    back = read_lorebook(tmp_path / "w.json")
    for heard in ("Two DRAGONS", "dragonfly"):
        was = activate(book, [heard], seed=0, turn=0).matched
        assert activate(back, [heard], seed=0, turn=0).matched == was


def test_two_entries_with_one_number_are_both_written():
    entries = (LoreEntry(id=1, content="a"), LoreEntry(id=1, content="b"))
    made = document_of_book(Lorebook(entries=entries), "worldinfo")["entries"]
    assert sorted(e["content"] for e in made.values()) == ["a", "b"]


def test_a_cards_lorebook_taken_out_of_the_card_is_read(tmp_path: Path):
    path = wrote(tmp_path, {"name": "B", "entries": [{"keys": ["k"], "content": "c"}]})
    assert read_lorebook(path).entries[0].keys == ("k",)


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ([], "a lorebook is a JSON object"),
        ({"name": "x"}, "it has no `entries`"),
        ({"lorebookVersion": 5, "entries": [{"text": "T", "keys": ["x"]}]}, "of another program"),
        ({"kind": "memory", "entries": [{"entry": "E", "keywords": ["x"]}]}, "of another program"),
        ({"spec": "chara_card_v3", "data": {"name": "x"}}, "this is a card"),
        ({"entries": {"4": "x"}}, "entries[4]: an entry is an object"),
        ({"entries": {"4": {"key": 5}}}, "entries[4].key: a list of texts belongs here"),
        ({"entries": {"4": {"content": []  , "key": {"a": 1}}}}, "entries[4].key"),
        ({"spec": "lorebook_v3", "data": {"entries": [{"content": {"a": 1}}]}}, "data.entries[0].content"),
    ],
)  # fmt: skip
def test_what_is_no_lorebook_is_refused_by_file_and_place(tmp_path: Path, document: Any, says: str):
    path = wrote(tmp_path, document, "mine.json")
    with pytest.raises(InputError) as error:
        read_lorebook(path)
    assert str(path) in str(error.value)
    assert says in str(error.value)
    assert error.value.mend


def test_a_book_of_too_many_entries_is_refused(tmp_path: Path):
    entries: list[Any] = [{}] * (worldinfo.MAX_ENTRIES + 1)
    with pytest.raises(InputError, match=r"20,001 entries"):
        read_lorebook(wrote(tmp_path, {"entries": entries}))


@pytest.mark.parametrize(
    "text", ["", "{", "nul\0", "[" * 5000, '{"entries": {"0": {"order": NaN}}}']
)
def test_a_file_that_is_not_json_is_refused(tmp_path: Path, text: str):
    path = tmp_path / "broken.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"broken\.json"):
        read_lorebook(path)


def test_an_unknown_form_is_refused():
    with pytest.raises(InputError, match="lorebook_v3, worldinfo"):
        document_of_book(Lorebook(), "yaml")  # type: ignore[arg-type]  # as a caller might


def test_what_was_mended_in_reading_is_told_in_the_words_of_the_file(tmp_path: Path):
    path = wrote(tmp_path, {"entries": {"2": {**TAVERN, "order": "7"}}})
    places = [f.place for f in examined_lorebook(path)[1]]
    assert places == ["entries[2].order"]
