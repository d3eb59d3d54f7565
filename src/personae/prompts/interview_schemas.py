"""The JSON Schemas of replies in the room `interview_rating`: reasoning first, then scores."""

from __future__ import annotations

from functools import cache

from personae.prompts.schemas import closed_object, exactly, text
from personae.records.call import ReplySchema

MAX_REASONING = 6000

_SCORE = {"type": "integer", "enum": [1, 2, 3, 4, 5, 6, 7]}


@cache
def interview_rating_schema(turns: int | None = None) -> ReplySchema:
    """A score on one metric: `{"reasoning": text, "score": 1..7}`.

    Args:
        turns: how many turns are to be scored first, for stability: then
            `{"reasoning": text, "turn_scores": [exactly so many of 1..7], "score": 1..7}`.

    Raises:
        ValueError: `turns` is below 1.
    """
    if turns is not None and turns < 1:
        raise ValueError("an interview has at least one turn")
    of_turns = {} if turns is None else {"turn_scores": exactly(turns, _SCORE)}
    return ReplySchema(
        name="interview_rating",
        body=closed_object({"reasoning": text(MAX_REASONING), **of_turns, "score": _SCORE}),
    )
