"""`personae interview`: interview characters, import and export published interviews."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from personae.commands.base import (
    Resume,
    Was,
    calls_models,
    carry_out,
    command,
    json_option,
    prices_of,
    sampling_of,
    show_document,
    show_plan,
)
from personae.errors import UsageError
from personae.session import REPORT

if TYPE_CHECKING:
    from rich.console import Console

    from personae.interview_stage import Interviewed
    from personae.records.interview import Method


class _OptionsBehind(argparse._SubParsersAction):  # type: ignore[type-arg]  # not generic when run
    """Refuses options before the command's name: the command's own defaults would undo them."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        given = [k for k, v in vars(namespace).items() if v != parser.get_default(k)]
        if given:
            options = ", ".join(f"--{name.replace('_', '-')}" for name in sorted(given))
            parser.error(f"give {options} behind {values[0]!r}, not before it")
        super().__call__(parser, namespace, values, option_string)


def add(commands: Any) -> None:
    """Add the commands to the parser."""
    made = command(
        commands, "interview", _interview, "interview characters and have the interviews judged"
    )
    parts = made.add_subparsers(
        title="interview commands", metavar="COMMAND", action=_OptionsBehind
    )
    made.add_argument(
        "--model",
        nargs="+",
        action="extend",
        metavar="MODEL",
        help="plays them; needed, as are --characters, --judge and --out",
    )
    made.add_argument(
        "--characters",
        nargs="+",
        action="extend",
        metavar="CARD",
        help="cards, folders of cards, starter:ID, Neeko's profiles",
    )
    asked = made.add_mutually_exclusive_group()
    asked.add_argument(
        "--questions",
        nargs="+",
        action="extend",
        type=Path,
        metavar="FILE",
        help="questions, or dialogues to be replayed (docs/interview-data.md)",
    )
    asked.add_argument(
        "--generate", type=int, metavar="N", help="have N questions written for each character"
    )
    made.add_argument(
        "--turns", type=int, metavar="N", help="more than 1: the interviewer leads on from each"
    )
    made.add_argument(
        "--method",
        nargs="+",
        action="extend",
        metavar="METHOD",
        help="prompt,rag,cast side by side (default: cast of casts, prompt of others)",
    )
    made.add_argument(
        "--interviewer", metavar="MODEL", help="writes questions, leads live interviews"
    )
    made.add_argument(
        "--transfer", action="store_true", help="the character changes every turn (appendix A.3)"
    )
    made.add_argument(
        "--judge",
        nargs="+",
        action="extend",
        metavar="MODEL",
        help="scores eight metrics from 1 to 7; named twice, it is asked twice",
    )
    made.add_argument("--location", metavar="TEXT", help="where the interview takes place")
    made.add_argument("--status", metavar="TEXT", help="how the character is there")
    made.add_argument("--limit", type=int, metavar="N", help="only N questions or dialogues")
    made.add_argument("--temperature", type=float, help="of the models under test")
    made.add_argument("--top-p", type=float, help="of the models under test")
    made.add_argument("--max-tokens", type=int, help="of an answer")
    made.add_argument("--lang", choices=["en", "zh"], default="en", help="language (default en)")
    made.add_argument("--out", type=Path, metavar="RUN", help="the run directory")
    calls_models(made)

    imported = command(
        parts, "import", _import, "published interviews as a run; what is unfit is reported"
    )
    imported.add_argument("files", nargs="+", type=Path, metavar="FILE", help="or folders of them")
    imported.add_argument(
        "--characters",
        nargs="+",
        action="extend",
        default=[],
        metavar="CARD",
        help="what judges are told, where no profile lies beside the files",
    )
    imported.add_argument(
        "--judge", nargs="+", action="extend", default=[], metavar="MODEL", help="judge them, too"
    )
    imported.add_argument("--limit", type=int, metavar="N", help="only N interviews")
    imported.add_argument(
        "--lang", choices=["en", "zh"], default="en", help="language (default en)"
    )
    imported.add_argument(
        "--out", type=Path, required=True, metavar="RUN", help="the run directory"
    )
    calls_models(imported)

    exported = command(parts, "export", _export, "a run's interviews in Neeko's file shapes")
    exported.add_argument("source", type=Path, metavar="RUN")
    exported.add_argument("--out", type=Path, required=True, metavar="DIR")
    json_option(exported)


