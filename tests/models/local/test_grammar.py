"""Bounds that let a small model finish, and never allow what the asked schema forbids."""

from __future__ import annotations

from typing import Any

import pytest

from personae.models.local.grammar import bounded, grammar
from personae.records import Call, Message, ReplySchema


def call(body: dict[str, Any], text: str = "Judge this answer.") -> Call:
    return Call(
        role="judge",
        model="local",
        messages=(Message(role="user", content=text),),
        reply_schema=ReplySchema(name="reply", body=body),
    )


VERDICT = {
    "type": "object",
    "properties": {
        "justification": {"type": "string"},
        "score": {"type": "integer", "minimum": 1, "maximum": 5},
    },
    "required": ["justification", "score"],
}


def test_a_string_gets_four_fifths_of_the_tokens_at_two_characters_each() -> None:
    found = bounded(call(VERDICT), 100)
    assert found["properties"]["justification"]["maxLength"] == 160
    assert found["properties"]["score"] == VERDICT["properties"]["score"]  # type: ignore[index]


def test_chinese_has_fewer_characters_to_a_token() -> None:
    found = bounded(call(VERDICT, "请评价这个回答,并给出理由。"), 100)
    assert found["properties"]["justification"]["maxLength"] == 48


def test_a_large_vocabulary_has_more_chinese_to_a_token() -> None:
    found = bounded(call(VERDICT, "请评价这个回答,并给出理由。"), 100, vocabulary=151_936)
    assert found["properties"]["justification"]["maxLength"] == 96


def test_strings_share_the_tokens_as_the_schema_shares_out_their_lengths() -> None:
    wide, narrow = {"type": "string", "maxLength": 900}, {"type": "string", "maxLength": 100}
    body = {"type": "object", "properties": {"result": wide, "place": narrow}}
    found = bounded(call(body), 125)["properties"]  # 125 tokens: 200 characters for a thousand
    assert (found["result"]["maxLength"], found["place"]["maxLength"]) == (180, 20)


def test_where_there_are_tokens_enough_the_schema_stays() -> None:
    body = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 50}}}
    assert bounded(call(body), 1000)["properties"]["a"]["maxLength"] == 50


def test_strings_of_an_array_share_the_tokens() -> None:
    body = {"type": "array", "items": {"type": "string"}, "maxItems": 4}
    assert bounded(call(body), 100)["items"]["maxLength"] == 40


def test_an_array_without_a_bound_gets_one_but_never_below_its_minimum() -> None:
    assert bounded(call({"type": "array", "items": {"type": "integer"}}), 100)["maxItems"] == 16
    body = {"type": "array", "items": {"type": "integer"}, "minItems": 30}
    assert bounded(call(body), 100)["maxItems"] == 30


def test_what_the_schema_bounds_itself_is_never_widened() -> None:
    narrow = {"type": "string", "maxLength": 5}
    assert (
        bounded(call({"type": "object", "properties": {"a": narrow}}), 100)["properties"]["a"][
            "maxLength"
        ]
        == 5
    )
    long = {"type": "string", "minLength": 1000}
    assert (
        bounded(call({"type": "object", "properties": {"a": long}}), 100)["properties"]["a"][
            "maxLength"
        ]
        == 1000
    )


@pytest.mark.parametrize("node", [{"enum": ["a", "b"]}, {"type": "string", "pattern": "^x+$"}])
def test_choices_and_patterns_stay_as_they_are(node: dict[str, Any]) -> None:
    assert (
        bounded(call({"type": "object", "properties": {"a": node}}), 9)["properties"]["a"] == node
    )


def test_the_schema_that_was_asked_for_is_not_changed() -> None:
    asked = call(VERDICT)
    before = asked.to_json()
    grammar(asked, 100)
    assert asked.to_json() == before


def test_the_grammar_leaves_no_room_for_white_space() -> None:
    assert '"whitespace_flexible": false' in grammar(call(VERDICT), 100)
