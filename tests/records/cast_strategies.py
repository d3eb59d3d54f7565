"""Hypothesis strategies for the records of a cast."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from pydantic import BaseModel

from personae.records import (
    BaseModelRef,
    Block,
    CastCharacter,
    CastManifest,
    CastRow,
    CastTurn,
    DataSource,
    Routed,
)
from personae.records.cast import SHARED, CastAnswer

worded = st.text(min_size=1, max_size=8).filter(str.strip)
name = worded.filter(lambda text: text != SHARED)
count = st.integers(0, 2**53)
number = st.floats(allow_nan=False, allow_infinity=False)
share = st.floats(0, 1)
digest = st.from_regex(r"\A[0-9a-f]{64}\Z")
turn = st.builds(CastTurn, speaker=st.none() | name, text=worded)
data_source = st.builds(DataSource, source=worded, licence=st.none() | worded, rows=count)
base_model = st.builds(
    BaseModelRef, id=worded, sha256=digest, architecture=worded, licence=st.none() | worded
)
routed = st.builds(
    Routed,
    decision=st.sampled_from(["accept", "ask", "reject"]),
    role=st.none() | name,
    confidence=share,
    weights=st.dictionaries(name, share, max_size=3),
    by=st.sampled_from(["name", "spelling", "profile", "dialogue"]),
)


given = st.builds(
    CastAnswer, question=worded, character=name, block=st.none() | name, answer=st.text(max_size=8)
)
missed = st.builds(
    CastAnswer, question=worded, character=name, block=st.none() | name, missing=worded
)
answer = given | missed


def block_of(named: st.SearchStrategy[str]) -> st.SearchStrategy[Block]:
    return st.builds(
        Block,
        name=named,
        data=st.lists(data_source, max_size=2).map(tuple),
        tokens=count,
        steps=count,
        loss=st.none() | st.tuples(number, number),
    )


def character_of(
    named: st.SearchStrategy[str], weights: st.SearchStrategy[dict[str, float]]
) -> st.SearchStrategy[CastCharacter]:
    return st.builds(
        CastCharacter,
        name=named,
        aliases=st.lists(name, max_size=2).map(tuple),
        how=st.sampled_from(["trained", "fuse", "expand", "profile"]),
        weights=weights,
        card=st.none() | worded,
        card_hash=st.none() | digest,
    )


@st.composite
def rows(draw: st.DrawFn) -> CastRow:
    """A dialogue in which all whose lines are learnt speak."""
    turns = draw(st.lists(turn, min_size=1, max_size=5))
    if not any(one.speaker for one in turns):
        turns.append(CastTurn(speaker=draw(name), text=draw(worded)))
    speakers = sorted({one.speaker for one in turns if one.speaker})
    characters = draw(st.lists(st.sampled_from(speakers), min_size=1, unique=True))
    return CastRow(
        characters=tuple(characters),
        turns=tuple(turns),
        system=draw(st.text(max_size=8)),
        language=draw(st.sampled_from(["en", "zh"])),
        source=draw(worded),
        licence=draw(st.none() | worded),
    )


@st.composite
def manifests(draw: st.DrawFn) -> CastManifest:
    """A cast whose characters speak through blocks that it has."""
    slots = [SHARED, *draw(st.lists(name, max_size=3, unique=True))]
    people = draw(st.lists(name, min_size=1, max_size=3, unique=True))
    weights = st.dictionaries(st.sampled_from(slots), number, max_size=3)
    return CastManifest(
        version=draw(worded),
        base=draw(base_model),
        rank=draw(st.integers(1, 512)),
        alpha=draw(st.floats(0.001, 1e6)),
        targets=tuple(draw(st.lists(worded, min_size=1, max_size=3))),
        mode=draw(st.sampled_from(["full", "speaker"])),
        protocol=draw(st.sampled_from(["paper", "personae"])),
        seed=draw(count),
        blocks=tuple(draw(block_of(st.just(slot))) for slot in slots),
        characters=tuple(draw(character_of(st.just(one), weights)) for one in people),
        blocks_sha256=draw(digest),
    )


row = rows()
CAST: dict[type[BaseModel], st.SearchStrategy[Any]] = {
    BaseModelRef: base_model,
    CastAnswer: answer,
    Block: block_of(worded),
    CastCharacter: character_of(name, st.dictionaries(worded, number, max_size=3)),
    CastManifest: manifests(),
    CastRow: row,
    CastTurn: turn,
    DataSource: data_source,
    Routed: routed,
}
