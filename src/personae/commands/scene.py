"""`personae scene`: scenes: import and write."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from personae.commands.base import (
    Resume,
    Was,
    calls_models,
    carry_out,
    command,
    json_option,
    show_document,
    show_plan,
)
from personae.errors import UsageError
from personae.records.shown import clean

SHOWN = 20


def add(commands: Any) -> None:
    """Add the commands to the parser."""
    scene = command(commands, "scene", None, "import and write scenes")
    parts = scene.add_subparsers(title="scene commands", metavar="COMMAND")
    imported = command(parts, "import", None, "make a scene file from public data")
    sources = imported.add_subparsers(title="sources", metavar="SOURCE")
    box = command(sources, "characterbox", _import, "scenes of CharacterBox")
    box.add_argument("path", type=Path, metavar="FILE", help="or a folder of them, or a clone")
    box.add_argument(
        "--origin",
        choices=["extracted", "generated"],
        help="default: as the folder says (extracted_scenes, generated_data), or the file",
    )
    box.add_argument("--lang", choices=["en", "zh"], help="default: that of each scene's text")
    box.add_argument("--out", type=Path, required=True, metavar="SCENES.jsonl")
    json_option(box)
    _add_write(parts)


def _import(args: argparse.Namespace) -> int:
    from personae.world.scene_file import write_scenes
    from personae.world.scene_import import import_characterbox

    notes: list[str] = []
    scenes = import_characterbox(
        args.path, origin=args.origin, language=args.lang, note=notes.append
    )
    write_scenes(scenes, args.out)
    return _show_scenes(args, {**_described(scenes, args.out), "notes": notes})


def _described(scenes: tuple[Any, ...], path: Path) -> dict[str, Any]:
    """What a scene file holds."""
    return {
        "path": str(path),
        "scenes": len(scenes),
        "titles": dict(sorted(Counter(s.title for s in scenes).items())),
        "origins": dict(sorted(Counter(s.origin for s in scenes).items())),
        "languages": dict(sorted(Counter(s.language for s in scenes).items())),
        "characters": {
            str(n): times for n, times in sorted(Counter(len(s.characters) for s in scenes).items())
        },
    }


def _show_scenes(args: argparse.Namespace, document: dict[str, Any]) -> int:
    return show_document(args, document, lambda console: _print_scenes(console, document))


def _print_scenes(console: Console, document: dict[str, Any]) -> None:
    def say(line: str) -> None:  # titles and notes hold what strangers wrote
        console.print(Text(clean(line)), soft_wrap=True)

    say(f"{document['path']}: {document['scenes']} scenes")
    for name in ("titles", "origins", "languages"):
        counted = ", ".join(f"{key} {n}" for key, n in document[name].items())
        say(f"  {name}: {counted}")
    sizes = ", ".join(f"{n} with {size}" for size, n in document["characters"].items())
    say(f"  characters: {sizes}")
    for note in document["notes"][:SHOWN]:
        say(f"  note: {note}")
    if len(document["notes"]) > SHOWN:
        console.print(f"  ... and {len(document['notes']) - SHOWN} more notes (see --json)")


def _add_write(parts: Any) -> None:
    made = command(parts, "write", _write, "have scenes written, directed and reviewed")
    source = made.add_argument_group("what from (default: the starter cast)")
    source.add_argument("--book", type=Path, metavar="FILE", help="a text file, of any length")
    source.add_argument("--cast", type=Path, metavar="DIR", help="a folder of character cards")
    source.add_argument(
        "--origin",
        choices=["extracted", "generated"],
        help="of a book: take scenes out of it (default), or invent them for its people",
    )
    source.add_argument("--title", metavar="TEXT", help="default: the name of the file or folder")
    source.add_argument(
        "--chunk-tokens", type=int, default=3000, metavar="N",
        help="a passage of the book that is read at once (default 3000)",
    )  # fmt: skip
    source.add_argument(
        "--overlap", type=int, metavar="N",
        help="tokens that two passages share (default a tenth)",
    )  # fmt: skip
    made.add_argument(
        "--writer", nargs="+", action="extend", required=True, metavar="MODEL",
        help="the screenwriter; several with --compare",
    )  # fmt: skip
    made.add_argument("--director", metavar="MODEL", help="default: the writer")
    made.add_argument("--reviewer", metavar="MODEL", help="default: the writer")
    made.add_argument("--n", type=int, required=True, metavar="N", help="how many scenes")
    made.add_argument(
        "--max-rounds", type=int, default=3, metavar="N",
        help="how often a scene is directed and reviewed at most (default 3)",
    )  # fmt: skip
    made.add_argument(
        "--threshold", type=float, default=3.5, metavar="X",
        help="least mean score of an accepted scene (default 3.5)",
    )  # fmt: skip
    made.add_argument(
        "--compare", action="store_true",
        help="N scenes by each writer, single pass beside three stages, all scored by --reviewer",
    )  # fmt: skip
    made.add_argument("--lang", choices=["en", "zh"], help="default: that of the book or the cast")
    made.add_argument("--out", type=Path, required=True, metavar="SCENES.jsonl")
    calls_models(made)


def _write(args: argparse.Namespace) -> int:
    from personae.stages import run_beside

    args.run_dir = run_beside(args.out)
    return _compare_writers(args) if args.compare else _write_scenes(args)


def _common(args: argparse.Namespace) -> dict[str, Any]:
    names = ("book", "cast", "title", "chunk_tokens", "overlap", "max_rounds", "threshold", "seed")
    return {**{name: getattr(args, name) for name in names}, "language": args.lang}


def _write_scenes(args: argparse.Namespace) -> int:
    from personae.scene_stage import REJECTED, write

    if len(args.writer) != 1:
        raise UsageError("several --writer are compared: add --compare")
    done = carry_out(
        args,
        lambda options: write(
            args.out,
            args.writer[0],
            args.n,
            director=args.director,
            reviewer=args.reviewer,
            origin=args.origin,
            options=options,
            **_common(args),
        ),
    )
    if done.plan is not None:
        return show_plan(args, done.plan)
    written = done.written
    short = written.shortfall
    notes = [] if short is None else [f"{short.got} of {short.wanted} scenes: {short.cause}"]
    document = {
        **_described(written.scenes, done.path),
        "wanted": args.n,
        "rejected": dict(Counter(a.cause for a in written.rejected)),
        "rule": {"lowest": done.rule.lowest, "mean": done.rule.mean},
        "shortfall": None if short is None else short.to_dict(),
        "run": str(done.run),
        "notes": notes,
    }

    def show(console: Console) -> None:
        if not written.scenes:
            console.print("No scene was accepted; no file was written.")
        else:
            _print_scenes(console, document)
        console.print(
            f"  accepted where the reviewer says so, no score is below {done.rule.lowest} and "
            f"their mean is {done.rule.mean:g} at least",
            soft_wrap=True,
        )
        if written.rejected:
            line = f"  what was rejected, and why: {done.run / REJECTED}"
            console.print(line, markup=False, soft_wrap=True)

    show_document(args, document, show)
    return 0 if written.scenes else 1


def _compare_writers(args: argparse.Namespace) -> int:
    from personae.scene_stage import compare

    if args.director is not None or args.origin is not None:
        raise UsageError(
            "--compare takes no --director and no --origin: each writer directs itself, and a "
            "book's scenes are both extracted and generated"
        )
    if args.reviewer is None:
        raise UsageError("--compare needs a --reviewer that scores every writer's scenes")
    done = carry_out(
        args,
        lambda options: compare(
            args.out, args.writer, args.reviewer, args.n, options=options, **_common(args)
        ),
    )
    if done.plan is not None:
        return show_plan(args, done.plan)
    found, short = done.comparison, done.shortfall
    document = {
        **found.to_dict(),
        "path": str(done.path),
        "scenes": done.scenes,
        "shortfall": None if short is None else short.to_dict(),
        "run": str(done.run),
    }

    def show(console: Console) -> None:
        for origin in sorted({row.origin for row in found.writers}):
            for title, rows in (
                ("scores, 1 to 5", found.writers),
                ("three stages minus single pass", found.differences),
            ):
                of_origin = [row for row in rows if row.origin == origin]
                _print_criteria(console, f"{origin.capitalize()} scenes: {title}", of_origin)
        if short is not None:
            console.print(f"{short.got} of {short.wanted} sources: {short.cause}.")
        console.print(
            f"Scored by {found.reviewer}; 95 % intervals over sources. A writer directs and "
            "reviews itself within the three stages.",
            markup=False,
            soft_wrap=True,
        )

    show_document(args, document, show)
    return 0 if done.scenes else 1


def _print_criteria(console: Console, title: str, rows: Any) -> None:
    from personae.world.writing import CRITERIA

    table = Table(title=title)
    for name in ("writer", "method"):
        table.add_column(name, overflow="fold")
    for name in (*CRITERIA, "n", "missing"):
        table.add_column(name, justify="right", overflow="fold")
    for row in rows:
        cells = []
        for name in CRITERIA:
            found = row.criteria[name]
            if found is None or found.mean is None:
                cells.append("-")
            elif found.low is None:
                cells.append(f"{found.mean:.2f}")
            else:
                cells.append(f"{found.mean:.2f} [{found.low:.2f}, {found.high:.2f}]")
        method = getattr(row, "method", "difference").replace("_", " ")
        missing = getattr(row, "missing", None)
        share = "" if missing is None else f"{missing:.0%}"
        table.add_row(
            escape(row.writer), row.origin, method, *map(escape, cells), str(row.n), share
        )
    console.print(table)


def _resume_write(args: argparse.Namespace, run: Path, was: Was) -> int:
    args.out, args.n = was.out(), was("n", int)
    args.book, args.cast = was.path("book"), was.path("cast")
    args.title, args.origin = was("title", str, None), was("origin", str, None)
    args.chunk_tokens, args.overlap = was("chunk_tokens", int), was("overlap", int, None)
    args.max_rounds, args.threshold = was("max_rounds", int), was("threshold", float, int)
    args.compare, args.lang = was("compare", bool), was.manifest.language
    args.writer, args.reviewer = was.models("screenwriter"), was.models("reviewer")[0]
    args.director = None if args.compare else was.models("director")[0]
    args.run_dir = run
    return _write(args)


RESUMES: dict[str, Resume] = {"scene write": _resume_write}
