"""`personae scene`: scenes: import and write."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console

from personae.commands.base import Resume, command, json_option, show_document

RESUMES: dict[str, Resume] = {}

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
        help="default: by the folder (extracted_scenes, generated_data)",
    )
    box.add_argument("--lang", choices=["en", "zh"], help="default: that of each scene's text")
    box.add_argument("--out", type=Path, required=True, metavar="SCENES.jsonl")
    json_option(box)


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
    def show(console: Console) -> None:
        console.print(
            f"{document['path']}: {document['scenes']} scenes", markup=False, soft_wrap=True
        )
        for name in ("titles", "origins", "languages"):
            counted = ", ".join(f"{key} {n}" for key, n in document[name].items())
            console.print(f"  {name}: {counted}", markup=False, soft_wrap=True)
        sizes = ", ".join(f"{n} with {size}" for size, n in document["characters"].items())
        console.print(f"  characters: {sizes}", markup=False, soft_wrap=True)
        for note in document["notes"][:SHOWN]:
            console.print(f"  note: {note}", markup=False, soft_wrap=True)
        if len(document["notes"]) > SHOWN:
            console.print(f"  ... and {len(document['notes']) - SHOWN} more notes (see --json)")

    return show_document(args, document, show)
