"""The starter cast: whole, in its own language, each voice its own, and playable as it is."""

import json
import re
import zipfile
from collections import Counter
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from personae.characters.card import card_from_bytes, card_of, read_character
from personae.characters.convert import write_card
from personae.characters.lint import lint
from personae.characters.lorebook import activate
from personae.characters.starter import (
    card_named,
    starter,
    starter_cast,
    starter_ids,
    starter_scenes,
)
from personae.errors import InputError
from personae.records import Character, Language, Scene

ENGLISH = {"sherlock-holmes", "alice", "ada-lovelace", "don-quixote"}
CHINESE = {"sun-wukong", "lin-daiyu", "zhuge-liang", "li-qingzhao"}
DISC = {f"disc-{kind}" for kind in ("dominant", "influential", "steady", "compliant")}
HAN = re.compile(r"[\u4e00-\u9fff]")
LATIN_WORD = re.compile(r"(?!AI|DISC)[A-Za-z]{2,}")

every = pytest.mark.parametrize("name", starter_ids())
every_scene = pytest.mark.parametrize("scene", starter_scenes(), ids=lambda scene: scene.id)


def replies(name: str) -> list[str]:
    return [turn.character for turn in starter(name).ours.dialogue]


def words(text: str) -> set[str]:
    """Three-character pieces: they tell sentences apart in either language."""
    plain = re.sub(r"[\W_]+", "", text.casefold())
    return {plain[i : i + 3] for i in range(len(plain) - 2)}


def test_the_cast_is_the_eight_and_the_four_types_in_both_languages() -> None:
    assert set(starter_ids()) == ENGLISH | CHINESE | DISC | {f"{name}-zh" for name in DISC}
    assert set(starter_ids("en")) == ENGLISH | DISC
    assert set(starter_cast("zh")) == CHINESE | {f"{name}-zh" for name in DISC}


def test_a_starter_is_found_with_and_without_its_scheme() -> None:
    assert starter("starter:alice") == starter("alice")
    assert starter("alice").name == "Alice"


@pytest.mark.parametrize("name", ["nobody", "../starter", "starter:", "alice.json", ""])
def test_an_unknown_starter_is_refused_with_the_names_there_are(name: str) -> None:
    with pytest.raises(InputError, match="There are: ada-lovelace, alice"):
        starter(name)


def test_a_scene_names_its_cards_by_starter_or_by_path(tmp_path: Path) -> None:
    write_card(card_of(starter("alice")), tmp_path / "cards.json")
    (tmp_path / "scenes").mkdir()
    assert card_named("starter:alice", tmp_path) == starter("alice")
    assert card_named("cards.json", tmp_path) == starter("alice")
    assert card_named("../cards.json", tmp_path / "scenes") == starter("alice")
    for absolute in (str(tmp_path / "cards.json"), "/etc/passwd", "C:\\cards\\a.json"):
        with pytest.raises(InputError, match="absolute path"):
            card_named(absolute, tmp_path)
    with pytest.raises(InputError, match="no such file"):
        card_named("nobody.json", tmp_path)


@every
def test_a_shipped_card_reads_as_v3_and_its_check_finds_nothing(name: str, tmp_path: Path) -> None:
    raw = files("personae.data").joinpath("cast", f"{name}.json").read_bytes()
    path = tmp_path / f"{name}.json"
    path.write_bytes(raw)
    card = card_from_bytes(raw, path=name)
    assert card.version == "v3"
    assert lint(card) == list(card.findings) == []
    assert read_character(path) == starter(name)


@every
def test_a_shipped_card_comes_back_from_a_charx_and_from_its_record(
    name: str, tmp_path: Path
) -> None:
    character = starter(name)
    again = card_from_bytes(card_of(character).to_bytes(), path=name)
    assert again.character == character
    write_card(card_of(character), tmp_path / "card.charx")
    assert read_character(tmp_path / "card.charx") == character


@every
def test_a_shipped_card_says_all_that_a_role_player_needs(name: str) -> None:
    character = starter(name)
    for text in (character.description, character.personality, character.scenario,
                 character.first_mes, character.mes_example, character.ours.voice):  # fmt: skip
        assert text.strip()
    assert character.creator == "Personae"
    assert character.creator_notes == ""
    assert "{{char}}:" in character.mes_example
    assert "{{user}}:" in character.mes_example
    assert len(character.ours.secrets) >= 3
    assert character.tags


