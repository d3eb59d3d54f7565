"""`personae character`: cards: show, lint, convert."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from personae.characters.card import Card, read_card
from personae.characters.convert import write_card
from personae.characters.lint import Tokens, lint, tokens_of
from personae.characters.reading import Finding
from personae.commands.base import Resume, command, json_option, show_document
from personae.errors import InputError

RESUMES: dict[str, Resume] = {}

EXCERPT = 300
# What a terminal would obey or hide instead of showing: control characters, marks that turn the
# direction of writing round, and half surrogate pairs, which it cannot take at all.
_UNSEEN = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


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


def visible(text: str) -> str:
    """The text with what a terminal would not show as characters made visible, as U+FFFD."""
    return _UNSEEN.sub("\ufffd", text.replace("\r\n", "\n"))


def _excerpt(text: str) -> str:
    text = visible(text.strip())
    return text if len(text) <= EXCERPT else text[: EXCERPT - 1].rstrip() + "…"


# show ------------------------------------------------------------------------------------------


def _show(args: argparse.Namespace) -> int:
    card = read_card(args.file)
    document = _summary(card, args.file)

    def show(console: Console) -> None:
        table = Table(show_header=False, title=Text(document["name"]))
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        for label, value in _rows(document):
            if value:
                table.add_row(label, Text(value))
        console.print(table)

    return show_document(args, document, show)


def _summary(card: Card, path: Path) -> dict[str, Any]:
    character = card.character
    book = character.character_book
    findings = lint(card)
    try:
        ours: dict[str, Any] = {
            "language": character.ours.language,
            "voice": _excerpt(character.ours.voice),
            "secrets": len(character.ours.secrets),
            "dialogue": len(character.ours.dialogue),
        }
    except InputError:  # `lint` says so, and the findings are counted here
        ours = {"language": None, "voice": "", "secrets": None, "dialogue": None}
    texts = ("description", "personality", "scenario", "first_mes", "creator_notes")
    return {
        "file": visible(str(path)),
        "container": card.container,
        "version": card.version,
        "name": visible(character.name),
        "called": visible(character.called),
        **{name: _excerpt(getattr(character, name)) for name in texts},
        "creator": visible(character.creator),
        "character_version": visible(character.character_version),
        "tags": [visible(tag) for tag in character.tags],
        "greetings": {
            "alternate": len(character.alternate_greetings),
            "group_only": len(character.group_only_greetings),
        },
        "overrides": [
            name
            for name in ("system_prompt", "post_history_instructions")
            if getattr(character, name)
        ],
        "lorebook": None
        if book is None
        else {
            "name": visible(book.name or ""),
            "entries": len(book.entries),
            "enabled": sum(entry.enabled for entry in book.entries),
            "constant": sum(bool(entry.constant) for entry in book.entries),
        },
        "assets": [visible(f"{a.type}/{a.name}.{a.ext}") for a in character.assets or ()],
        "files": len(card.charx.members) - 1 if card.charx else 0,
        "extensions": [visible(name) for name in character.extensions],
        **ours,
        "tokens": tokens_of(character).to_dict(),
        "errors": sum(f.level == "error" for f in findings),
        "hints": sum(f.level == "hint" for f in findings),
    }


def _rows(document: dict[str, Any]) -> list[tuple[str, str]]:
    book, tokens, greetings = document["lorebook"], document["tokens"], document["greetings"]
    called = document["called"]
    return [
        ("card", f"{document['version'].upper()} in {document['container'].upper()}"),
        ("called", called if called != document["name"] else ""),
        ("creator", " ".join(filter(None, (document["creator"], document["character_version"])))),
        ("tags", ", ".join(document["tags"])),
        ("creator's notes", document["creator_notes"]),
        ("description", document["description"]),
        ("personality", document["personality"]),
        ("scenario", document["scenario"]),
        ("greeting", document["first_mes"]),
        (
            "more greetings",
            ", ".join(
                f"{count} {name.replace('_', ' ')}" for name, count in greetings.items() if count
            ),
        ),
        ("overrides", ", ".join(document["overrides"])),
        (
            "lorebook",
            f"{book['name'] + ': ' if book['name'] else ''}{book['entries']} entries, "
            f"{book['enabled']} switched on, {book['constant']} constant"
            if book
            else "",
        ),
        ("assets", ", ".join(document["assets"])),
        ("language", document["language"] or ""),
        ("voice", document["voice"]),
        ("secrets", str(document["secrets"] or "")),
        ("dialogue turns", str(document["dialogue"] or "")),
        ("extensions", ", ".join(document["extensions"])),
        (
            "tokens (estimate)",
            ", ".join(f"{name} {tokens[name]:,}" for name in Tokens.model_fields if tokens[name]),
        ),
        ("lint", f"{document['errors']} errors, {document['hints']} hints"),
    ]


# lint and convert ------------------------------------------------------------------------------


def _lint(args: argparse.Namespace) -> int:
    card = read_card(args.file)
    findings = lint(card)
    errors = sum(finding.level == "error" for finding in findings)
    document = {
        "file": visible(str(args.file)),
        "version": card.version,
        "container": card.container,
        "tokens": tokens_of(card.character).to_dict(),
        "errors": errors,
        "hints": len(findings) - errors,
        "findings": [_plain(finding) for finding in findings],
    }

    def show(console: Console) -> None:
        table = Table("", "where", "what")
        for finding in findings:
            style = "red" if finding.level == "error" else "yellow"
            plain = _plain(finding)
            table.add_row(
                Text(plain["level"], style=style), Text(plain["place"]), Text(plain["message"])
            )
        if findings:
            console.print(table)
        console.print(f"{errors} errors, {len(findings) - errors} hints.")

    show_document(args, document, show)
    return 1 if errors else 0


def _plain(finding: Finding) -> dict[str, str]:
    return {
        "level": finding.level,
        "place": visible(finding.place),
        "message": visible(finding.message),
    }


def _convert(args: argparse.Namespace) -> int:
    card = read_card(args.file)
    losses = [_plain(loss) for loss in write_card(card, args.out, args.to, image=args.image)]
    document = {
        "from": {"file": visible(str(args.file)), "version": card.version},
        "out": visible(str(args.out)),
        "version": args.to,
        "not_expressed": [{k: loss[k] for k in ("place", "message")} for loss in losses],
    }

    def show(console: Console) -> None:
        console.print(Text(f"{document['out']} is written."))

    err = Console(stderr=True, highlight=False)
    for loss in losses:
        err.print(Text(f"Not in {args.to}: {loss['place']}: {loss['message']}"), soft_wrap=True)
    return show_document(args, document, show)
