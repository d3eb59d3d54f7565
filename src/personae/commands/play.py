"""`personae play`: play scenes."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Sequence
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
    write_play_page,
)
from personae.errors import InputError, UsageError
from personae.records.call import PERSON, is_person
from personae.session import MANIFEST

if TYPE_CHECKING:
    from rich.text import Text

    from personae.branch_stage import Branch
    from personae.records import Play, Scene
    from personae.world.branching import Branching
    from personae.world.live import LiveView

NARRATOR = "narrator"
SCENES = "scenes.jsonl"


def add(commands: Any) -> None:
    """Add the commands to the parser."""
    made = command(commands, "play", _play, "play scenes: characters act, a narrator answers")
    made.add_argument(
        "scenes",
        type=Path,
        metavar="SCENES.jsonl",
        help="a scene file; starter, starter:en, starter:zh or starter:disc (the shipped scenes); "
        "with --from-round also a play's run directory",
    )
    made.add_argument("--scene", nargs="+", action="extend", metavar="ID", help="only these scenes")
    made.add_argument("--characters", metavar="MODEL", help="plays the characters")
    made.add_argument("--narrator", metavar="MODEL", help="is the world")
    made.add_argument(
        "--character",
        action="append",
        default=[],
        metavar="NAME=MODEL",
        help="another model for one character",
    )
    made.add_argument(
        "--as",
        action="append",
        default=[],
        dest="seats",
        metavar="NAME",
        help="you play this character, or are the narrator",
    )
    shown = made.add_mutually_exclusive_group()
    shown.add_argument(
        "--live",
        action="store_const",
        const=True,
        help="show the play as it happens (default: on a terminal, one scene; with a seat)",
    )
    shown.add_argument(
        "--no-live", action="store_const", const=False, dest="live", help="show bars only"
    )
    made.add_argument("--rounds", type=int, metavar="N", help="rounds at most (default 3)")
    made.add_argument(
        "--from-round",
        type=int,
        metavar="N",
        help="branch a play: its rounds before N stay, from N on these models play",
    )
    made.add_argument(
        "--trust-scripts", action="store_true", help="run the scripts that a branched play names"
    )
    made.add_argument("--protocol", choices=["paper", "personae"], help="docs/world.md")
    made.add_argument("--lang", choices=["en", "zh"], help="of the prompts (default: the scenes')")
    made.add_argument(
        "--embedder",
        metavar="NAME",
        help="recall memories by meaning too: minilm, st:NAME, provider/model (docs/memory.md)",
    )
    made.add_argument("--out", type=Path, required=True, metavar="RUN", help="the run directory")
    calls_models(made)


def _play(args: argparse.Namespace) -> int:
    from personae.world.engine import DEFAULT_ROUNDS

    by_name = _by_name(args.character)
    for name in args.seats:
        if name == NARRATOR:
            args.narrator = PERSON + NARRATOR
        elif by_name.setdefault(name, PERSON + name) != PERSON + name:
            raise UsageError(f"--character gives {name!r} a model and --as a person")
    if args.from_round is not None:
        return _branch(args, by_name)
    for option in ("characters", "narrator"):
        if getattr(args, option) is None:
            raise UsageError(f"--{option} MODEL is missing")
    args.trust_scripts = True  # the user named them all
    args.protocol = args.protocol or "personae"
    args.rounds = DEFAULT_ROUNDS if args.rounds is None else args.rounds
    return _carry_out(args, by_name, _scenes(args))


def _scenes(args: argparse.Namespace) -> Path | Sequence[Scene]:
    """The scene file, or the shipped scenes; of these `--lang` takes those in the language."""
    from personae.characters.starter import SCHEME, scenes_named

    source = str(args.scenes)
    if args.scenes.is_dir():
        raise UsageError(
            f"{args.scenes} is a directory. To play its scenes give {args.scenes / SCENES}, to "
            "branch the play in it give --from-round"
        )
    if args.scenes.is_file() or f"{source}:".partition(":")[0] != SCHEME.removesuffix(":"):
        return Path(args.scenes)
    found = scenes_named(source)
    return [s for s in found if args.lang in (None, s.language)] or found


def _branch(args: argparse.Namespace, by_name: dict[str, str]) -> int:
    """Rounds before one are those of an earlier play: the one named, or the one in `--out`."""
    from personae.branch_stage import plan_branch

    named = args.scenes.is_dir()
    inside = not named or args.scenes.resolve() == args.out.resolve()
    parent = args.out if inside else args.scenes
    if not named and not (parent / MANIFEST).is_file():
        raise UsageError(
            "--from-round branches a play: give its run directory in place of SCENES.jsonl"
        )
    planned = plan_branch(
        parent,
        args.from_round,
        characters=args.characters,
        narrator=args.narrator,
        by_name=by_name,
        only=args.scene or (),
        rounds=args.rounds,
        trust_scripts=args.trust_scripts,
    )
    was, args.trust_scripts = planned.manifest, True  # those of the play have been checked
    for option, now, then in (
        ("--protocol", args.protocol, was.protocol),
        ("--lang", args.lang, was.language),
        ("--embedder", args.embedder, was.arguments.get("embedder")),
        ("--seed", args.seed or None, was.seed),
    ):
        if now not in (None, then):
            raise UsageError(f"a branch keeps what the play has: {option} was {then}")
    if inside:
        if not named:
            _check_same(_scenes(args), planned)
        args.out = planned.inside
        print(f"The branch goes to {args.out}", file=sys.stderr)  # noqa: T201
    args.scene, args.rounds = list(planned.only), planned.rounds
    args.characters, args.narrator = planned.cast.characters, planned.cast.narrator
    args.protocol, args.lang, args.seed = was.protocol, was.language, was.seed
    args.embedder = was.arguments.get("embedder")
    return _carry_out(args, planned.cast.by_name, planned.parent / SCENES, planned.taken)


def _check_same(scenes: Path | Sequence[Scene], planned: Branch) -> None:
    """A branch of a run plays what the run has played, and not what a file has become since."""
    from personae.world.scene_file import read_scenes

    found = read_scenes(scenes) if isinstance(scenes, Path) else scenes
    now = {scene.id: scene.hash for scene in found}
    for scene in planned.scenes:
        if now.get(scene.id) != scene.hash:
            raise UsageError(
                f"{planned.parent} was not played from these scenes: {scene.id!r} is "
                + ("another one" if scene.id in now else "missing")
                + ". Give the run directory itself in place of SCENES.jsonl"
            )


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


def _carry_out(
    args: argparse.Namespace,
    by_name: dict[str, str],
    scenes: Path | Sequence[Scene],
    branch: Branching | None = None,
) -> int:
    from personae.models.person import Person, Terminal
    from personae.play_stage import play_scenes

    args.run_dir = args.out
    seats = [name for name, model in by_name.items() if is_person(model)]
    people = bool(seats) or is_person(args.characters) or is_person(args.narrator)
    terminal = Terminal(_screen(args, people=people))
    view = _view(args, scenes, seats, terminal.say, people=people)
    with contextlib.nullcontext() if view is None else terminal:
        done = carry_out(
            args,
            lambda options: play_scenes(
                scenes,
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
                heard=None if view is None else view.hear,
                branch=branch,
                seat=lambda model_id: Person(model_id, terminal),
                options=options,
            ),
            quiet=people or view is not None,
        )
    if done.plan is not None:
        if not args.json:
            print("At most; every act is counted as one that affects somebody.")  # noqa: T201
        return show_plan(args, done.plan)
    document = {
        "run": str(args.out),
        "plays": [_described(play) for play in done.plays],
        "page": write_play_page(args, args.out),
    }
    return show_document(args, document, lambda console: _show(console, document))


def _screen(args: argparse.Namespace, *, people: bool) -> Console:
    """Where the play shows: not among `--json`'s output, nor where whoever is asked cannot see."""
    elsewhere = people and not sys.stdout.isatty() and sys.stderr.isatty()
    return Console(stderr=args.json or elsewhere, highlight=False, emoji=False)


