"""`personae cast`: train, add, route, chat, eval, export."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from personae.commands.base import Resume, Was, command, json_option, show_document
from personae.errors import UsageError
from personae.progress import Display
from personae.records.shown import clean
from personae.session import REPORT, RESULTS

if TYPE_CHECKING:
    from personae.cast.plan import TrainPlan
    from personae.cast_eval_stage import Evaluated
    from personae.models.local.weights import Progress
    from personae.records.cast_reports import Addition


DATA_HELP = (
    "cards, starter:ID, runs of `personae eval` and `personae play`, dialogues as JSONL, or folders"
)


def add(commands: Any) -> None:
    """Add the commands to the parser."""
    room = command(commands, "cast", None, "one model, many characters: train, extend, ask, export")
    parts = room.add_subparsers(title="cast commands", metavar="COMMAND")
    _add_train(parts)
    _add_add(parts)
    _add_route(parts)
    _add_chat(parts)
    _add_eval(parts)
    _add_export(parts)


def _cast_argument(made: argparse.ArgumentParser) -> None:
    made.add_argument("cast", type=Path, metavar="CAST", help="the folder of a cast")


def _watched(args: argparse.Namespace, work: Callable[[Display], Any]) -> Any:
    """Carry out what needs no run and calls no endpoint, under the display."""
    with Display(quiet=args.json and not sys.stderr.isatty(), calls=False) as display:
        return work(display)


def _told(display: Display) -> Progress:
    """Says once of each thing that it is fetched or converted."""
    said: set[str] = set()

    def tell(what: str, _done: int | None, _total: int | None) -> None:
        if what not in said:
            said.add(what)
            display.say(what)

    return tell


def _say(console: Console, text: str, style: str | None = None) -> None:
    """A line as it is: a terminal may break it anywhere, so that a path can be copied."""
    console.print(clean(text), markup=False, soft_wrap=True, style=style)


# train -----------------------------------------------------------------------------------------


def _add_train(parts: Any) -> None:
    made = command(parts, "train", _train, "train the blocks of a cast on one frozen model")
    made.add_argument("data", nargs="+", metavar="DATA", help=DATA_HELP)
    made.add_argument(
        "--base",
        required=True,
        metavar="MODEL",
        help="local (the embedded model), or a Hugging Face directory",
    )
    made.add_argument("--out", type=Path, required=True, metavar="CAST", help="the cast's folder")
    made.add_argument(
        "--protocol",
        choices=["paper", "personae"],
        default="personae",
        help="personae: a shared block first, then each character's own; paper: isolated blocks",
    )
    made.add_argument(
        "--baselines", action="store_true", help="also train what the cast is compared with"
    )
    made.add_argument(
        "--mode",
        choices=["full", "speaker"],
        default="full",
        help="full: a block works on all tokens; speaker: on its own character's",
    )
    made.add_argument(
        "--card",
        nargs="+",
        action="extend",
        default=[],
        metavar="CARD",
        help="further cards, for their profiles alone",
    )
    made.add_argument("--licence", metavar="TEXT", help="of data that state none")
    made.add_argument("--speaker", metavar="NAME", help="who speaks where the data do not say")
    _numbers(made)
    made.add_argument("--seed", type=int, default=0, metavar="N", help="seed (default 0)")
    json_option(made)


def _numbers(made: argparse.ArgumentParser) -> None:
    """What a user may change of a training; what is not given stays as the plan has it."""
    from personae.cast.plan import MEASURED_WIDTH, TrainPlan

    usual = TrainPlan()
    paper = usual.paper()

    def both(name: str, more: str = "") -> str:
        """The plan's number, and the paper's where it is another."""
        ours, theirs = getattr(usual, name), getattr(paper, name)
        said = f"{ours:g}{more}" if ours == theirs else f"{ours:g}{more}; paper: {theirs:g}"
        return f" (default {said})"

    wide = f" over a base {MEASURED_WIDTH} wide, less over a wider one"
    group = made.add_argument_group("the training")
    budget = group.add_mutually_exclusive_group()
    for to, name, kind, text in (
        (group, "--rank", int, "of a block" + both("rank")),
        (group, "--alpha", float, "a block's update is alpha / rank times B A" + both("alpha")),
        (group, "--lr", float, "highest rate of the characters' own blocks" + both("lr", wide)),
        (
            group,
            "--shared-lr",
            float,
            f"highest rate of the shared block (default {usual.shared_lr:g}{wide})",
        ),
        (
            budget,
            "--epochs",
            float,
            "how often each row is seen, all stages together" + both("epochs"),
        ),
        (
            budget,
            "--tokens-per-role",
            int,
            "in place of epochs: supervised tokens of each character, repeats counted",
        ),
        (group, "--batch-rows", int, "rows of each character in a step" + both("batch_rows")),
        (
            group,
            "--max-tokens",
            int,
            "of a row; a longer one loses turns from its front" + both("max_tokens"),
        ),
        (
            group,
            "--development",
            float,
            "share of the rows that is watched, not learnt, as 0.1 (default none)",
        ),
        (
            group,
            "--patience",
            int,
            "checks without a better loss after which a block stops (default: none stops)",
        ),
    ):
        to.add_argument(name, type=kind, metavar="N", help=text)
    group.add_argument(
        "--targets",
        nargs="+",
        metavar="NAME",
        help="adapted modules, by the end of their names (default: all linear ones; paper: "
        f"{', '.join(paper.targets)})",
    )
    group.add_argument(
        "--dtype",
        choices=["float32", "bfloat16"],
        help="of the frozen model (default: bfloat16 where the hardware multiplies in it)",
    )


def _plan(args: argparse.Namespace, protocol: str, mode: str) -> TrainPlan:
    from dataclasses import replace

    from personae.cast.plan import TrainPlan

    begin = TrainPlan(mode=mode, seed=args.seed)  # type: ignore[arg-type]  # argparse's choices
    if protocol == "paper":
        begin = begin.paper()
    names = (
        *("rank", "alpha", "epochs", "tokens_per_role", "batch_rows"),
        *("max_tokens", "development", "patience", "dtype"),
    )
    given = {name: value for name in names if (value := getattr(args, name)) is not None}
    if args.targets:
        given["targets"] = tuple(args.targets)
    if "patience" in given and "development" not in given:
        raise UsageError("--patience needs rows to watch: give --development a share, as 0.1")
    return replace(begin, **given)


def _train(args: argparse.Namespace) -> int:
    from personae.cast.history import LossTeller, course_of
    from personae.cast.training import read_plan
    from personae.cast_stage import train_cast

    done = _watched(
        args,
        lambda display: train_cast(
            args.data,
            args.base,
            args.out,
            plan=_plan(args, args.protocol, args.mode),
            rates={n: v for n in ("lr", "shared_lr") if (v := getattr(args, n)) is not None},
            cards=args.card,
            licence=args.licence,
            character=args.speaker,
            baselines=args.baselines,
            watcher=display,
            hear=LossTeller(display.say),
            progress=_told(display),
        ),
    )
    document = done.document()

    def show(console: Console) -> None:
        table = Table("character", title=Text(str(args.out)))
        # The whole way, as a character's own block alone begins where the shared one ended.
        plan = read_plan(args.out)
        best = plan is not None and plan.patience is not None
        course = {name: course_of(done.history, name, best=best) for name in done.cast.names}
        watched = any(one.watched for one in course.values())
        kind = "development loss" if watched else "loss"
        # Steps hold different rows: a difference of two is not what was learnt.
        table.caption = (
            "nats a token, over the same rows that were not learnt"
            if watched
            else "nats a token; rows of the first step, and of the last pass: watch the same rows "
            "with --development"
        )
        for name in ("rows", "turns", f"{kind} before", "after"):
            table.add_column(name, justify="right")
        for one in document["characters"]:
            loss = (course[one["name"]].before, course[one["name"]].after)
            table.add_row(
                Text(clean(one["name"])),
                f"{one['rows']:,}",
                f"{one['turns']:,}",
                *("-" if value is None else f"{value:.3f}" for value in loss),
            )
        console.print(table)
        for name, said in document["baselines"].items():
            _say(console, f"{name}: {said}")
        if n := len(document["too_long"]):
            rows = "1 dialogue does" if n == 1 else f"{n:,} dialogues do"
            _say(console, f"{rows} not fit into --max-tokens and taught nothing")
        if document["unused_cards"]:
            names = ", ".join(document["unused_cards"])
            _say(console, f"Cards of nobody who speaks in these data: {names}")
        if n := document["refused"]:
            lines = "1 line or row was" if n == 1 else f"{n:,} lines or rows were"
            _say(
                console,
                f"{lines} not learnt, or in part; which and why: "
                f"{document['training']}/refused.jsonl",
            )
        if n := document["shortened"]:
            rows = "1 row was" if n == 1 else f"{n:,} rows were"
            _say(console, f"{rows} longer than --max-tokens, and lost turns from the front")
        _say(console, f"How it went: {document['training']}/loss.svg")
        _say(console, f"Talk to it: {shlex.join(['personae', 'cast', 'chat', str(args.out)])}")

    return show_document(args, document, show)


# add -------------------------------------------------------------------------------------------


def _add_add(parts: Any) -> None:
    made = command(parts, "add", _add, "add a character to a cast; the others stay as they are")
    _cast_argument(made)
    made.add_argument("--role", required=True, metavar="CARD", help="its card, or starter:ID")
    made.add_argument(
        "--data",
        nargs="+",
        metavar="FILE",
        help=f"its lines, for expand and --tune (default: those on its card): {DATA_HELP}",
    )
    made.add_argument(
        "--how",
        required=True,
        choices=["fuse", "expand", "profile"],
        help="fuse: from its nearest neighbours, no data; expand: a block of its own, trained; "
        "profile: its card in the prompt, on the shared block",
    )
    made.add_argument("--name", metavar="NAME", help="it goes by (default: the card's)")
    made.add_argument(
        "--alias",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME",
        help="other names by which the router finds it",
    )
    made.add_argument(
        "--tune", action="store_true", help="move the fusion's weights on its lines, no gradients"
    )
    made.add_argument(
        "--heldout",
        nargs="+",
        metavar="FILE",
        help="dialogues of the old characters: their likelihood before and after",
    )
    made.add_argument("--licence", metavar="TEXT", help="of data that state none")
    made.add_argument("--base", metavar="MODEL", help="where the cast's base lies now")
    made.add_argument(
        "--epochs", type=float, metavar="N", help="of expand (default: as the cast was trained)"
    )
    made.add_argument(
        "--lr", type=float, metavar="N", help="of expand (default: as the cast was trained)"
    )
    made.add_argument("--seed", type=int, default=0, metavar="N", help="seed (default 0)")
    json_option(made)


def _add(args: argparse.Namespace) -> int:
    from dataclasses import replace

    from personae.cast.add import add_character
    from personae.cast.plan import TrainPlan
    from personae.cast.rows import read_rows
    from personae.cast.training import read_plan

    refused: list[Any] = []

    def rows(paths: list[str] | None) -> list[Any]:
        if not paths:
            return []
        found, not_learnt = read_rows(paths, licence=args.licence)
        refused.extend(not_learnt)
        return found

    given = {n: v for n in ("epochs", "lr") if (v := getattr(args, n)) is not None}
    if given and args.how != "expand":
        raise UsageError(f"nothing is trained by --how {args.how}: leave out --epochs and --lr")
    done = _watched(
        args,
        lambda display: add_character(
            args.cast,
            args.role,
            args.how,
            name=args.name,
            aliases=args.alias,
            data=rows(args.data),
            tune=args.tune,
            heldout=rows(args.heldout),
            plan=replace(read_plan(args.cast) or TrainPlan(), **given) if given else None,
            seed=args.seed,
            base=args.base,
            watcher=display,
        ),
    )
    document = {
        **done.record.to_dict(),
        "record": str(done.out),
        "refused": [one.to_dict() for one in refused],
    }
    return show_document(
        args, document, lambda console: _show_addition(console, done.record, args.cast, done.out)
    )


def _show_addition(console: Console, record: Addition, cast: Path, file: Path) -> None:
    through = " + ".join(f"{weight:.2f} {name}" for name, weight in record.weights.items())
    _say(console, f"{record.role} ({record.how}) speaks through {through or 'the base alone'}")
    told = record.forgetting
    same = sum(one.blocks_identical for one in told.characters)
    _say(console, f"Blocks as before: {same} of {len(told.characters)} characters")
    moved = [d for one in told.characters if (d := one.logit_difference) is not None]
    if moved:
        _say(console, f"Greatest difference of a logit of theirs: {max(moved):g}")
    if record.shortened:
        _say(console, f"Dialogues learnt in part, since they are too long: {record.shortened}")
    if record.too_long:
        _say(console, f"Dialogues too long to be learnt: {', '.join(record.too_long)}")
    for one in told.characters:
        if one.nll_before is not None and one.nll_after is not None:
            losses = f"{one.nll_before:.4f} before, {one.nll_after:.4f} after"
            _say(console, f"Held-out lines of {one.name}, nats a token: {losses}")
    if tuned := record.tuning:
        losses = f"{tuned.start_loss:.4f} with the router's weights, {tuned.loss:.4f} with these"
        _say(console, f"The {tuned.lines} lines it was tuned on, nats a token: {losses}")
    for count, text in _rerouted(record):
        if count:
            _say(console, f"{count} of {told.routes.tried} tried instructions {text}")
    if record.licences:
        _say(console, f"Licences of what it learnt from: {', '.join(record.licences)}")
    if record.unlicensed:
        _say(console, f"Licence not known: {', '.join(record.unlicensed)}")
    _say(console, f"All of it: {file}")
    _say(
        console,
        f"Talk to it: {shlex.join(['personae', 'cast', 'chat', str(cast), '--role', record.role])}",
    )


def _rerouted(record: Addition) -> list[tuple[int, str]]:
    """How many instructions go elsewhere now, and what that means for the old characters."""
    routes = record.forgetting.routes
    gained = sum(
        one.change == "moved" and one.meant is None and one.after.role == record.role
        for one in routes.changes
    )
    return [
        (routes.count("stolen"), f"asked for an old character and now go to {record.role}"),
        (routes.count("lost"), "asked for an old character and no longer reach it"),
        (gained, f"asked for nobody of the old cast and now go to {record.role}"),
        (
            routes.count("moved") - gained,
            "asked for nobody of the old cast, or went wrong before, and are now taken otherwise",
        ),
    ]


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

    found = read_cast(args.cast).route(args.instruction, previous=args.previous)

    def show(console: Console) -> None:
        who = {"accept": found.role, "ask": f"perhaps {found.role}", "reject": "nobody"}
        said = f"{found.decision}: {who[found.decision]} ({found.confidence:.0%}, by {found.by})"
        _say(console, said)
        if found.weights and found.decision != "accept":
            _say(console, "Nearest by what their cards say:")
        if found.decision != "accept" or len(found.weights) > 1:
            for role, weight in found.weights.items():
                _say(console, f"  {weight:.2f}  {role}")

    return show_document(args, found.to_dict(), show)


# chat ------------------------------------------------------------------------------------------


def _add_chat(parts: Any) -> None:
    made = command(parts, "chat", _chat, "talk to a cast in the terminal")
    _cast_argument(made)
    made.add_argument(
        "--role", metavar="NAME", help="who answers (default: whom each line asks for)"
    )


def _chat(args: argparse.Namespace) -> int:
    from personae.cast.chat import chat_in_terminal

    return chat_in_terminal(args.cast, args.role)


# eval ------------------------------------------------------------------------------------------


def _add_eval(parts: Any) -> None:
    made = command(
        parts, "eval", _eval, "how well a cast predicts held-out lines of its characters"
    )
    _cast_argument(made)
    made.add_argument(
        "--data", type=Path, nargs="+", required=True, metavar="FILE", help="held-out dialogues"
    )
    made.add_argument("--out", type=Path, required=True, metavar="RUN", help="the run directory")
    made.add_argument(
        "--baselines",
        action="store_true",
        help="compare with prompts, one LoRA, one a character, and the dense gate",
    )
    made.add_argument(
        "--seeds", type=int, metavar="N", help="train each method N times, with seeds 0 to N - 1"
    )
    made.add_argument(
        "--lift",
        action="store_true",
        help="have cast and base answer the held-out questions, and give the answers' persona lift",
    )
    made.add_argument("--lang", choices=["en", "zh"], default="en", help="of the report")
    json_option(made)


def _eval(args: argparse.Namespace) -> int:
    from personae.cast_eval_stage import evaluate_cast

    done = _watched(
        args,
        lambda display: evaluate_cast(
            args.cast,
            args.data,
            args.out,
            baselines=args.baselines,
            seeds=args.seeds,
            lift=args.lift,
            language=args.lang,
            watcher=display,
        ),
    )
    return _show_evaluation(args, done, done.path / REPORT)


def _resume_eval(args: argparse.Namespace, run: Path, was: Was) -> int:
    args.cast, args.out = Path(was("cast", str)), run
    args.data = [Path(path) for path in was.texts("data")]
    args.baselines, args.lift = was("baselines", bool), was("lift", bool)
    args.seeds, args.lang = was("seeds", int, None), was.manifest.language
    return _eval(args)


def show_evaluation(args: argparse.Namespace, runs: list[Path]) -> int:
    """`personae report` over an evaluation of a cast: its page again, from its files."""
    from personae.cast_eval_stage import read_evaluation
    from personae.reports.cast import write_page
    from personae.session import read_manifest

    if len(runs) > 1 or args.csv or args.scene:
        raise UsageError(
            "a cast's evaluation is reported by itself, without --csv and --scene; its lines are "
            f"in {runs[0] / RESULTS}"
        )
    done = read_evaluation(runs[0])
    args.lang = args.lang or read_manifest(runs[0]).language
    page = args.out or runs[0] / REPORT
    write_page(done.scores, done.lines, page, args.lang)
    return _show_evaluation(args, done, page)


def _show_evaluation(args: argparse.Namespace, done: Evaluated, page: Path) -> int:
    from personae.reports.cast import print_scores

    document = {**done.scores.to_dict(), "run": str(done.path), "page": str(page)}

    def show(console: Console) -> None:
        print_scores(done.scores, console, args.lang)
        _say(console, f"The page: {page}")

    return show_document(args, document, show)


# export ----------------------------------------------------------------------------------------


def _add_export(parts: Any) -> None:
    made = command(parts, "export", _export, "write a cast's characters for other programs")
    _cast_argument(made)
    made.add_argument(
        "--to",
        required=True,
        choices=["peft", "gguf", "vllm"],
        help="peft: a directory a character; gguf: a file a character, for llama.cpp; "
        "vllm: directories and a launch script",
    )
    made.add_argument("--out", type=Path, required=True, metavar="DIR", help="absent, or empty")
    made.add_argument(
        "--role", nargs="+", action="extend", metavar="NAME", help="these alone (default: all)"
    )
    made.add_argument(
        "--own-only", action="store_true", help="the own block without the shared one (peft, gguf)"
    )
    made.add_argument("--base", metavar="MODEL", help="where the base lies now (gguf, vllm)")
    json_option(made)


def _export(args: argparse.Namespace) -> int:
    from personae.cast.export import export_gguf, export_peft, export_vllm
    from personae.cast.store import read_cast

    cast = read_cast(args.cast)
    if args.to == "vllm":
        if args.own_only:
            raise UsageError("--own-only goes with --to peft and --to gguf")
        done = export_vllm(cast, args.out, names=args.role, base=args.base)
    elif args.to == "gguf":
        done = export_gguf(cast, args.out, names=args.role, own_only=args.own_only, base=args.base)
    else:
        done = export_peft(cast, args.out, names=args.role, own_only=args.own_only)
    document = {
        "to": args.to,
        "out": str(done.out),
        "adapters": {name: str(path) for name, path in done.paths.items()},
        "notes": list(done.notes),
    }

    def show(console: Console) -> None:
        for name, path in done.paths.items():
            _say(console, f"{name}: {path}")
        for note in done.notes:
            _say(console, note, "yellow")

    return show_document(args, document, show)


RESUMES: dict[str, Resume] = {"cast eval": _resume_eval}
