"""Whom of a cast a name means that was given as a name, not found in a text (`cast.names`)."""

from __future__ import annotations

from collections.abc import Sequence

from personae.characters.prompt import plain_name
from personae.records.cast import CastCharacter


def bearers(characters: Sequence[CastCharacter], name: str) -> tuple[str, ...]:
    """Who goes by a name: nobody, one, or several where it means none for certain.

    Whose very name it is, goes by it alone. Else a name or an alias that differs in case, width and
    spaces only is the same.
    """
    if any(one.name == name for one in characters):
        return (name,)
    wanted = plain_name(name)
    return tuple(
        one.name
        for one in characters
        if any(plain_name(other) == wanted for other in (one.name, *one.aliases))
    )
