"""The JSON Schemas of replies in the room `rating`: a critique, and a score on one metric."""

from __future__ import annotations

from personae.prompts.schemas import closed_object, text, verdict_schema
from personae.records.call import ReplySchema

MAX_CRITIQUE = 3500


def critique_schema() -> ReplySchema:
    """A judge's critique of a whole trajectory: `{"critique": text}`."""
    return ReplySchema(name="critique", body=closed_object({"critique": text(MAX_CRITIQUE)}))


def rating_schema(*, justified: bool) -> ReplySchema:
    """A score on one metric: `{"score": 1..5}`, with a justification before it if `justified`."""
    if justified:
        return verdict_schema()
    score = {"type": "integer", "enum": [1, 2, 3, 4, 5]}
    return ReplySchema(name="rating", body=closed_object({"score": score}))
