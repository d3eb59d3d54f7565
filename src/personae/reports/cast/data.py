"""What the page and the terminal show of a cast's scores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from personae.records import Failure
from personae.records.cast_scores import (
    CastScores,
    DialogueScore,
    LiftScore,
    MethodName,
    MetricName,
    SwitchScore,
)

Line: TypeAlias = DialogueScore | SwitchScore | LiftScore

SHOWN: tuple[MetricName, ...] = (
    "nll",
    "margin",
    "identified",
    "identified_unnamed",
    "switch_cost",
    "switch_leak",
    "lift",
)
SHARES: frozenset[MetricName] = frozenset({"identified", "identified_unnamed", "switch_leak"})
SIGNED: frozenset[MetricName] = frozenset({"margin", "switch_cost", "lift"})
LOWER_IS_BETTER: frozenset[MetricName] = frozenset({"nll", "switch_cost", "switch_leak"})


@dataclass(frozen=True)
class Taken:
    """Whose blocks fit a character's dialogues best: a row of the table of mistakes.

    Attributes:
        best: number of dialogues by character; in the order of the cast.
        ties: dialogues that no character's blocks fit better than all others'.
    """

    character: str
    best: tuple[int, ...]
    ties: int


@dataclass(frozen=True)
class Worst:
    """A dialogue whose own blocks stand worst against another's.

    Attributes:
        behind: nats a token by which the best of the others' fits better (below 0: worse).
        best: whose that is.
    """

    source: str
    character: str
    best: str
    nll: float
    behind: float
    named: bool


@dataclass(frozen=True)
class Failed:
    """Why lines could not be scored."""

    method: MethodName
    failure: Failure
    count: int


def ours(scores: CastScores) -> MethodName:
    """The method that the others are held against."""
    return "retrained" if any(m.method == "retrained" for m in scores.methods) else "cast"


def taken(lines: Sequence[Line], names: Sequence[str], *, tie: float) -> tuple[Taken, ...]:
    """Whose blocks fit best, of the cast as given.

    Args:
        tie: nats a token below which two fits are the same.
    """
    made = []
    for name in names:
        best: Counter[str] = Counter()
        ties = 0
        for line in _fitted(lines):
            if line.character != name or line.fits is None or line.tokens is None:
                continue
            order = sorted(line.fits.items(), key=lambda pair: pair[1])
            if len(order) > 1 and order[1][1] - order[0][1] <= tie * line.tokens:
                ties += 1
            else:
                best[order[0][0]] += 1
        if best or ties:
            made.append(Taken(name, tuple(best[other] for other in names), ties))
    return tuple(made)


def worst(lines: Sequence[Line]) -> list[Worst]:
    """The cast's dialogues, those first that its own blocks lose by most."""
    found = []
    for line in _fitted(lines):
        others = {n: v for n, v in (line.fits or {}).items() if n != line.character}
        if line.fits is None or line.tokens is None or line.nll is None or not others:
            continue
        best = min(others, key=lambda name: others[name])
        behind = (line.fits[line.character] - others[best]) / line.tokens
        found.append(
            Worst(line.source, line.character, best, line.nll / line.tokens, behind, line.named)
        )
    return sorted(found, key=lambda one: -one.behind)


def failed(lines: Sequence[Line]) -> tuple[Failed, ...]:
    """Why lines could not be scored, by method and cause, the most frequent first."""
    counts: Counter[tuple[MethodName, str]] = Counter()
    example: dict[tuple[MethodName, str], Failure] = {}
    for line in lines:
        if line.failure is not None:
            key = (line.method, line.failure.cause)
            counts[key] += 1
            example.setdefault(key, line.failure)
    return tuple(Failed(key[0], example[key], n) for key, n in counts.most_common())


def _fitted(lines: Sequence[Line]) -> list[DialogueScore]:
    return [
        line
        for line in lines
        if isinstance(line, DialogueScore) and line.method == "cast" and line.failure is None
    ]
