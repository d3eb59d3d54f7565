"""The JSON Schemas of the replies that characters and narrator give in a play.

A text that may be empty means "nothing" (no speech) or "as before" (no change): endpoints differ in
what they make of null. Who is affected by an act is one of the others, or the actor, which means
nobody (the paper's own convention, appendix D.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from personae.prompts.schemas import closed_object, text
from personae.records.call import ReplySchema

MAX_PLAN = 600
MAX_ACTION = 800
MAX_SPEECH = 1000
MAX_BELIEF = 800
MAX_INFLUENCE = 600
MAX_RESULT = 1000
MAX_POSITION = 300
MAX_STATE = 500
MAX_DESCRIPTION = 1500


class Bounds(Protocol):
    """What a narrator's changes may touch (`personae.world.state.Bounds`)."""

    @property
    def names(self) -> tuple[str, ...]:
        """Whose state may change."""
        ...

    @property
    def visible(self) -> bool:
        """Whether that may change which all around would see."""
        ...

    @property
    def places(self) -> tuple[str, ...]:
        """Where one can go; empty where there is one place only."""
        ...

    @property
    def alone(self) -> bool:
        """Whether the environment itself may change, and not only one place's surroundings."""
        ...


def act_schema(
    others: Sequence[str],
    *,
    plan: bool = False,
    action: bool = True,
    speech: bool = True,
    whispers: bool = True,
) -> ReplySchema:
    """What a character does and says: any of `plan`, `action`, `speech`, then `manner` and `to`.

    Args:
        others: those at the place; without any nobody is addressed.
        whispers: whether manner and addressees are the character's choice.
    """
    properties: dict[str, Any] = {}
    if plan:
        properties["plan"] = text(MAX_PLAN)
    if action:
        properties["action"] = perhaps(MAX_ACTION)
    if speech:
        properties["speech"] = perhaps(MAX_SPEECH)
    if whispers and others:
        properties["manner"] = {"type": "string", "enum": ["open", "whisper"]}
        properties["to"] = some_of(others)
    return ReplySchema(name="act", body=closed_object(properties))


def plan_schema() -> ReplySchema:
    """`{"plan": text}`."""
    return ReplySchema(name="plan", body=closed_object({"plan": text(MAX_PLAN)}))


def belief_schema(*fields: str) -> ReplySchema:
    """A text for each of `belief`, `desire`, `intention`, `environment` that is asked for."""
    return ReplySchema(
        name="beliefs", body=closed_object({field: text(MAX_BELIEF) for field in fields})
    )


def influence_schema(
    actor: str,
    witnesses: Sequence[str],
    targets: Sequence[str],
    bounds: Bounds | None,
    *,
    concludes: bool,
) -> ReplySchema:
    """How an act touches the one it affects most.

    Args:
        witnesses: those who might perceive it; empty where that is not the narrator's to say.
        targets: those whom it might affect.
        bounds: of the changes that come with it; None if none do.
        concludes: whether the narrator says here if the story is concluded.
    """
    properties: dict[str, Any] = {}
    if witnesses:
        properties["perceived_by"] = some_of(witnesses)
    if targets:
        properties["affected"] = {"type": "string", "enum": [*targets, actor]}
        properties["influence"] = perhaps(MAX_INFLUENCE)
    return _narrated("influence", properties, bounds, concludes=concludes)


def result_schema(
    witnesses: Sequence[str], bounds: Bounds | None, *, concludes: bool
) -> ReplySchema:
    """What comes of an act and the reaction to it."""
    properties: dict[str, Any] = {"result": text(MAX_RESULT)}
    if witnesses:
        properties["perceived_by"] = some_of(witnesses)
    return _narrated("result", properties, bounds, concludes=concludes)


def update_schema(bounds: Bounds) -> ReplySchema:
    """The changes of one character: position and state, after a whisper the state alone."""
    who = {k: v for k, v in _change(bounds).items() if k != "who"}
    return ReplySchema(name="update", body=closed_object(who))


def environment_schema(bounds: Bounds) -> ReplySchema:
    """The changes of the environment, or of the surroundings where places differ."""
    return ReplySchema(name="environment", body=closed_object(_surroundings(bounds)))


def concluded_schema() -> ReplySchema:
    """`{"concluded": true or false}`."""
    return ReplySchema(name="concluded", body=closed_object({"concluded": {"type": "boolean"}}))


def perhaps(longest: int) -> dict[str, Any]:
    """A text of at most so many characters that may be empty."""
    return {"type": "string", "maxLength": longest}


def some_of(names: Sequence[str]) -> dict[str, Any]:
    """A list of these names, possibly none."""
    return {
        "type": "array",
        "items": {"type": "string", "enum": list(names)},
        "maxItems": len(names),
    }


def _narrated(
    name: str, properties: dict[str, Any], bounds: Bounds | None, *, concludes: bool
) -> ReplySchema:
    if bounds is not None:
        properties["changes"] = {
            "type": "array",
            "items": closed_object(_change(bounds)),
            "maxItems": len(bounds.names),
        }
        properties |= _surroundings(bounds)
    if concludes:
        properties["concluded"] = {"type": "boolean"}
    return ReplySchema(name=name, body=closed_object(properties))


def _change(bounds: Bounds) -> dict[str, Any]:
    fields: dict[str, Any] = {"who": {"type": "string", "enum": list(bounds.names)}}
    if bounds.visible:
        fields["position"] = perhaps(MAX_POSITION)
    fields["state"] = perhaps(MAX_STATE)
    if bounds.visible and bounds.places:
        fields["place"] = {"type": "string", "enum": list(bounds.places)}
    return fields


def _surroundings(bounds: Bounds) -> dict[str, Any]:
    """Both, where places differ and all are at one: what was said of it may be out of date."""
    found: dict[str, Any] = {}
    if bounds.visible and bounds.alone:
        found["environment"] = closed_object(
            {
                "time": perhaps(MAX_POSITION),
                "location": perhaps(MAX_POSITION),
                "description": perhaps(MAX_DESCRIPTION),
            }
        )
    if bounds.visible and (bounds.places or not bounds.alone):
        found["surroundings"] = perhaps(MAX_DESCRIPTION)
    return found
