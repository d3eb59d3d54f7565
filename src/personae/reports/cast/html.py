"""The report of a cast's evaluation as one self-contained HTML page, like the other reports."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from personae.records import Estimate, Language
from personae.records.cast_scores import (
    CastScores,
    Figure,
    Measure,
    MethodDifference,
    MethodScores,
    MetricName,
)
from personae.records.files import write_atomically
from personae.reports import figures
from personae.reports.cast.data import (
    LOWER_IS_BETTER,
    SHARES,
    SHOWN,
    SIGNED,
    Line,
    failed,
    ours,
    taken,
    worst,
)
from personae.reports.language import Words, clean, one_line
from personae.reports.page import environment, style

WORST = 20
NAME_CHARS = 60
SOURCE_CHARS = 160
TIE = 1e-4
_STEPS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.25, 0.5, 1.0, 2.0, 2.5, 5.0, 10.0, 25.0)
_BYTES = ("B", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True)
class Drawn:
    """A metric's picture: its axis and a line for each method."""

    metric: MetricName
    axis: figures.Axis
    rows: tuple[figures.MarkRow, ...]


@dataclass(frozen=True)
class Shown:
    """A difference with its picture and its reading."""

    difference: MethodDifference
    row: figures.MarkRow
    reading: str


def _estimate(m: Measure, *, times: float = 1) -> Estimate:
    mean, low, high = (None if v is None else v * times for v in (m.mean, m.low, m.high))
    return Estimate(mean=mean, low=low, high=high, n=m.n, missing=m.missing)


def _axis(values: Sequence[float], metric: MetricName) -> figures.Axis:
    """A scale of five round ticks around all values; shares run from 0 to 1."""
    if metric in SHARES:
        return figures.Axis(0, 1, tuple((25.0 * i, f"{25 * i}%") for i in range(5)))
    low, high = min(values), max(values)
    step = next((s for s in _STEPS if math.floor(low / s) * s + 4 * s >= high), (high - low) or 1)
    start = math.floor(low / step) * step
    digits = max(0, -math.floor(math.log10(step) + 1e-9)) + (step in {0.25, 2.5})
    ticks = tuple(
        (25.0 * i, f"{start + i * step:.{digits}f}".replace("-", "\u2212")) for i in range(5)
    )
    return figures.Axis(start, start + 4 * step, ticks)


def _points(values: Sequence[float]) -> figures.Axis:
    """A symmetric scale of percentage points."""
    step = next((s for s in (2.5, 5, 10, 25) if 2 * s >= max(map(abs, values))), 50)
    ticks = tuple(
        (25.0 * (k + 2), f"{k * step:+g}".replace("-", "\u2212") if k else "0")
        for k in range(-2, 3)
    )
    return figures.Axis(-2 * step, 2 * step, ticks)


def value_text(words: Words, metric: MetricName, value: float | None) -> str:
    """A figure of a metric: a share as per cent, a likelihood with three digits."""
    if value is None:
        return "–"
    if metric in SHARES:
        return words.share(value)
    shown = f"{value:+.3f}" if metric in SIGNED else f"{value:.3f}"
    return "0.000" if shown.strip("+-") == "0.000" else shown.replace("-", "\u2212")


def difference_text(metric: MetricName, value: float | None) -> str:
    """A difference with its sign; of shares in points."""
    if value is None:
        return "–"
    shown = f"{100 * value:+.1f}" if metric in SHARES else f"{value:+.3f}"
    plain = shown.strip("+-")
    return plain if not float(plain) else shown.replace("-", "\u2212")


def interval_text(words: Words, metric: MetricName, m: Measure, *, difference: bool = False) -> str:
    """The interval, or why there is none."""
    if m.mean is None:
        return "–"
    if m.low is None or m.high is None:
        return words("no_interval")
    ends = (
        difference_text(metric, end) if difference else value_text(words, metric, end)
        for end in (m.low, m.high)
    )
    return f"[{', '.join(ends)}]"


