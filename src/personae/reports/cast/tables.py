"""A cast's scores on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from personae.records import Language
from personae.records.cast_scores import CastScores
from personae.records.shown import clean
from personae.reports.cast.data import SHOWN
from personae.reports.cast.html import (
    difference_text,
    interval_text,
    reading_of,
    value_text,
)
from personae.reports.language import Words


def print_scores(scores: CastScores, console: Console, language: Language = "en") -> None:
    """The methods and their measures, then what sets the cast apart from the others."""
    words = Words(language, "casts")
    held = scores.held_out
    console.print(
        clean(words("facts", rows=held.rows, dialogues=held.dialogues, tokens=held.tokens)),
        markup=False,
    )
    table = Table(box=None, pad_edge=False)
    table.add_column(words("method"))
    shown = [m for m in SHOWN if any(one.measures[m].mean is not None for one in scores.methods)]
    for metric in shown:
        table.add_column(words(f"short.{metric}"), justify="right")
    for method in scores.methods:
        table.add_row(
            words(f"methods.{method.method}"),
            *(value_text(words, m, method.measures[m].mean) for m in shown),
        )
    console.print(table)
    if scores.differences:
        console.print()
        table = Table(box=None, pad_edge=False)
        for key in ("difference", "metric", "mean", "interval", "reading"):
            table.add_column(words(key), justify="right" if key == "mean" else "left")
        for d in scores.differences:
            table.add_row(
                f"{words(f'methods.{d.method}')} − {words(f'methods.{d.other}')}",
                words(f"short.{d.metric}"),
                difference_text(d.metric, d.difference.mean),
                interval_text(words, d.metric, d.difference, difference=True),
                words(f"readings.{reading_of(d)}"),
            )
        console.print(table)
    said = [words.known("notes", note) for note in scores.notes]
    for method in scores.methods:
        name = words(f"methods.{method.method}")
        # Without a likelihood there is no other figure; persona lift has causes of its own.
        for metric, what in (("nll", name), ("lift", f"{name}, {words('short.lift')}")):
            if missing := method.measures[metric].missing:
                said.append(words("not_scored", method=what, share=words.share(missing)))
    if held.left_out:
        names = words("list_comma").join(f"{who} ({n})" for who, n in held.left_out.items())
        said.append(f"{words('left_out')}{words('scenes.colon')}{names}")
    for line in said:
        console.print(clean(line), markup=False, style="dim")
