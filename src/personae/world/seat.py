"""What a person in a seat is shown: what a model in its place would be told, without the form.

It travels in the meta of the call, which is no part of its content key: a person's answer is found
again in the journal like a model's.
"""

from __future__ import annotations

from typing import Literal

from personae.prompts import render, variables
from personae.records import Language

MOST_SHOWN = 12_000
"""Characters of a text for a person; what is cut off is the middle of a very long card or story."""


def seat(
    role: Literal["character", "narrator"], language: Language, **values: object
) -> dict[str, str | int]:
    """The meta of a call that a person answers: `language`, `who` (it is) and its `situation`."""
    name = f"seat/{role}"
    given = {key: values.get(key) for key in variables(name, language)}
    who, situation = render(name, language, **given)
    return {
        "language": language,
        "who": _capped(who.content),
        "situation": _capped(situation.content),
    }


def _capped(text: str) -> str:
    half = MOST_SHOWN // 2
    return text if len(text) <= MOST_SHOWN else f"{text[:half]}\n[…]\n{text[-half:]}"
