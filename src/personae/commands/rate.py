"""`personae rate`: rate what was played."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from personae.commands.base import (
    Resume,
    Was,
    calls_models,
    carry_out,
    command,
    prices_of,
    show_document,
    show_plan,
    write_play_page,
)
from personae.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

_LABEL, _COLUMN = 18, 38
"""Letters that a line's name and a model's scores take in a terminal."""


def add(commands: Any) -> None:
    """Add the commands to the parser."""
    made = command(commands, "rate", _rate, "have judges rate what was played")
    # `run` is what `resume` was given; the run that is rated has a name of its own.
    made.add_argument("play_run", type=Path, metavar="RUN", help="the run of a `personae play`")
    made.add_argument(
        "--judge",
        nargs="+",
        action="extend",
        required=True,
        metavar="MODEL",
        help="critiques, then scores on seven metrics; named twice, it is asked twice",
    )
    made.add_argument(
        "--narrator", action="store_true", help="rate the narrator (Grice's maxims) instead"
    )
    made.add_argument(
        "--protocol", choices=["paper", "personae"], help="docs/rating.md (default: the play's)"
    )
    calls_models(made)


def _rate(args: argparse.Namespace) -> int:
    from personae.rate_stage import rate
    from personae.reports.ratings import scenes_document

    done = carry_out(
        args,
        lambda options: rate(
            args.play_run,
            args.judge,
            narrator=args.narrator,
            protocol=args.protocol,
            seed=args.seed,
            begun=lambda path: setattr(args, "run_dir", path),
            options=options,
        ),
    )
    if done.plan is not None:
        return show_plan(args, done.plan)
    document = {
        "run": str(done.run),
        "rating": str(done.rating),
        "rows": len(done.rows),
        "missing": sum(row.score is None for row in done.rows),
        "scenes": scenes_document([done.run], prices=prices_of(args)),
        "page": write_play_page(args, done.run),
    }
    return show_document(args, document, lambda console: _show(console, document))


def _show(console: Console, document: dict[str, Any]) -> None:
    scenes = document["scenes"]
    for title, models in (
        ("Characters (mean over scenes, 95 % interval)", scenes["models"]),
        ("Scenes with a single character", scenes["alone"]),
        ("Narrators", scenes["narrator"]["models"]),
    ):
        if models:
            console.print(title, style="bold", markup=False)
        at_once = max(1, (console.width - _LABEL) // _COLUMN)
        for start in range(0, len(models), at_once):
            console.print(_table(models[start : start + at_once]))
    console.print(
        f"{document['rows']} ratings, {document['missing']} of them missing, in "
        f"{document['rating']}; all ratings of the run in {document['run']}/results.jsonl",
        markup=False,
    )
    if document["page"]:
        console.print(f"The page: {document['page']}", markup=False)


def _table(models: Sequence[dict[str, Any]]) -> Table:
    """A line a metric and a column a model, whose names are long."""
    from personae.reports.tables import plain_table

    rows = [
        (key, *(_estimate(model["metrics"][key]) for model in models))
        for key in models[0]["metrics"]
    ]
    rows.append(("average", *(_estimate(model["average"]) for model in models)))
    rows.append(("scenes", *(str(model["n"]) for model in models)))
    rows.append(("ratings missing", *(f"{model['missing']:.1%}" for model in models)))
    return plain_table(["", *(f"{model['model']} ({model['lang']})" for model in models)], rows)


def _estimate(estimate: dict[str, Any]) -> str:
    """A mean with its interval, and with the share that is missing where some is."""
    if estimate["mean"] is None:
        shown = "-"
    elif estimate["low"] is None:
        shown = f"{estimate['mean']:.2f}"
    else:
        shown = f"{estimate['mean']:.2f} ({estimate['low']:.2f} to {estimate['high']:.2f})"
    return f"{shown}, {estimate['missing']:.1%} missing" if estimate["missing"] else shown


def _resume_rate(args: argparse.Namespace, run: Path, was: Was) -> int:
    # A rating lies in RUN/ratings/HASH, and is nothing without the plays that it is of.
    if run.parent.name != "ratings":
        raise InputError(
            "a rating belongs into the folder `ratings` of its play run",
            path=run,
            mend="Move it back there",
        )
    args.play_run = run.parent.parent
    args.judge = was.models("judge")
    args.narrator, args.protocol = was("narrator", bool), was.manifest.protocol
    return _rate(args)


RESUMES: dict[str, Resume] = {"rate": _resume_rate}