def _view(
    args: argparse.Namespace,
    scenes: Path | Sequence[Scene],
    seats: Sequence[str],
    say: Callable[[Text], None],
    *,
    people: bool,
) -> LiveView | None:
    """The live view, if there is to be one; from a character's seat only what that perceives."""
    from personae.world.live import LiveView
    from personae.world.scene_file import read_scenes

    wanted: bool | None = getattr(args, "live", None)
    if wanted is None and (args.dry_run or not (people or sys.stdout.isatty())):
        return None
    found = read_scenes(scenes) if isinstance(scenes, Path) else scenes
    count = sum(not args.scene or scene.id in args.scene for scene in found)
    if wanted is None:
        wanted = people or (count == 1 and not args.json)
    if not wanted:
        return None
    everything = not seats or is_person(args.characters) or is_person(args.narrator)
    return LiveView(say, seats=None if everything else seats, language=args.lang, several=count > 1)


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
    if document["page"]:
        console.print(f"The page: {document['page']}", markup=False)


def _resume_play(args: argparse.Namespace, run: Path, was: Was) -> int:
    from personae.world.branching import Branching

    # The run keeps a copy of what it plays; the file may have changed or gone since.
    copy = run / SCENES
    scenes = copy if copy.is_file() else was.path("scenes")
    if scenes is None:
        raise InputError("has lost its scenes", path=copy, mend="Play them again")
    args.out = run
    args.scene = was.texts("only")
    args.characters, args.narrator = was("characters", str), was.models("narrator")[0]
    args.rounds, args.embedder = was("rounds", int), was("embedder", str, None)
    args.protocol, args.lang = was.manifest.protocol, was.manifest.language
    by_name = {str(name): str(model) for name, model in was("by_name", dict).items()}
    taken = was("branch", dict, None)
    branch = taken and Branching.from_dict(taken, path=run / MANIFEST, place="arguments.branch")
    return _carry_out(args, by_name, scenes, branch)


RESUMES: dict[str, Resume] = {"play": _resume_play}