@every
def test_there_are_forty_turns_and_none_twice(name: str) -> None:
    turns = starter(name).ours.dialogue
    assert len(turns) >= 40
    assert len({turn.user for turn in turns}) == len({t.character for t in turns}) == len(turns)


@every
def test_no_two_replies_are_alike_and_their_lengths_vary(name: str) -> None:
    found = [(text, words(text)) for text in replies(name) if len(words(text)) >= 8]
    for n, (text, mine) in enumerate(found):
        for other, theirs in found[:n]:
            assert len(mine & theirs) < 0.4 * len(mine | theirs), (text, other)
    lengths = sorted(map(len, replies(name)))
    assert lengths[-1] > 2 * lengths[0]
    openings = Counter(re.split(r"\W+", text.strip("*… "))[0] for text in replies(name))
    assert openings.most_common(1)[0][1] <= 0.3 * len(lengths)


@every
def test_replies_are_no_assistant_and_no_other_character(name: str) -> None:
    told = " ".join(replies(name))
    assert not re.search(r"as an? (AI|language model)|作为一?[个名]?(人工智能|语言模型)", told)
    others = {text for other in starter_ids() if other != name for text in replies(other)}
    assert not others & set(replies(name))


@every
def test_every_text_is_in_the_characters_language(name: str) -> None:
    character = starter(name)
    ours = character.ours
    texts = [character.description, character.personality, character.first_mes, ours.voice,
             *(s.fact for s in ours.secrets), *(t.user for t in ours.dialogue),
             *(t.character for t in ours.dialogue)]  # fmt: skip
    for text in texts:
        if ours.language == "en":
            assert not HAN.search(text)
        else:
            letters = len("".join(LATIN_WORD.findall(text)))
            assert letters <= len(HAN.findall(text)) / 4, text


@every
def test_a_secret_is_the_characters_own_and_names_people_of_its_card(name: str) -> None:
    character = starter(name)
    book = character.character_book
    assert book is not None
    told = " ".join((character.description, *(e.content for e in book.entries),
                     *(key for e in book.entries for key in e.keys)))  # fmt: skip
    for secret in character.ours.secrets:
        assert character.name in secret.known_by or character.called in secret.known_by
        for person in set(secret.known_by) - {character.name, character.called}:
            assert person in told or person.split()[-1] in told, person


@every
def test_no_secret_stands_in_what_anyone_can_read(name: str) -> None:
    character = starter(name)
    book = character.character_book
    assert book is not None
    told = " ".join((character.description, character.personality, character.scenario,
                     character.first_mes, *(e.content for e in book.entries)))  # fmt: skip
    for secret in character.ours.secrets:
        assert secret.fact not in told


@every
def test_each_key_of_the_lorebook_draws_its_entry(name: str) -> None:
    character = starter(name)
    book = character.character_book
    assert book is not None
    assert len(book.entries) >= 8
    for index, entry in enumerate(book.entries):
        for key in entry.keys:
            said = f"What of {key}?" if character.ours.language == "en" else f"说说{key}吧。"
            assert index in activate(book, [said], seed=0, turn=0).matched, key
    quiet = "It rains." if character.ours.language == "en" else "下雨了。"
    assert not activate(book, [quiet], seed=0, turn=0).fired


@every
def test_some_of_the_lorebook_is_called_by_the_characters_own_dialogue(name: str) -> None:
    book = starter(name).character_book
    assert book is not None
    said = [text for turn in starter(name).ours.dialogue for text in (turn.user, turn.character)]
    drawn = {i for text in said for i in activate(book, [text], seed=0, turn=0).matched}
    assert len(drawn) >= 3


def pieces(text: str) -> Counter[str]:
    plain = " ".join(["", *text.casefold().split(), ""])
    return Counter(plain[i : i + n] for n in (1, 2, 3, 4) for i in range(len(plain) - n + 1))


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_reply_alone_gives_its_speaker_away_far_above_chance(language: Language) -> None:
    """Each reply against the mean of each speaker's others: letters alone, no understanding."""
    said = [(n, pieces(text)) for n in starter_ids(language) for text in replies(n)]
    spread = Counter(piece for _, found in said for piece in found)
    column = {p: i for i, p in enumerate(p for p, count in spread.items() if count > 1)}
    rows = np.zeros((len(said), len(column)))
    for row, (_, found) in zip(rows, said, strict=True):
        for piece, count in found.items():
            if piece in column:
                row[column[piece]] = (1 + np.log(count)) * np.log(len(said) / spread[piece])
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    speakers = np.array([n for n, _ in said])
    names = starter_ids(language)
    whole = {n: rows[speakers == n].sum(axis=0) for n in names}

    def likeness(row: np.ndarray, name: str, own: str) -> float:
        mean = whole[name] - row if name == own else whole[name]
        return float(row @ mean / np.linalg.norm(mean))

    right = sum(
        max(names, key=lambda n: likeness(row, n, own)) == own
        for row, own in zip(rows, speakers, strict=True)
    )
    assert right / len(said) > 4 / len(names)


