"""Cards at play: profile, secrets under the scene's names, lore out of what was perceived."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from personae.characters.starter import starter, starter_scenes
from personae.errors import InputError
from personae.records import Character, Environment, Scene, SceneCharacter
from personae.world.cast import find_cards, players, read_cards, write_cards
from tests.world.stage import played, scripted, text_of

CARD: dict[str, Any] = {
    "spec": "chara_card_v3",
    "spec_version": "3.0",
    "data": {
        "name": "Dr. John Watson",
        "nickname": "Watson",
        "description": "{{char}} served in Afghanistan.",
        "personality": "Loyal.",
        "scenario": "SCENARIO of the card.",
        "creator_notes": "NOTES for people.",
        "extensions": {
            "personae": {
                "voice": "Plain and warm.",
                "secrets": [
                    {"fact": "The wound is in the leg", "known_by": ["Watson", "Sherlock Holmes"]},
                    {"fact": "Mary has written", "known_by": ["dr. john  watson"]},
                    {"fact": "Nobody here knows this", "known_by": ["Mycroft"]},
                ],
            }
        },
        "character_book": {
            "scan_depth": 10,
            "entries": [
                {"keys": ["violin"], "content": "The violin is a Stradivarius.", "enabled": True,
                 "insertion_order": 0, "extensions": {}, "use_regex": False},
            ],
            "extensions": {},
        },
    },
}  # fmt: skip


def case(**fields: Any) -> Scene:
    return Scene(
        **{
            "id": "baker",
            "event": "A letter has come.",
            "environment": Environment(description="A room."),
            "characters": (
                SceneCharacter(name="Holmes", card="starter:sherlock-holmes"),
                SceneCharacter(name="The Doctor", card="cards/watson.json"),
                SceneCharacter(name="Wiggins"),
            ),
            **fields,
        }
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "cards").mkdir()
    (tmp_path / "cards" / "watson.json").write_text(json.dumps(CARD), encoding="utf-8")
    return tmp_path


def by_reference(scene: Scene, folder: Path) -> dict[str, Character]:
    return {c.card: c.character for c in find_cards([scene], folder)}


def test_cards_are_found_by_starter_id_and_beside_the_scene_file_and_kept_without_loss(
    folder: Path,
):
    cards = find_cards([case(), case(id="again")], folder)
    assert [c.card for c in cards] == ["starter:sherlock-holmes", "cards/watson.json"]
    assert cards[0].character == starter("sherlock-holmes")
    assert cards[1].character.called == "Watson"
    write_cards(cards, folder / "cards.jsonl")
    assert read_cards(folder / "cards.jsonl") == cards
    assert len({c.hash for c in cards}) == 2


@pytest.mark.parametrize(
    ("card", "why"),
    [
        ("starter:nobody", "no 'nobody'"),
        ("cards/absent.json", "there is no such file"),
        ("/etc/passwd", "absolute"),
        ("C:\\cards\\x.json", "absolute"),
    ],
)
def test_a_card_that_cannot_be_had_is_an_error_that_names_it(folder: Path, card: str, why: str):
    scene = case(characters=(SceneCharacter(name="Ann", card=card),))
    with pytest.raises(InputError, match=why):
        find_cards([scene], folder)


def test_a_profile_holds_the_card_and_neither_notes_nor_a_scenario_that_the_scene_replaces(
    folder: Path,
):
    scene = case()
    text = players(scene, by_reference(scene, folder), "en", 0)["The Doctor"].profile
    assert "Watson served in Afghanistan." in text
    assert "Plain and warm." in text
    assert "NOTES" not in text
    assert "SCENARIO" not in text
    bare = case(event="", environment=Environment())
    held = players(bare, by_reference(bare, folder), "en", 0)["The Doctor"].profile
    assert "SCENARIO of the card." in held


def test_a_cards_secrets_are_known_under_the_scenes_names_and_unknown_ones_stay_out(folder: Path):
    scene = case()
    found = players(scene, by_reference(scene, folder), "en", 0)
    assert {(s.fact, s.known_by) for s in found["The Doctor"].secrets} == {
        ("The wound is in the leg", ("Holmes", "The Doctor")),
        ("Mary has written", ("The Doctor",)),
    }
    assert "Wiggins" not in found


@pytest.mark.parametrize(("language", "mark"), [("en", ": "), ("zh", "：")])
async def test_whose_secret_a_cards_secret_is_stands_before_it_unless_it_says_so(
    folder: Path, language: Any, mark: str
):
    """Of "He is afraid of heights" nobody else would know who that is."""
    scene = case(language=language)
    given = json.loads(json.dumps(CARD))
    given["data"]["extensions"]["personae"]["secrets"] = [
        {"fact": "He is afraid of heights", "known_by": ["Watson", "Holmes"]},
        {"fact": "The Doctor owes money", "known_by": ["Watson", "Holmes"]},
    ]
    (folder / "cards" / "watson.json").write_text(json.dumps(given), encoding="utf-8")
    brought = players(scene, by_reference(scene, folder), language, 0)

    def blab(call: Any) -> dict[str, Any]:
        return {"affected": "Wiggins", "influence": "You hear that he is afraid of heights."}

    play, model = await played(scene, scripted(influence=blab), rounds=1, players=brought)
    holmes, narrator = (
        next(
            text_of(c)
            for c in model.calls
            if c.role == role and (role == "narrator" or c.meta["character"] == "Holmes")
        )
        for role in ("character", "narrator")
    )
    for prompt in (holmes, narrator):
        assert f"The Doctor{mark}He is afraid of heights" in prompt
        assert "The Doctor owes money" in prompt
        assert f"The Doctor{mark}The Doctor" not in prompt
    # What is told before it takes nothing from the fact, which must still not be given away.
    refused = [e.failure.detail or "" for e in play.events if e.failure is not None]
    assert refused
    assert "gives away to 'Wiggins'" in refused[0]


async def test_a_cards_secret_is_in_the_prompts_of_those_who_know_it_alone(folder: Path):
    scene = case()
    brought = players(scene, by_reference(scene, folder), "en", 0)
    _, model = await played(scene, rounds=2, players=brought)
    own = {
        name: [text_of(c) for c in model.calls if c.role == "character" and c.meta["character"] == name]
        for name in ("Holmes", "The Doctor", "Wiggins")
    }  # fmt: skip
    assert all("The wound is in the leg" in p for p in (*own["Holmes"], *own["The Doctor"]))
    assert all("Mary has written" in p for p in own["The Doctor"])
    assert not [p for p in (*own["Holmes"], *own["Wiggins"]) if "Mary has written" in p]
    assert not [p for p in own["Wiggins"] if "wound" in p]
    told = [text_of(c) for c in model.calls if c.role == "narrator"]
    assert all("The wound is in the leg" in p for p in told)
    assert not [c for c in model.calls if "Nobody here knows this" in text_of(c)]


async def test_lore_enters_the_prompt_once_its_key_has_been_perceived(folder: Path):
    scene = case()
    brought = players(scene, by_reference(scene, folder), "en", 0)

    def act(call: Any) -> dict[str, Any] | None:
        if (call.meta["character"], call.meta["round"]) != ("Wiggins", 1):
            return None
        return {"speech": "Where is the violin?", "action": ""}

    _, model = await played(scene, scripted(act=act), rounds=2, players=brought)
    prompts = {
        (c.meta["character"], c.meta["round"]): text_of(c)
        for c in model.calls
        if c.meta["step"] == "act"
    }
    assert "Stradivarius" not in prompts["The Doctor", 1]
    assert "Stradivarius" in prompts["The Doctor", 2]
    assert "Stradivarius" not in prompts["Wiggins", 2]


async def test_what_was_not_perceived_draws_no_lore(folder: Path):
    scene = case()
    brought = players(scene, by_reference(scene, folder), "en", 0)

    def act(call: Any) -> dict[str, Any] | None:
        if call.meta["character"] != "Wiggins":
            return None
        return {"speech": "Where is the violin?", "manner": "whisper", "to": ["Holmes"]}

    _, model = await played(scene, scripted(act=act), rounds=3, players=brought)
    doctor = [text_of(c) for c in model.calls if c.meta["character"] == "The Doctor" and c.role == "character"]  # fmt: skip
    assert doctor
    assert not [p for p in doctor if "Stradivarius" in p]


@pytest.mark.parametrize("scene", starter_scenes(), ids=lambda s: s.id)
async def test_every_starter_scene_plays_with_its_cards_and_keeps_its_secrets(scene: Scene):
    cards = {c.card: c.character for c in find_cards([scene], Path())}
    assert set(cards) == {c.card for c in scene.characters if c.card}
    brought = players(scene, cards, scene.language, 0)
    play, model = await played(scene, rounds=2, players=brought)
    assert play.complete
    assert not [e for e in play.events if e.kind == "failure"]
    secrets = {*scene.secrets, *(s for p in brought.values() for s in p.secrets)}
    assert secrets
    for call in model.calls:
        if call.role == "character":
            unknown = [s.fact for s in secrets if call.meta["character"] not in s.known_by]
            assert not [fact for fact in unknown if fact in text_of(call)]


def test_a_card_that_takes_anothers_name_does_not_learn_its_secrets(folder: Path) -> None:
    spy = {**CARD, "data": {**CARD["data"], "name": "Spy", "nickname": "Sherlock Holmes"}}
    (folder / "cards" / "spy.json").write_text(json.dumps(spy))
    scene = case(
        characters=(
            SceneCharacter(name="Spy", card="cards/spy.json"),
            SceneCharacter(name="Holmes", card="starter:sherlock-holmes"),
            SceneCharacter(name="The Doctor", card="cards/watson.json"),
        )
    )
    cards = {card.card: card.character for card in find_cards([scene], folder)}
    found = players(scene, cards, "en", 0)
    assert found["Holmes"].secrets
    assert all("Holmes" in secret.known_by for secret in found["Holmes"].secrets)
    assert not any("Spy" in secret.known_by for secret in found["Holmes"].secrets)
    (wound, _) = found["The Doctor"].secrets
    assert wound.known_by == ("The Doctor",), "of two Holmeses neither is meant"
