"""What a cast is and what it says of an instruction."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from personae.records.base import Record

Decision = Literal["accept", "ask", "reject"]


class Routed(Record):
    """Who an instruction asks for.

    Attributes:
        decision: `accept`: it is `role`. `ask`: perhaps `role`; ask the user. `reject`: it is
            nobody of the cast, or nobody can be told.
        role: who it is or may be; None on `reject`.
        confidence: 0 to 1, that somebody of the cast is wanted and is `role` (on `reject`: and is
            the nearest one). 1 where the instruction gives a name; else calibrated.
        weights: of the nearest characters, best first, at most three, summing to 1; {} where
            nothing in the instruction is in any profile. On `accept` by name the role alone.
        by: what told: a name (on `reject`: one that is nobody's), a misspelt name, retrieval over
            profiles, or the dialogue so far.
    """

    decision: Decision
    role: str | None = None
    confidence: float = Field(ge=0, le=1)
    weights: dict[str, float] = {}
    by: Literal["name", "spelling", "profile", "dialogue"] = "profile"