# Scenes ------------------------------------------------------------------------------------------


def test_twelve_scenes_are_shipped_and_the_change_of_weather_in_both_languages() -> None:
    ids = [scene.id for scene in starter_scenes()]
    assert len(set(ids)) == len(ids) == 14
    assert all(name.startswith("starter/") for name in ids)
    assert [s.id for s in starter_scenes("zh")][-1] == "starter/disc-weather-zh"
    assert [s.id for s in starter_scenes("en")][-1] == "starter/disc-weather-en"
    assert {s.language for s in starter_scenes("en")} == {"en"}


@every_scene
def test_a_scene_has_two_to_four_characters_who_want_something(scene: Scene) -> None:
    assert 2 <= len(scene.characters) <= 4
    assert all(c.goal and c.state and c.position and c.description for c in scene.characters)
    assert scene.environment.time
    assert scene.environment.location
    assert scene.environment.description
    assert scene.event
    assert all((not c.place) == (not scene.characters[0].place) for c in scene.characters)


@every_scene
def test_a_scenes_cards_are_there_and_speak_its_language(scene: Scene) -> None:
    carded = [c for c in scene.characters if c.card]
    assert len(carded) >= 1
    for one in carded:
        assert one.card is not None
        character = starter(one.card)
        assert one.card.startswith("starter:")
        assert one.name == character.name
        assert character.ours.language == scene.language


@every_scene
def test_no_secret_of_a_scene_stands_in_the_open(scene: Scene) -> None:
    opened = json.dumps([scene.event, scene.environment.to_dict(),
                         *(c.description for c in scene.characters)], ensure_ascii=False)  # fmt: skip
    for secret in scene.secrets:
        assert secret.fact not in opened
        assert 0 < len(secret.known_by) < len(scene.characters)


def test_half_of_the_scenes_hold_secrets_and_some_have_two_places() -> None:
    scenes = starter_scenes()
    assert sum(bool(s.secrets) for s in scenes) >= len(scenes) / 2
    for language in ("en", "zh"):
        divided = [s for s in starter_scenes(language) if len({c.place for c in s.characters}) > 1]
        assert divided, language


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_four_types_meet_in_the_change_of_weather(language: str) -> None:
    (scene,) = [s for s in starter_scenes() if s.id == f"starter/disc-weather-{language}"]
    suffix = "-zh" if language == "zh" else ""
    assert {c.card for c in scene.characters} == {f"starter:{name}{suffix}" for name in DISC}


@every
def test_everyone_has_a_part_in_some_scene(name: str) -> None:
    played = {c.card for scene in starter_scenes() for c in scene.characters}
    assert f"starter:{name}" in played


# Kinds of use ------------------------------------------------------------------------------------


def test_the_same_questions_are_put_to_the_four_types() -> None:
    for suffix in ("", "-zh"):
        asked = [
            {re.sub(r"\W|韩哥|晓阳|沈姐|周工|Rhona|Danny|Grace|Martin", "", t.user)
             for t in starter(f"{name}{suffix}").ours.dialogue}
            for name in sorted(DISC)
        ]  # fmt: skip
        assert len(set.intersection(*asked)) >= 10


def test_a_wheel_holds_the_cast(tmp_path: Path) -> None:
    """Hatchling packs what lies in the package, JSON and JSONL among it."""
    builder = pytest.importorskip("hatchling.builders.wheel")
    root = Path(__file__).resolve().parents[2]
    made = next(
        iter(builder.WheelBuilder(str(root)).build(directory=str(tmp_path), versions=["standard"]))
    )
    with zipfile.ZipFile(made) as wheel:
        names = set(wheel.namelist())
    cast = {f"personae/data/cast/{name}.json" for name in starter_ids()}
    scenes = {f"personae/data/cast/scenes.{part}.jsonl" for part in ("en", "zh", "disc")}
    assert cast | scenes <= names


def test_a_starter_is_read_once_and_cannot_be_changed() -> None:
    character: Character = starter("alice")
    assert starter("alice") is character
    with pytest.raises(ValueError, match="frozen"):
        character.name = "Mabel"  # type: ignore[misc]  # that is the point
