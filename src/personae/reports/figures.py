"""The geometry of the report's pictures.

The pictures are hand-written SVG in `templates/figures.html.j2`. Positions along a scale are per
cent of the width, so that a picture fits a phone without shrinking its letters, colours come from
the style sheet, so that it follows light, dark and print, and text stays text in any script. A
plotting library gives none of the three.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import quantiles

from personae.records import Estimate

SERIES = 6
"""Colours and shapes there are; a seventh model starts again from the first."""


@dataclass(frozen=True)
class Axis:
    """A scale from `low` to `high` with its ticks; `at` maps a value to per cent of the width."""

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]

    def at(self, value: float) -> float:
        """Per cent from the left, kept inside the scale."""
        share = (value - self.low) / (self.high - self.low)
        return round(100 * min(1.0, max(0.0, share)), 3)


def score_axis() -> Axis:
    """The scale of scores, 1 to 5."""
    return Axis(1, 5, tuple((25.0 * i, str(i + 1)) for i in range(5)))


def signed_axis(values: Sequence[float]) -> Axis:
    """A symmetric scale around zero, wide enough for all values."""
    reach = max((abs(v) for v in values), default=0.0)
    step = next(
        (s for s in (0.05, 0.1, 0.2, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0) if 2 * s >= reach), reach or 1
    )
    ticks = ((-2, 0.0), (-1, 25.0), (0, 50.0), (1, 75.0), (2, 100.0))
    return Axis(
        -2 * step,
        2 * step,
        tuple((at, f"{k * step:+g}".replace("-", "\u2212") if k else "0") for k, at in ticks),
    )


@dataclass(frozen=True)
class Mark:
    """A point with its interval, in per cent of the width; `y` in pixels from the top."""

    series: int
    y: int
    at: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class MarkRow:
    """One line of a figure: its label, its marks, and what they say in words."""

    label: str
    height: int
    marks: tuple[Mark, ...]
    texts: tuple[tuple[int, str], ...]


PITCH = 22


def mark_row(label: str, estimates: Sequence[tuple[int, Estimate, str]], axis: Axis) -> MarkRow:
    """Marks below each other, one for each (series, estimate, text); no mark without a mean."""
    marks = tuple(
        Mark(
            series % SERIES,
            PITCH * line + PITCH // 2,
            axis.at(e.mean),
            None if e.low is None else axis.at(e.low),
            None if e.high is None else axis.at(e.high),
        )
        for line, (series, e, _) in enumerate(estimates)
        if e.mean is not None
    )
    return MarkRow(
        label,
        PITCH * len(estimates),
        marks,
        tuple((series % SERIES, text) for series, _, text in estimates),
    )


@dataclass(frozen=True)
class Dot:
    """One character in the picture of the spread."""

    at: float
    y: float


@dataclass(frozen=True)
class Swarm:
    """The characters' scores of one model: a dot each, the quartiles as a bar behind them."""

    series: int
    height: int
    dots: tuple[Dot, ...]
    box: tuple[float, float, float] | None
    values: tuple[float, float, float] | None
    n: int


def swarm(series: int, values: Sequence[float], axis: Axis, height: int = 72) -> Swarm:
    """Dots stacked around the middle line where scores fall together; quartiles from 4 up."""
    bins: dict[int, list[float]] = {}
    for value in sorted(values):
        bins.setdefault(round(axis.at(value) / 1.5), []).append(value)
    tallest = max((len(b) for b in bins.values()), default=1)
    step = min(9.0, (height - 14) / max(1, tallest - 1)) if tallest > 1 else 0.0
    dots = tuple(
        Dot(axis.at(value), round(height / 2 + (i - (len(stack) - 1) / 2) * step, 1))
        for stack in bins.values()
        for i, value in enumerate(stack)
    )
    cuts = quantiles(values, n=4, method="inclusive") if len(values) >= 4 else None
    return Swarm(
        series % SERIES,
        height,
        dots,
        None if cuts is None else (axis.at(cuts[0]), axis.at(cuts[1]), axis.at(cuts[2])),
        None if cuts is None else (cuts[0], cuts[1], cuts[2]),
        len(values),
    )


@dataclass(frozen=True)
class Bar:
    """A named count and its length in per cent of the longest."""

    name: str
    count: int
    width: float


def bars(counts: Sequence[tuple[str, int]]) -> tuple[Bar, ...]:
    """Bars in the given order."""
    longest = max((n for _, n in counts), default=1) or 1
    return tuple(Bar(name, n, round(100 * n / longest, 2)) for name, n in counts)


@dataclass(frozen=True)
class Cell:
    """A cell of the judges' matrix: how many answers, and a shade from 0 to 9."""

    count: int
    shade: int


@dataclass(frozen=True)
class Matrix:
    """Scores of `first` (lines, 5 at the top) against those of `second` (columns, 1 to 5)."""

    first: str
    second: str
    lines: tuple[tuple[int, tuple[Cell, ...]], ...]
    n: int
    exact: float
    close: float


def matrix(first: str, second: str, pairs: Sequence[tuple[int, int]]) -> Matrix | None:
    """The matrix of two judges over the answers that both scored; None where there is none."""
    if not pairs:
        return None
    counts: dict[tuple[int, int], int] = {}
    for pair in pairs:
        counts[pair] = counts.get(pair, 0) + 1
    most = max(counts.values())

    def cell(count: int) -> Cell:
        return Cell(count, 0 if not count else 1 + round(8 * count / most))

    return Matrix(
        first,
        second,
        tuple(
            (a, tuple(cell(counts.get((a, b), 0)) for b in range(1, 6))) for a in range(5, 0, -1)
        ),
        len(pairs),
        sum(a == b for a, b in pairs) / len(pairs),
        sum(abs(a - b) <= 1 for a, b in pairs) / len(pairs),
    )
