"""The losses of a training as a picture: a panel a character, all on one scale.

SVG by hand, as in the reports (`reports.figures`): text stays text in any script, colours follow
light and dark, and no plotting library is needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from personae.cast.history import TrainingStep, mean_loss
from personae.records.benchmark import Language
from personae.records.files import write_atomically
from personae.records.shown import clean

POINTS = 120
"""The most points of a line; more steps are averaged, token by token."""
PANELS = 60
"""The most characters that get a panel."""

_COLUMNS, _WIDTH, _HEIGHT, _LEFT, _TOP, _GAP = 3, 250, 130, 48, 52, 46
_WORDS = {
    "en": {
        "title": "Loss in training",
        "unit": "nats a supervised token, by optimiser step",
        "loss": "training",
        "dev_loss": "development",
        "more": "and {n} more characters",
    },
    "zh": {
        "title": "训练损失",
        "unit": "每个监督词元的奈特数，横轴为优化步",
        "loss": "训练",
        "dev_loss": "验证",
        "more": "另有 {n} 个角色",
    },
}
_STYLE = """
svg { color-scheme: light dark; font: 12px system-ui, sans-serif; }
.ground { fill: #fff; } text { fill: #222; } .muted { fill: #666; }
.axis { stroke: #ccc; } .stage { stroke: #999; stroke-dasharray: 2 3; }
.line { fill: none; stroke: #2563a8; stroke-width: 1.6; }
.dev { fill: none; stroke: #b4531a; stroke-width: 1.6; stroke-dasharray: 5 3; }
.dot { fill: #b4531a; }
@media (prefers-color-scheme: dark) {
  .ground { fill: #16181c; } text { fill: #e6e6e6; } .muted { fill: #a0a4aa; }
  .axis { stroke: #3a3e45; } .stage { stroke: #70757d; }
  .line { stroke: #7db4f0; } .dev { stroke: #f0a36b; } .dot { fill: #f0a36b; }
}
"""


@dataclass(frozen=True)
class Curve:
    """The losses of one character: points `(step, nats)`, steps counted over all stages."""

    character: str
    loss: tuple[tuple[float, float], ...]
    dev_loss: tuple[tuple[float, float], ...]


def curves(history: Sequence[TrainingStep]) -> tuple[Curve, ...]:
    """What there is to draw, in the order in which characters first appear."""
    starts = stage_starts(history)
    size = max(1, math.ceil(sum(_lengths(history).values()) / POINTS))
    made = []
    for name in dict.fromkeys(r.character for r in history):
        own = [r for r in history if r.character == name]
        bins: dict[tuple[str, int], list[TrainingStep]] = {}
        for record in own:
            if record.loss is not None:
                bins.setdefault((record.stage, (record.step - 1) // size), []).append(record)
        points = []
        for (stage, _), records in bins.items():
            middle = sum(r.step for r in records) / len(records)
            if (mean := mean_loss(records)) is not None:
                points.append((starts[stage] + middle, mean))
        made.append(
            Curve(
                name,
                tuple(points),
                tuple(
                    (float(starts[r.stage] + r.step), r.dev_loss)
                    for r in own
                    if r.dev_loss is not None
                ),
            )
        )
    return tuple(made)


def stage_starts(history: Sequence[TrainingStep]) -> dict[str, int]:
    """How many steps lie before each stage."""
    found, before = {}, 0
    for stage, length in _lengths(history).items():
        found[stage] = before
        before += length
    return found


def _lengths(history: Sequence[TrainingStep]) -> dict[str, int]:
    found: dict[str, int] = {}
    for record in history:
        found[record.stage] = max(found.get(record.stage, 0), record.step)
    return found


def write_plot(history: Sequence[TrainingStep], path: Path, *, language: Language = "en") -> None:
    """Draw the losses into an SVG file.

    Raises:
        OutputError: it cannot be written.
    """
    write_atomically(path, plot(history, language=language))


def plot(history: Sequence[TrainingStep], *, language: Language = "en") -> str:
    """The losses as SVG."""
    words = _WORDS[language]
    found = curves(history)
    shown = found[:PANELS]
    starts = stage_starts(history)
    steps = max(1, sum(_lengths(history).values()))
    values = [y for curve in shown for line in (curve.loss, curve.dev_loss) for _, y in line]
    ticks = _ticks(min(values, default=0.0), max(values, default=1.0))
    rows = max(1, math.ceil(len(shown) / _COLUMNS))
    more = len(found) - len(shown)
    width = _LEFT + _COLUMNS * (_WIDTH + _GAP)
    height = _TOP + rows * (_HEIGHT + _GAP) + (20 if more else 0)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" aria-label="{words["title"]}" '
        f'lang="{language}">',
        f"<style>{_STYLE}</style>",
        f'<rect class="ground" width="{width}" height="{height}"/>',
        f'<text x="{_LEFT}" y="18" font-weight="600">{words["title"]}</text>',
        f'<text class="muted" x="{_LEFT}" y="35">{words["unit"]}</text>',
        _legend(words, width, developed=any(curve.dev_loss for curve in shown)),
    ]
    for number, curve in enumerate(shown):
        left = _LEFT + number % _COLUMNS * (_WIDTH + _GAP)
        top = _TOP + number // _COLUMNS * (_HEIGHT + _GAP) + 20
        parts.append(_panel(curve, left, top, steps, ticks, starts))
    if more:
        text = words["more"].format(n=more)
        parts.append(f'<text class="muted" x="{_LEFT}" y="{height - 8}">{text}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _legend(words: dict[str, str], width: int, *, developed: bool) -> str:
    lines = [("line", words["loss"]), *([("dev", words["dev_loss"])] if developed else [])]
    return "\n".join(
        f'<path class="{kind}" d="M{width - 150} {14 + 17 * n}h26"/>'
        f'<text x="{width - 118}" y="{18 + 17 * n}">{word}</text>'
        for n, (kind, word) in enumerate(lines)
    )


def _panel(
    curve: Curve,
    left: int,
    top: int,
    steps: int,
    ticks: Sequence[float],
    starts: dict[str, int],
) -> str:
    low, high = ticks[0], ticks[-1]

    def x(step: float) -> float:
        return round(left + _WIDTH * step / steps, 2)

    def y(value: float) -> float:
        return round(top + _HEIGHT * (high - value) / (high - low), 2)

    name = escape(_short(curve.character))
    parts = [f'<text x="{left}" y="{top - 7}" font-weight="600">{name}</text>']
    for tick in ticks:
        parts.append(f'<path class="axis" d="M{left} {y(tick)}h{_WIDTH}"/>')
        parts.append(
            f'<text class="muted" x="{left - 6}" y="{y(tick) + 4}" text-anchor="end">'
            f"{tick:g}</text>"
        )
    for stage, start in starts.items():
        if start:
            parts.append(f'<path class="stage" d="M{x(start)} {top}v{_HEIGHT}"/>')
        parts.append(
            f'<text class="muted" x="{x(start)}" y="{top + _HEIGHT + 15}">'
            f"{escape(_short(stage, 14))}</text>"
        )
    parts.append(
        f'<text class="muted" x="{left + _WIDTH}" y="{top + _HEIGHT + 15}" text-anchor="end">'
        f"{steps}</text>"
    )
    for kind, line in (("line", curve.loss), ("dev", curve.dev_loss)):
        if line:
            path = " ".join(f"{x(step)},{y(value)}" for step, value in line)
            parts.append(f'<polyline class="{kind}" points="{path}"/>')
    parts += [
        f'<circle class="dot" cx="{x(step)}" cy="{y(value)}" r="2.2"/>'
        for step, value in curve.dev_loss
    ]
    return "\n".join(parts)


def _short(text: str, limit: int = 34) -> str:
    flat = " ".join(clean(text).split())
    return flat if len(flat) <= limit else flat[: limit - 1].rstrip() + "…"


def _ticks(low: float, high: float) -> tuple[float, ...]:
    """Three to six round numbers that hold everything between them."""
    reach = max(high - low, 1e-3)
    size: float = 10 ** math.floor(math.log10(reach))
    step = next(s * size for s in (0.25, 0.5, 1.0, 2.5, 5.0) if reach / (s * size) <= 4)
    first, last = math.floor(low / step), math.ceil(high / step)
    return tuple(round(n * step, 10) for n in range(first, max(last, first + 1) + 1))
