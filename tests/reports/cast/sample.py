"""A cast's evaluation with figures that can be counted by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from personae.cast.consumption import BaseSize, Shape, consumption
from personae.cast.scores import Line, differences, method_scores
from personae.records import Failure
from personae.records.cast import BaseModelRef, DataSource
from personae.records.cast_scores import (
    CastScores,
    DialogueScore,
    HeldOut,
    MethodName,
    SwitchScore,
)

NAMES = ("Ada", "Bob")


def dialogue(
    row: int, who: str, nll: float | None, other: float | None = None, **more: Any
) -> DialogueScore:
    """Ten tokens; under the nameless prompt its own blocks give `nll`, the other's `other`."""
    names: Sequence[str] = more.pop("names", NAMES)
    fits = None
    if nll is not None and other is not None:
        fits = {name: nll if name == who else other for name in names}
    fields: dict[str, Any] = {
        "method": "cast",
        "row": row,
        "source": f"held.jsonl, line {row}",
        "language": "en",
        "character": who,
        "named": False,
        "tokens": None if nll is None else 10,
        "nll": nll,
        "fits": fits,
        "failure": None
        if nll is not None
        else Failure(cause="context_length", detail="it has more than 1,024 tokens"),
    }
    return DialogueScore(**fields | more)


def switch(
    row: int, nll: float, without: float, through_previous: float | None, **more: Any
) -> SwitchScore:
    fields: dict[str, Any] = {
        "method": "cast",
        "row": row,
        "source": f"held.jsonl, line {row}",
        "language": "en",
        "character": "Bob",
        "previous": "Ada",
        "turn": 4,
        "tokens": 10,
        "nll": nll,
        "nll_without": without,
        "nll_previous": through_previous,
    }
    return SwitchScore(**fields | more)


def lines(names: Sequence[str] = NAMES) -> list[Line]:
    """The cast takes Bob's second dialogue for Ada's; the base is half a nat a token behind."""
    first, second = names
    said: list[Line] = [
        dialogue(1, first, 20.0, 26.0, names=names),
        dialogue(2, second, 30.0, 34.0, names=names),
        dialogue(3, second, 40.0, 38.0, names=names, named=True),
        dialogue(4, first, None, names=names),
        switch(5, 30.0, 28.0, 31.0, character=second, previous=first),
    ]
    base: MethodName = "base"
    for line in list(said):
        more: dict[str, Any] = {"method": base}
        if isinstance(line, DialogueScore):
            more |= {"fits": None, "nll": None if line.nll is None else line.nll + 5}
        else:
            more |= {"nll": 36.0, "nll_previous": None}
        said.append(line.model_copy(update=more))
    return said


def scores(
    given: Sequence[Line] | None = None, names: Sequence[str] = NAMES, **more: Any
) -> CastScores:
    given = lines(names) if given is None else given
    fields: dict[str, Any] = {
        "version": "0.1.0",
        "base": BaseModelRef(id="models/tiny", sha256="ab" * 32, architecture="llama"),
        "blocks_sha256": "cd" * 32,
        "dtype": "bfloat16",
        "device": "cpu",
        "mode": "full",
        "protocol": "personae",
        "characters": tuple(names),
        "held_out": HeldOut(
            sha256="ef" * 32,
            rows=5,
            dialogues=4,
            switches=1,
            tokens=30,
            sources=(DataSource(source="held.jsonl", licence="CC-BY-4.0", rows=5),),
            left_out={"Zoe": 2},
            refused=1,
        ),
        "chance": 1 / len(names),
        "methods": method_scores(given, names, parameters={"cast": (300, 200), "base": (0, 0)}),
        "differences": differences(given),
        "consumption": consumption(
            BaseSize(1_000_000, 2_000_000),
            len(names),
            shapes={"cast": Shape(300, 1_400)},
            token_seconds={"base": 0.0005, "cast": 0.00061},
        ),
        "notes": ("few_rows", "failures"),
    }
    return CastScores(**fields | more)
