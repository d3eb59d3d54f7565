"""The geometry of stability curves: how well each turn is in character, over the turns.

One small picture a voice, all on the same scales, with the others' lines pale behind it: intervals
of several curves in one picture would hide each other. Heights are pixels, places along the turns
are per cent of the width, so that a picture fits a phone without shrinking its letters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from personae.judging.interview_metrics import HIGHEST, LOWEST
from personae.records import Estimate

HEIGHT = 150
EDGE = 10
MOST_TICKS = 12
"""Turns that are numbered below a curve; of more, every second, third, ..."""


@dataclass(frozen=True)
class Point:
    """A turn with a mean.

    Attributes:
        x: per cent of the width.
        y: pixels from the top.
        text: its mean, at the first turn and the last.
    """

    turn: int
    x: float
    y: float
    text: str = ""


@dataclass(frozen=True)
class Tick:
    """A numbered turn and the interviews that enter it."""

    turn: int
    x: float
    n: int


@dataclass(frozen=True)
class Curve:
    """One voice's curve.

    Attributes:
        lines, bands: `points` of SVG polylines and polygons, x of 100 and y of `HEIGHT`; a turn
            without a mean breaks the line, one without an interval the band.
        ghosts: the lines of the others.
    """

    points: tuple[Point, ...]
    lines: tuple[str, ...]
    bands: tuple[str, ...]
    ticks: tuple[Tick, ...]
    ghosts: tuple[str, ...] = ()


def level(score: float) -> float:
    """Pixels from the top of a score from 1 to 7."""
    share = (score - LOWEST) / (HIGHEST - LOWEST)
    return round(HEIGHT - EDGE - share * (HEIGHT - 2 * EDGE), 2)


def grid() -> tuple[tuple[float, str], ...]:
    """The horizontal lines: pixels from the top and the score."""
    return tuple((level(score), str(score)) for score in range(LOWEST, HIGHEST + 1, 2))


def curve(turns: Mapping[int, Estimate], last: int) -> Curve:
    """The curve over turns 1 to `last`, which is the same for all that share a scale."""
    ordered = sorted(turns.items())
    known = [(turn, e) for turn, e in ordered if e.mean is not None]
    ends = {known[0][0], known[-1][0]} if known else set()
    step = -(-last // MOST_TICKS)
    return Curve(
        points=tuple(
            Point(turn, _x(turn, last), level(e.mean), f"{e.mean:.1f}" if turn in ends else "")
            for turn, e in known
            if e.mean is not None
        ),
        lines=tuple(
            " ".join(f"{_x(turn, last)},{level(e.mean)}" for turn, e in run if e.mean is not None)
            for run in _unbroken(known)
            if len(run) > 1
        ),
        bands=tuple(
            " ".join(
                (
                    *(f"{_x(t, last)},{level(e.high)}" for t, e in run if e.high is not None),
                    *(f"{_x(t, last)},{level(e.low)}" for t, e in run[::-1] if e.low is not None),
                )
            )
            for run in _unbroken([(t, e) for t, e in known if e.low is not None])
            if len(run) > 1
        ),
        ticks=tuple(
            Tick(turn, _x(turn, last), e.n) for turn, e in ordered if (turn - 1) % step == 0
        ),
    )


def _x(turn: int, last: int) -> float:
    return round(100 * (turn - 0.5) / last, 2)


def _unbroken(known: Sequence[tuple[int, Estimate]]) -> list[list[tuple[int, Estimate]]]:
    """Runs of neighbouring turns."""
    return [
        [pair for _, pair in run]
        for _, run in groupby(enumerate(known), key=lambda item: item[1][0] - item[0])
    ]
