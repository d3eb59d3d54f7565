"""`personae character`: cards: show, lint, convert."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from personae.characters.card import read_card
from personae.characters.convert import write_card
from personae.characters.summary import (
    CardSummary,
    Conversion,
    NotExpressed,
    excerpt,
    lint_report,
    plain,
    summary,
)
from personae.commands.base import Resume, command, json_option, show_document
from personae.records.shown import clean

RESUMES: dict[str, Resume] = {}

MAX_ROWS = 200


def add(commands: Any) -> None:
    """Add the commands to the parser."""
    room = command(commands, "character", None, "show, check and convert character cards")
    parts = room.add_subparsers(title="character commands", metavar="COMMAND")
    kinds = "a card: JSON (V1, V2, V3), PNG, APNG, CHARX"
    for name, handler, text in (
        ("show", _show, "print what a card holds"),
        ("lint", _lint, "say what is wrong with a card; exit code 1 if there are errors"),
    ):
        made = command(parts, name, handler, text)
        made.add_argument("file", type=Path, metavar="FILE", help=kinds)
        json_option(made)
    made = command(parts, "convert", _convert, "write a card in another version or kind of file")
    made.add_argument("file", type=Path, metavar="FILE", help=kinds)
    made.add_argument(
        "--to", required=True, choices=["v1", "v2", "v3", "charx"], help="the version to write"
    )
    made.add_argument(
        "--image", type=Path, metavar="PNG", help="the picture of a PNG card, the icon of a CHARX"
    )
    made.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="FILE",
        help="the file to write: NAME.json, NAME.png, NAME.apng or NAME.charx",
    )
    json_option(made)


def _show(args: argparse.Namespace) -> int:
    found = summary(read_card(args.file), args.file)

    def show(console: Console) -> None:
        table = Table(show_header=False, title=Text(found.name))
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        for label, value in _rows(found):
            if value:
                table.add_row(label, Text(value))
        console.print(table)

    return show_document(args, found.to_dict(), show)


def _rows(found: CardSummary) -> list[tuple[str, str]]:
    book, tokens = found.lorebook, found.tokens.to_dict()
    greetings = {"alternate": found.alternate_greetings, "for groups": found.group_only_greetings}
    return [
        ("card", f"{found.version.upper()} in {found.container.upper()}"),
        ("called", found.called if found.called != found.name else ""),
        ("creator", f"{found.creator} {found.character_version}".strip()),
        ("tags", excerpt(", ".join(found.tags))),
        ("creator's notes", found.creator_notes),
        ("description", found.description),
        ("personality", found.personality),
        ("scenario", found.scenario),
        ("greeting", found.first_mes),
        ("more greetings", ", ".join(f"{n} {name}" for name, n in greetings.items() if n)),
        ("overrides", ", ".join(found.overrides)),
        (
            "lorebook",
            f"{book.name + ': ' if book.name else ''}{book.entries} entries, "
            f"{book.enabled} switched on, {book.constant} constant"
            if book
            else "",
        ),
        ("assets", excerpt(", ".join(found.assets))),
        ("language", found.language or ""),
        ("voice", found.voice),
        ("secrets", str(found.secrets or "")),
        ("dialogue turns", str(found.dialogue or "")),
        ("extensions", excerpt(", ".join(found.extensions))),
        ("tokens (estimate)", ", ".join(f"{name} {n:,}" for name, n in tokens.items() if n)),
        ("lint", f"{found.errors} errors, {found.hints} hints"),
    ]


def _lint(args: argparse.Namespace) -> int:
    report = lint_report(read_card(args.file), args.file)

    def show(console: Console) -> None:
        table = Table("")
        for title in ("where", "what"):  # a place that is cut short names no field
            table.add_column(title, overflow="fold")
        for finding in report.findings[:MAX_ROWS]:
            style = "red" if finding.level == "error" else "yellow"
            table.add_row(
                Text(finding.level, style=style), Text(finding.place), Text(finding.message)
            )
        if report.findings:
            console.print(table)
        if len(report.findings) > MAX_ROWS:
            console.print(f"{len(report.findings) - MAX_ROWS:,} more: --json lists them all.")
        console.print(f"{report.errors} errors, {report.hints} hints.")

    show_document(args, report.to_dict(), show)
    return 1 if report.errors else 0


def _convert(args: argparse.Namespace) -> int:
    card = read_card(args.file)
    lost = [plain(loss) for loss in write_card(card, args.out, args.to, image=args.image)]
    done = Conversion(
        file=clean(str(args.file)),
        was=card.version,
        out=clean(str(args.out)),
        to=args.to,
        not_expressed=tuple(NotExpressed(place=f.place, message=f.message) for f in lost),
    )
    err = Console(stderr=True, highlight=False)
    for loss in lost:
        err.print(Text(f"Not in {args.to}: {loss.place}: {loss.message}"), soft_wrap=True)
    return show_document(
        args, done.to_dict(), lambda console: console.print(Text(f"{done.out} is written."))
    )