def _interview(args: argparse.Namespace) -> int:
    for option in ("model", "characters", "judge", "out"):
        if not getattr(args, option):
            raise UsageError(f"--{option} is missing (see personae interview --help)")
    return _carry_out(args, sampling_of(args))


def _carry_out(args: argparse.Namespace, sampling: dict[str, Any]) -> int:
    from personae.interview_stage import interview

    args.run_dir = args.out
    done = carry_out(
        args,
        lambda options: interview(
            args.characters,
            args.out,
            args.model,
            args.judge,
            questions=args.questions or (),
            generate=args.generate,
            turns=args.turns,
            methods=_methods(args.method),
            interviewer=args.interviewer,
            transfer=args.transfer,
            language=args.lang,
            location=args.location,
            status=args.status,
            limit=args.limit,
            sampling=sampling,
            seed=args.seed,
            options=options,
        ),
    )
    return _show(args, done)


def _methods(given: list[str] | None) -> tuple[Method, ...]:
    named = [part.strip() for one in given or () for part in one.split(",") if part.strip()]
    if given and not named:
        raise UsageError("--method names no method")
    return tuple(dict.fromkeys(named))  # type: ignore[arg-type]  # the stage refuses others


def _import(args: argparse.Namespace) -> int:
    from personae.interview_stage import import_interviews

    args.run_dir = args.out
    done = carry_out(
        args,
        lambda options: import_interviews(
            args.files,
            args.out,
            args.judge,
            characters=args.characters,
            language=args.lang,
            limit=args.limit,
            seed=args.seed,
            options=options,
        ),
    )
    return _show(args, done)


def _show(args: argparse.Namespace, done: Interviewed) -> int:
    if done.plan is not None:
        return show_plan(args, done.plan)
    args.audit = getattr(args, "audit", None)
    return show_interviews(args, [done.run], page=None if args.replay else done.run / REPORT)


def show_interviews(args: argparse.Namespace, runs: list[Path], *, page: Path | None) -> int:
    """Print the scores of interview runs, and write their page.

    Args:
        page: where; None writes nothing (a replay).
    """
    from personae.reports.interviews import (
        gather_interviews,
        interviews_report,
        print_interviews,
        write_interviews_csv,
        write_interviews_html,
    )

    data = gather_interviews(runs, audits=args.audit or (), prices=prices_of(args))
    language = getattr(args, "lang", None) or data.manifests[0].language
    if page is not None:
        write_interviews_html(data, page, language)
        if getattr(args, "csv", False):
            write_interviews_csv(data, runs[0])
    document = {**interviews_report(data), "page": None if page is None else str(page)}

    def show(console: Console) -> None:
        print_interviews(data, console, language)
        if page is not None:
            console.print(f"The page: {page}", markup=False)

    return show_document(args, document, show)


def _export(args: argparse.Namespace) -> int:
    from personae.interview.neeko import export_dialogues
    from personae.interview_stage import read_interviews, read_kept_scripts

    written = export_dialogues(
        read_interviews(args.source), args.out, scripts=read_kept_scripts(args.source)
    )
    document = {"files": [str(path) for path in written]}

    def show(console: Console) -> None:
        for path in written:
            console.print(str(path), markup=False)

    return show_document(args, document, show)


def _resume_interview(args: argparse.Namespace, run: Path, was: Was) -> int:
    args.out = run
    args.model, args.judge = was.texts("models"), was.models("judge")
    args.characters = was.texts("characters")
    args.questions = [Path(q) for q in was.texts("questions")]
    args.generate, args.turns = was("generate", int, None), was("turns", int, None)
    args.method, args.transfer = was.texts("methods"), was("transfer", bool)
    args.location, args.status = was("location", str, None), was("status", str, None)
    args.interviewer = next(iter(was.manifest.models.get("interviewer", ())), None)
    args.limit, args.lang = was("limit", int, None), was.manifest.language
    return _carry_out(args, was("sampling", dict))


def _resume_import(args: argparse.Namespace, run: Path, was: Was) -> int:
    args.out = run
    args.files = [Path(f) for f in was.texts("files")]
    args.characters, args.limit = was.texts("characters"), was("limit", int, None)
    args.judge = list(was.manifest.models.get("judge", ()))
    args.lang = was.manifest.language
    return _import(args)


RESUMES: dict[str, Resume] = {"interview": _resume_interview, "interview import": _resume_import}
