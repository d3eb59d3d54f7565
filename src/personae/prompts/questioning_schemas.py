"""The JSON Schemas of replies in the room `questioning`."""

from __future__ import annotations

from functools import cache

from personae.prompts.schemas import MAX_QUESTION, closed_object, exactly, text
from personae.records.call import ReplySchema


@cache
def interview_questions_schema(count: int) -> ReplySchema:
    """Exactly `count` questions: `{"questions": [text]}`.

    Raises:
        ValueError: `count` is below 1.
    """
    if count < 1:
        raise ValueError("at least one question must be asked for")
    return ReplySchema(
        name="interview_questions",
        body=closed_object({"questions": exactly(count, text(MAX_QUESTION))}),
    )
