"""The JSON Schemas of structured replies: what each prompt asks for, checked in one place.

Properties stand in the order in which they are wanted (a judge justifies before it scores), and
every object is closed. The lengths are caps against a model that does not stop; they are far above
what the prompts ask for.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from personae.records.call import ReplySchema

MAX_JUSTIFICATION = 2000
MAX_QUESTION = 800
MAX_EXEMPLAR = 2000
MAX_PERSONA = 500


@cache
def verdict_schema() -> ReplySchema:
    """A judge's reply: `{"justification": text, "score": 1..5}`."""
    return ReplySchema(
        name="verdict",
        body=closed_object(
            {
                "justification": text(MAX_JUSTIFICATION),
                "score": {"type": "integer", "enum": [1, 2, 3, 4, 5]},
            }
        ),
    )


def environments_schema(pool: Sequence[str], maximum: int) -> ReplySchema:
    """An examiner's choice: `{"environments": [1 to maximum different names of the pool]}`.

    Raises:
        ValueError: the pool is empty, or `maximum` is below 1.

    """
    if not pool or maximum < 1:
        raise ValueError("a choice needs a pool and at least one place")
    return ReplySchema(
        name="environments",
        body=closed_object(
            {
                "environments": {
                    "type": "array",
                    "items": {"type": "string", "enum": list(pool)},
                    "minItems": 1,
                    "maxItems": min(maximum, len(pool)),
                    "uniqueItems": True,
                }
            }
        ),
    )


def questions_schema(count: int, environments: Sequence[str]) -> ReplySchema:
    """Exactly `count` of `{"environment": name, "question": text}` under the key `questions`.

    Raises:
        ValueError: no environment, or `count` is below 1.

    """
    if not environments or count < 1:
        raise ValueError("questions need an environment and a count of at least one")
    item = closed_object(
        {
            "environment": {"type": "string", "enum": list(environments)},
            "question": text(MAX_QUESTION),
        }
    )
    return ReplySchema(name="questions", body=closed_object({"questions": exactly(count, item)}))


def exemplars_schema() -> ReplySchema:
    """One example response per score: `{"1": text, ..., "5": text}`."""
    return ReplySchema(
        name="exemplars",
        body=closed_object({str(score): text(MAX_EXEMPLAR) for score in range(1, 6)}),
    )


def personas_schema(count: int) -> ReplySchema:
    """Exactly `count` descriptions: `{"personas": [text]}`.

    Raises:
        ValueError: `count` is below 1.

    """
    if count < 1:
        raise ValueError("at least one persona must be asked for")
    return ReplySchema(
        name="personas", body=closed_object({"personas": exactly(count, text(MAX_PERSONA))})
    )


def closed_object(properties: dict[str, Any]) -> dict[str, Any]:
    """An object with exactly these properties, in this order."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def text(longest: int) -> dict[str, Any]:
    """A text of 1 to `longest` characters."""
    return {"type": "string", "minLength": 1, "maxLength": longest}


def exactly(count: int, item: dict[str, Any]) -> dict[str, Any]:
    """A list of exactly so many items."""
    return {"type": "array", "items": item, "minItems": count, "maxItems": count}