def figure_text(words: Words, figure: Figure, kind: str) -> str:
    """A figure of consumption with its unit, unknown as such."""
    value = figure.value
    if value is None:
        return words("unknown")
    if kind == "bytes":
        power = min(len(_BYTES) - 1, int(math.log(value, 1024)) if value >= 1 else 0)
        return f"{value / 1024**power:,.{1 if power else 0}f} {_BYTES[power]}"
    if kind == "count":
        return f"{value:,.0f}"
    if kind == "token":
        return words("milliseconds", n=f"{1000 * value:,.3f}")
    return words.duration(value)


def reading_of(difference: MethodDifference) -> str:
    """`better`, `worse`, or `open` where the interval holds 0 or there is none."""
    low, high = difference.difference.low, difference.difference.high
    if low is None or high is None or low <= 0 <= high:
        return "open"
    lower = high < 0
    return "better" if lower == (difference.metric in LOWER_IS_BETTER) else "worse"


def _drawn(scores: CastScores, words: Words) -> list[Drawn]:
    made = []
    for metric in SHOWN:
        there = [m for m in scores.methods if m.measures[metric].mean is not None]
        ends = [
            v
            for m in there
            for v in (m.measures[metric].mean, m.measures[metric].low, m.measures[metric].high)
            if v is not None
        ]
        if not ends:
            continue
        axis = _axis(ends, metric)
        rows = tuple(
            figures.mark_row(
                words(f"methods.{m.method}"),
                [(_series(scores, m), _estimate(m.measures[metric]), _marked(words, metric, m))],
                axis,
            )
            for m in there
        )
        made.append(Drawn(metric, axis, rows))
    return made


def _series(scores: CastScores, method: MethodScores) -> int:
    return list(scores.methods).index(method) % figures.SERIES


def _marked(words: Words, metric: MetricName, method: MethodScores) -> str:
    m = method.measures[metric]
    interval = "" if m.low is None else " " + interval_text(words, metric, m)
    return value_text(words, metric, m.mean) + interval


def _shown(scores: CastScores) -> list[tuple[MetricName, figures.Axis, list[Shown]]]:
    made = []
    for metric in SHOWN:
        own = [d for d in scores.differences if d.metric == metric]
        if not own:
            continue
        drawn = [_estimate(d.difference, times=100 if metric in SHARES else 1) for d in own]
        ends = [v for e in drawn for v in (e.mean, e.low, e.high) if v is not None]
        axis = _points(ends) if metric in SHARES else figures.signed_axis(ends)
        rows = [
            Shown(d, figures.mark_row("", [(0, e, "")], axis), reading_of(d))
            for d, e in zip(own, drawn, strict=True)
        ]
        made.append((metric, axis, rows))
    return made


def render_page(scores: CastScores, lines: Sequence[Line], language: Language = "en") -> str:
    """The page, encodable as UTF-8. It loads nothing and runs nothing.

    Args:
        lines: of results.jsonl; for the table of mistakes, the worst dialogues and the failures.
    """
    words = Words(language, "casts")
    css, css_hash = style()
    found = worst(lines)
    page = environment().get_template("cast.html.j2")
    return clean(
        page.render(
            t=words,
            css=Markup(css),  # noqa: S704  (our own file)
            css_hash=css_hash,
            title=words("title", base=one_line(scores.base.id, NAME_CHARS)),
            data={"title": words("title", base=one_line(scores.base.id, NAME_CHARS))},
            scores=scores,
            held_out=scores.held_out,
            ours=ours(scores),
            metrics=SHOWN,
            series={m.method: _series(scores, m) for m in scores.methods},
            drawn=_drawn(scores, words),
            differences=_shown(scores),
            taken=taken(lines, scores.characters, tie=TIE),
            worst=found[:WORST],
            n_worst=len(found),
            failed=failed(lines),
            value=lambda metric, v: value_text(words, metric, v),
            interval=lambda metric, m, difference=False: interval_text(
                words, metric, m, difference=difference
            ),
            difference_of=difference_text,
            figure=lambda f, kind: figure_text(words, f, kind),
            name=lambda text: one_line(text, NAME_CHARS),
            source=lambda text: one_line(text, SOURCE_CHARS),
            one_line=one_line,
        )
    )


def write_page(
    scores: CastScores, lines: Sequence[Line], path: Path, language: Language = "en"
) -> None:
    """Write the page; one that stood there before is replaced whole or not at all.

    Raises:
        OutputError: the file cannot be written.
    """
    write_atomically(path, render_page(scores, lines, language))
