"""`personae play`: play scenes."""

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
    show_document,
    show_plan,
)
from personae.errors import UsageError

if TYPE_CHECKING:
    from personae.records import Play


def add(commands: Any) -> None:
    """Add the commands to the parser."""
    made = command(commands, "play", _play, "play scenes: characters act, a narrator answers")
    made.add_argument("scenes", type=Path, metavar="SCENES.jsonl")
    made.add_argument("--scene", nargs="+", action="extend", metavar="ID", help="only these scenes")
    made.add_argument("--characters", required=True, metavar="MODEL", help="plays the characters")
    made.add_argument("--narrator", required=True, metavar="MODEL", help="is the world")
    made.add_argument(
        "--character",
        action="append",
        default=[],
        metavar="NAME=MODEL",
        help="another model for one character",
    )
    made.add_argument(
        "--rounds", type=int, default=3, metavar="N", help="rounds at most (default 3)"
    )
    made.add_argument(
        "--protocol", choices=["paper", "personae"], default="personae", help="docs/world.md"
    )
    made.add_argument("--lang", choices=["en", "zh"], help="of the prompts (default: the scenes')")
    made.add_argument(
        "--embedder",
        metavar="NAME",
        help="recall memories by meaning too: minilm, st:NAME, provider/model (docs/memory.md)",
    )
    made.add_argument("--out", type=Path, required=True, metavar="RUN", help="the run directory")
    calls_models(made)


def _play(args: argparse.Namespace) -> int:
    return _carry_out(args, _by_name(args.character))


def _by_name(given: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for one in given:
        name, mark, model = one.partition("=")
        if not (name.strip() and mark and model.strip()):
            raise UsageError(f"--character {one!r} is not NAME=MODEL")
        if name.strip() in found:
            raise UsageError(f"--character names {name.strip()!r} twice")
        found[name.strip()] = model.strip()
    return found


def _carry_out(args: argparse.Namespace, by_name: dict[str, str]) -> int:
    from personae.play_stage import play_scenes

    args.run_dir = args.out
    done = carry_out(
        args,
        lambda options: play_scenes(
            args.scenes,
            args.out,
            args.characters,
            args.narrator,
            only=args.scene or (),
            by_name=by_name,
            rounds=args.rounds,
            protocol=args.protocol,
            language=args.lang,
            embedder=args.embedder,
            seed=args.seed,
            options=options,
        ),
    )
    if done.plan is not None:
        if not args.json:
            print("At most; every act is counted as one that affects somebody.")  # noqa: T201
        return show_plan(args, done.plan)
    document = {"run": str(args.out), "plays": [_described(play) for play in done.plays]}
    return show_document(args, document, lambda console: _show(console, document))


def _described(play: Play) -> dict[str, Any]:
    kinds = [event.kind for event in play.events]
    return {
        "scene": play.scene.id,
        "rounds": play.rounds,
        "concluded": play.concluded,
        "complete": play.complete,
        "events": len(kinds),
        "interactions": kinds.count("influence"),
        "failures": kinds.count("failure"),
    }


def _show(console: Console, document: dict[str, Any]) -> None:
    for play in document["plays"]:
        end = "concluded" if play["concluded"] else "open" if play["complete"] else "stopped"
        failed = f", {play['failures']} replies missing" if play["failures"] else ""
        console.print(
            f"{play['scene']}: {play['rounds']} rounds, {play['events']} events, "
            f"{play['interactions']} interactions, {end}{failed}",
            markup=False,
        )
    console.print(f"The plays are in {document['run']}/plays.jsonl", markup=False)


def _resume_play(args: argparse.Namespace, run: Path, was: Was) -> int:
    from personae.play_stage import SCENES

    # The run keeps a copy of what it plays; the file may have changed or gone since.
    copy = run / SCENES
    args.scenes = copy if copy.is_file() else was.path("scenes")
    args.out = run
    args.scene = was.texts("only")
    args.characters, args.narrator = was("characters", str), was.models("narrator")[0]
    args.rounds, args.embedder = was("rounds", int), was("embedder", str, None)
    args.protocol, args.lang = was.manifest.protocol, was.manifest.language
    by_name = was("by_name", dict)
    return _carry_out(args, {str(name): str(model) for name, model in by_name.items()})


RESUMES: dict[str, Resume] = {"play": _resume_play}
