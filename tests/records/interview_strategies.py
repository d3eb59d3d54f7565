"""Hypothesis strategies for the records of interviews."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from pydantic import BaseModel

from personae.records import (
    Exchange,
    Failure,
    Interview,
    InterviewProfile,
    InterviewRow,
    InterviewScript,
    ScriptTurn,
)

text = st.text(max_size=8)
worded = st.text(min_size=1, max_size=8).filter(str.strip)
language = st.sampled_from(["en", "zh"])
kind = st.sampled_from(["single", "multi", "transfer"])
mode = st.sampled_from(["single", "live", "replayed", "unknown"])
method = st.sampled_from(["prompt", "rag", "cast", "imported"])
failure = st.builds(Failure, cause=worded, detail=text)
extra = st.dictionaries(text, st.none() | st.integers() | text, max_size=2)
seven = st.integers(1, 7)
whole = st.builds(
    Exchange,
    character=worded,
    asked=worded,
    answer=worded,
    passages=st.lists(text, max_size=2).map(tuple),
)
broken = st.builds(
    Exchange,
    character=worded,
    asked=st.none() | text,
    answer=st.none() | text,
    failure=failure,
)
about = {
    "language": language,
    "topic": worded,
    "topic_id": text,
    "tempting": st.booleans(),
    "location": text,
    "status": text,
    "source": text,
    "extra": extra,
}
turn = st.builds(ScriptTurn, character=worded, asked=st.none() | worded)
single = st.builds(
    InterviewScript,
    id=worded,
    kind=st.just("single"),
    turns=st.tuples(st.builds(ScriptTurn, character=worded, asked=worded)),
    **about,
)
transfer = st.builds(
    InterviewScript,
    id=worded,
    kind=st.just("transfer"),
    turns=st.lists(turn, min_size=1, max_size=3).map(tuple),
    **about,
)
interview = st.builds(
    Interview,
    id=worded,
    script_id=worded,
    kind=kind,
    mode=mode,
    method=method,
    model=worded,
    interviewer=st.none() | worded,
    exchanges=st.lists(whole | broken, min_size=1, max_size=3).map(tuple),
    **about,
)
of_row: dict[str, st.SearchStrategy[Any]] = {
    "interview_id": worded,
    "script_id": worded,
    "kind": kind,
    "mode": mode,
    "method": method,
    "model": worded,
    "language": language,
    "characters": st.lists(worded, min_size=1, max_size=2).map(tuple),
    "topic": text,
    "tempting": st.booleans(),
    "turns": st.integers(1, 9),
    "judge": worded,
    "metric": worded,
    "reasoning": st.none() | text,
    "turn_scores": st.lists(seven, max_size=3).map(tuple),
    "repeat": st.integers(0, 3),
}
row = st.builds(InterviewRow, score=seven, failure=st.none(), **of_row) | st.builds(
    InterviewRow, score=st.none(), failure=failure, **of_row
)

INTERVIEWS: dict[type[BaseModel], st.SearchStrategy[Any]] = {
    ScriptTurn: turn,
    InterviewScript: single | transfer,
    Exchange: whole | broken,
    Interview: interview,
    InterviewProfile: st.builds(InterviewProfile, name=worded, text=worded, source=text),
    InterviewRow: row,
}
