"""`personae cast`: train, add, route, chat, eval, export."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console

from personae.commands.base import Resume, command, json_option, show_document
from personae.records.shown import clean

RESUMES: dict[str, Resume] = {}


def add(commands: Any) -> None:
    """Add the commands to the parser."""
    room = command(commands, "cast", None, "one model, many characters: train, extend, ask, export")
    parts = room.add_subparsers(title="cast commands", metavar="COMMAND")
    _add_route(parts)


def _cast_argument(made: argparse.ArgumentParser) -> None:
    made.add_argument("cast", type=Path, metavar="CAST", help="the folder of a cast")


# route -----------------------------------------------------------------------------------------


def _add_route(parts: Any) -> None:
    made = command(parts, "route", _route, "whom of the cast an instruction asks for")
    _cast_argument(made)
    made.add_argument("instruction", metavar="TEXT", help="what a user would write")
    made.add_argument(
        "--previous", metavar="NAME", help="who spoke last: an instruction may not change that"
    )
    json_option(made)


def _route(args: argparse.Namespace) -> int:
    from personae.cast.store import read_cast

    found = read_cast(args.cast).router.route(args.instruction, previous=args.previous)

    def show(console: Console) -> None:
        who = {"accept": f"{found.role}", "ask": f"perhaps {found.role}", "reject": "nobody"}
        console.print(
            clean(f"{found.decision}: {who[found.decision]} ({found.confidence:.0%}, {found.by})"),
            markup=False,
        )
        for role, weight in found.weights.items():
            console.print(clean(f"  {weight:.2f}  {role}"), markup=False)

    return show_document(args, found.to_dict(), show)
