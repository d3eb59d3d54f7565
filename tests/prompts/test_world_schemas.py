"""The schemas of a play's replies ask for what can be, and for nothing that cannot."""

from __future__ import annotations

from typing import Any

import pytest

from personae.prompts.world_schemas import (
    act_schema,
    belief_schema,
    concluded_schema,
    environment_schema,
    influence_schema,
    plan_schema,
    result_schema,
    update_schema,
)
from personae.records import ReplySchema
from personae.records.structured import MalformedReplyError, check_value
from personae.world.state import Bounds

BOTH = Bounds(("Ann", "Bob"))
QUIET = Bounds(("Ann", "Bob"), visible=False)
APART = Bounds(("Ann",), places=("cellar", "attic"), place="cellar", alone=False)
ALL = [
    act_schema(["Bob"], plan=True),
    act_schema([]),
    plan_schema(),
    belief_schema("belief", "desire"),
    influence_schema("Ann", ["Bob"], ["Bob"], BOTH, concludes=True),
    influence_schema("Ann", [], [], APART, concludes=True),
    result_schema(["Bob"], QUIET, concludes=True),
    update_schema(BOTH),
    environment_schema(BOTH),
    environment_schema(APART),
    concluded_schema(),
]


def keys(schema: ReplySchema) -> list[str]:
    return list(schema.body["properties"])


def closed(node: Any) -> None:
    """Every object names its keys, all required; every text and list has a bound."""
    if node.get("type") == "object":
        assert node["additionalProperties"] is False
        assert node["required"] == list(node["properties"])
        assert node["properties"]
        for part in node["properties"].values():
            closed(part)
    elif node.get("type") == "array":
        assert node["maxItems"] >= 1
        closed(node["items"])
    elif node.get("type") == "string":
        assert node.get("enum") or node["maxLength"] > 0
    else:
        assert node["type"] == "boolean"


@pytest.mark.parametrize("schema", ALL, ids=lambda s: f"{s.name}-{len(keys(s))}")
def test_every_schema_is_closed_and_bounded(schema: ReplySchema) -> None:
    closed(schema.body)


def test_a_character_thinks_before_it_acts_and_acts_before_it_says_how() -> None:
    assert keys(act_schema(["Bob"], plan=True)) == ["plan", "action", "speech", "manner", "to"]
    assert keys(act_schema([])) == ["action", "speech"]
    assert keys(act_schema(["Bob"], speech=False, whispers=False)) == ["action"]


def test_nobody_affected_is_the_actor() -> None:
    schema = influence_schema("Ann", ["Bob", "Cid"], ["Bob", "Cid"], None, concludes=False)
    assert schema.body["properties"]["affected"]["enum"] == ["Bob", "Cid", "Ann"]
    good = {"perceived_by": ["Bob"], "affected": "Ann", "influence": ""}
    check_value(good, schema)
    for wrong in ({"affected": "Zoe"}, {"perceived_by": ["Ann"]}, {"influence": None}):
        with pytest.raises(MalformedReplyError):
            check_value({**good, **wrong}, schema)


def test_a_whisper_and_a_place_among_others_leave_less_to_change() -> None:
    assert "environment" in keys(result_schema([], BOTH, concludes=False))
    assert keys(result_schema([], QUIET, concludes=False)) == ["result", "changes"]
    assert "surroundings" in keys(result_schema([], APART, concludes=False))
    assert keys(update_schema(QUIET)) == ["state"]
    assert keys(update_schema(APART)) == ["position", "state", "place"]
    assert keys(update_schema(BOTH)) == ["position", "state"]
