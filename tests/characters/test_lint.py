"""What is said of a card, and what is not said of a sound one."""

import json
from typing import Any

import pytest

from personae.characters.card import Card, card_from_bytes
from personae.characters.lint import ALWAYS_TOKENS, lint, tokens_of
from personae.characters.reading import Finding
from tests.characters import samples


def read(value: Any) -> Card:
    return card_from_bytes(json.dumps(value).encode(), path="card.json")


def found(value: Any) -> list[Finding]:
    return lint(read(value))


def v3(**fields: Any) -> dict[str, Any]:
    card = samples.v3()
    card["data"] |= fields
    return card


def entry(**fields: Any) -> dict[str, Any]:
    card = samples.v3()
    card["data"]["character_book"]["entries"][0] |= fields
    return card


def test_sound_cards_of_v2_and_v3_have_nothing_said_of_them() -> None:
    assert found(samples.v2()) == []
    assert found(samples.v3()) == []


def test_a_sound_v1_card_is_told_of_its_age_alone() -> None:
    assert [f.level for f in found(samples.v1())] == ["hint"]


CASES: list[tuple[dict[str, Any], str, str, str]] = [
    (v3(tags=None), "error", "data.tags", "null"),
    ({**v3(), "spec_version": "3.5"}, "hint", "spec_version", "newer"),
    ({**v3(), "spec_version": 3}, "error", "spec_version", "not '3.0'"),
    ({**v3(), "spec": "chara_card_v9"}, "error", "spec", "read as chara_card_v3"),
    (v3(zzz=1), "hint", "data", "`zzz`"),
    (v3(first_mes=" "), "hint", "data.first_mes", "no greeting"),
    (v3(first_mes="Hi.\n{{user}}: Hello!"), "hint", "data.first_mes", "speaks or acts for"),
    (v3(first_mes="<USER>：你好"), "hint", "data.first_mes", "speaks or acts for"),
    (v3(first_mes="{{user}} nods slowly."), "hint", "data.first_mes", "speaks or acts for"),
    (v3(first_mes="{{user}}点了点头。"), "hint", "data.first_mes", "speaks or acts for"),
    (v3(alternate_greetings=["", "{{user}}: no"]), "hint", "data.alternate_greetings[1]", "acts"),
    (v3(mes_example=""), "hint", "data.mes_example", "no example"),
    (v3(mes_example="{{char}}: Hello"), "hint", "data.mes_example", "<START>"),
    (v3(mes_example="<START>\n{{user}}: Hello"), "hint", "data.mes_example", "no voice"),
    (
        v3(mes_example="<START>\n{{user}}: I go on and on\n{{char}}: Hm."),
        "hint",
        "data.mes_example",
        "more of it",
    ),
    (v3(description="{{weather}} {{roll:x}}"), "hint", "data.description", "{{weather}}"),
    (v3(description="{{original}}"), "hint", "data.description", "{{original}}"),
    (v3(description="", personality=""), "hint", "data.description", "nothing describes"),
    (v3(description="word " * 2000), "hint", "the card", "every prompt holds"),
    (v3(nickname=" "), "hint", "data.nickname", "blank"),
    (
        v3(extensions={"depth_prompt": {"prompt": "Be brief.", "depth": 4, "role": "system"}}),
        "hint",
        "extensions.depth_prompt",
        "reaches no prompt",
    ),
    (v3(creator_notes_multilingual={"zh-CN": "x"}), "error", "multilingual", "ISO 639-1"),
    (v3(extensions={"personae": {"voice": 3}}), "error", "data.extensions.personae", "voice"),
    (
        v3(
            first_mes="I stole it.",
            extensions={"personae": {"secrets": [{"fact": "I stole it.", "known_by": ["Ada"]}]}},
        ),
        "error",
        "secrets[0]",
        "same words",
    ),
    (
        v3(extensions={"personae": {"secrets": [{"fact": "x", "known_by": []}]}}),
        "hint",
        "secrets[0]",
        "nobody",
    ),
    (entry(keys=[]), "error", "entries[0].keys", "never fires"),
    (entry(keys=["a", " "]), "error", "entries[0].keys", "an empty key"),
    (entry(keys=["("], use_regex=True), "error", "entries[0].keys", "("),
    (entry(enabled=False), "hint", "entries[0].enabled", "switched off"),
    (entry(selective=True), "hint", "entries[0].selective", "no secondary key"),
    (entry(content="@@nonsense 3\nx"), "hint", "entries[0].content", "@@nonsense"),
    (entry(content="{{nope}}"), "hint", "entries[0].content", "{{nope}}"),
    (entry(position="top"), "error", "entries[0].position", "before_char"),
]


@pytest.mark.parametrize(("value", "level", "place", "said"), CASES)
def test_what_is_wrong_is_said_with_its_place(
    value: dict[str, Any], level: str, place: str, said: str
) -> None:
    match = [f for f in found(value) if place in f.place and said in f.message]
    assert [f.level for f in match] == [level]


def test_fields_that_a_version_demands_are_missed() -> None:
    value = samples.v3()
    del value["data"]["tags"], value["data"]["group_only_greetings"]
    for one in value["data"]["character_book"]["entries"]:
        del one["use_regex"]
    messages = [f.message for f in found(value) if f.level == "error"]
    assert "without `tags`, `group_only_greetings`" in messages
    assert "without `use_regex`: entries[0], entries[1]" in messages
    assert not [f for f in found(samples.v2()) if "use_regex" in f.message]


def test_an_entry_larger_than_the_budget_of_its_book_never_fits() -> None:
    value = samples.v3()
    value["data"]["character_book"]["token_budget"] = 4
    assert {f.place for f in found(value) if "never fits" in f.message} == {
        "data.character_book.entries[0].content",
        "data.character_book.entries[1].content",
    }


ICON = {"type": "icon", "uri": "ccdefault:", "name": "main", "ext": "png"}


@pytest.mark.parametrize(
    ("assets", "level", "said"),
    [
        ([ICON, ICON], "error", "2 assets of type icon"),
        ([{**ICON, "name": "a"}, {**ICON, "name": "b"}], "error", "0 assets of type icon"),
        ([{**ICON, "uri": "embeded://a.png"}], "error", "in none"),
        ([{**ICON, "uri": "__asset:7"}], "error", "no chunk"),
        ([{**ICON, "uri": "https://a/b", "ext": ".PNG"}], "error", "lower case"),
        ([{**ICON, "uri": "ftp://a/b"}], "hint", "not a URI"),
        ([{**ICON, "uri": "http://a/b"}], "hint", "https"),
        ([{**ICON, "type": "mine"}], "hint", "x_"),
    ],
)
def test_assets_follow_the_rules_of_v3(assets: list[Any], level: str, said: str) -> None:
    match = [f for f in found(v3(assets=assets)) if said in f.message]
    assert {f.level for f in match} == {level}


def test_errors_come_first_and_nothing_is_said_twice() -> None:
    value = v3(first_mes="", tags=None, zzz=1)
    said = found(value)
    assert [f.level for f in said] == sorted((f.level for f in said), key="error hint".index)
    assert len(set(said)) == len(said)


def test_tokens_are_counted_by_where_they_go() -> None:
    tokens = tokens_of(read(v3(description="a" * 400, scenario="中" * 15, system_prompt="",
                               personality="")).character)  # fmt: skip
    assert tokens.always == 100 + 10
    assert tokens.greeting == round(len("Good evening.") / 4)
    assert tokens.constant == 0
    assert tokens.lorebook > 0
    assert tokens.always < ALWAYS_TOKENS
