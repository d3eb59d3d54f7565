"""Hypothesis strategies for characters, scenes and plays, read off the records' own annotations."""

from __future__ import annotations

import types
from typing import Any, Literal, Union, get_args, get_origin

from hypothesis import strategies as st
from pydantic import BaseModel

from personae.records import (
    Asset,
    Beliefs,
    Character,
    CharacterState,
    DialogueTurn,
    Environment,
    Event,
    Failure,
    Lorebook,
    LoreEntry,
    Memorised,
    PersonaeExtension,
    Play,
    RatingRow,
    Scene,
    SceneCharacter,
    ScriptLine,
    Secret,
    WorldState,
)

text = st.text(max_size=8)
worded = st.text(min_size=1, max_size=8).filter(str.strip)
count = st.integers(0, 2**53)
number = st.floats(allow_nan=False, allow_infinity=False)
json_value = st.recursive(
    st.none() | st.booleans() | count | number | text,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(text, inner, max_size=2),
    max_leaves=4,
)
# Where a record's own rules allow less than its annotation says.
SPECIAL: dict[tuple[type[BaseModel], str], st.SearchStrategy[Any]] = {
    (Secret, "fact"): worded,
    (Secret, "known_by"): st.lists(worded, max_size=2).map(tuple),
    (DialogueTurn, "user"): worded,
    (DialogueTurn, "character"): worded,
    (Character, "name"): worded,
    (SceneCharacter, "name"): worded,
    (Scene, "id"): worded,
    (Scene, "secrets"): st.just(()),  # `scenes` adds those that its characters know
    (Failure, "cause"): worded,
    (Event, "turn"): st.integers(-1, 9),
    (RatingRow, "score"): st.none() | st.integers(1, 5),
    (RatingRow, "acts_missing"): st.floats(0, 1),
}


def of(annotation: Any) -> st.SearchStrategy[Any]:
    """Any value of a type that records use."""
    plain: dict[Any, st.SearchStrategy[Any]] = {
        str: text,
        bool: st.booleans(),
        int: count,
        float: number,
        type(None): st.none(),
        Any: json_value,
    }
    if annotation in plain:
        return plain[annotation]
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return st.sampled_from(inner)
    if origin in (Union, types.UnionType):
        return st.one_of([of(part) for part in inner])
    if origin is tuple:
        return st.lists(of(inner[0]), max_size=2).map(tuple)
    if origin is dict:
        return st.dictionaries(text, of(inner[1]), max_size=2)
    return st.deferred(lambda: record(annotation))


def record(kind: type[BaseModel], **given: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Any record of a kind."""
    if kind is Scene and not given:
        return scenes()
    special = {name: value for (owner, name), value in SPECIAL.items() if owner is kind} | given
    fields = {
        name: special[name] if name in special else of(field.annotation)
        for name, field in kind.model_fields.items()
    }
    return st.builds(kind, **fields)


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    """A scene whose characters have different names, and whose secrets some of them know."""
    people = draw(
        st.lists(record(SceneCharacter), min_size=1, max_size=3, unique_by=lambda c: c.name)
    )
    known_by = st.lists(st.sampled_from([c.name for c in people]), max_size=2).map(tuple)
    secrets = draw(st.lists(st.builds(Secret, fact=worded, known_by=known_by), max_size=2))
    made = draw(record(Scene, characters=st.just(tuple(people)), secrets=st.just(tuple(secrets))))
    assert isinstance(made, Scene)
    return made


WORLD: dict[type[BaseModel], st.SearchStrategy[Any]] = {
    kind: record(kind)
    for kind in (
        Asset, Beliefs, Character, CharacterState, DialogueTurn, Environment, Event, LoreEntry,
        Lorebook, Memorised, PersonaeExtension, Play, RatingRow, Scene, SceneCharacter, ScriptLine,
        Secret, WorldState,
    )
}  # fmt: skip
