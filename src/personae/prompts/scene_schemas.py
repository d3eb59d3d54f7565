"""The JSON Schemas of scene writing: a scene as it is written, and a reviewer's verdict on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from personae.prompts.schemas import closed_object, text
from personae.records.benchmark import Language
from personae.records.call import ReplySchema

MAX_NAME = 80
MAX_REASON = 800
MOST_CHANGES = 6
MOST_SECRETS = 2
FEWEST_CHARACTERS, MOST_CHARACTERS = 2, 4

GENDERS: dict[Language, dict[str, str | None]] = {
    "en": {"female": "female", "male": "male", "other": "other", "unknown": None},
    "zh": {"女": "女", "男": "男", "其他": "其他", "不明": None},
}


def scene_schema(
    language: Language, names: Sequence[str] = (), *, may_lack: bool = False
) -> ReplySchema:
    """A scene: `{"scene": {...}}`.

    Where it is known who appears, `characters` is an object `{"character_1": ...}` of just these,
    since small models name one of a list twice; else it is a list.

    Args:
        language: of the words for gender.
        names: who appears; none leaves the names (2 to 4) to the writer.
        may_lack: whether `{"scene": null}` may say that the source holds no scene.

    """
    particulars = {
        "gender": {"type": "string", "enum": list(GENDERS[language])},
        "description": text(1000),
        "position": text(400),
        "state": text(600),
        "goal": _optional(400),
    }
    if names:
        name = {"type": "string", "enum": list(names)}
        characters = closed_object(
            {
                f"character_{number}": closed_object(
                    {"name": {"type": "string", "enum": [who]}, **particulars}
                )
                for number, who in enumerate(names, 1)
            }
        )
    else:
        name = text(MAX_NAME)
        characters = {
            "type": "array",
            "items": closed_object({"name": name, **particulars}),
            "minItems": FEWEST_CHARACTERS,
            "maxItems": MOST_CHARACTERS,
        }
    knowers = {
        "type": "array",
        "items": name,
        "minItems": 1,
        "maxItems": len(names) or MOST_CHARACTERS,
    }
    secret = closed_object({"fact": text(500), "known_by": knowers})
    scene = closed_object(
        {
            "event": text(300),
            "time": text(200),
            "location": text(300),
            "description": text(2000),
            "characters": characters,
            "secrets": {"type": "array", "items": secret, "maxItems": MOST_SECRETS},
            "plot": text(1200),
        }
    )
    wanted = {"anyOf": [scene, {"type": "null"}]} if may_lack else scene
    return ReplySchema(name="scene", body=closed_object({"scene": wanted}))


def review_schema(criteria: Sequence[str]) -> ReplySchema:
    """A verdict: `{CRITERION: {"reason", "score": 1..5}, ..., "changes": [texts], "accept": bool}`.

    Raises:
        ValueError: no criterion.

    """
    if not criteria:
        raise ValueError("a review needs a criterion")
    mark = closed_object(
        {
            "reason": text(MAX_REASON),
            "score": {"type": "integer", "enum": [1, 2, 3, 4, 5]},
        }
    )
    return ReplySchema(
        name="scene_review",
        body=closed_object(
            {
                **dict.fromkeys(criteria, mark),
                "changes": {"type": "array", "items": text(MAX_REASON), "maxItems": MOST_CHANGES},
                "accept": {"type": "boolean"},
            }
        ),
    )


def _optional(longest: int) -> dict[str, Any]:
    """A text that may be empty."""
    return {"type": "string", "maxLength": longest}
