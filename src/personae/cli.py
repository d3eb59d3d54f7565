"""The commands. Thin: they read arguments, call the stages, and print.

Exit codes: 0 done, 1 failed, 2 usage, 3 stopped early and resumable. With `--json` one JSON
document goes to standard output and nothing else; progress and errors go to standard error.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from personae import __version__
from personae.commands import cast, character, interview, play, rate, scene, serve
from personae.commands.base import (
    Handler,
    Resume,
    Was,
    calls_models,
    carries_out,
    carry_out,
    command,
    json_option,
    prices_of,
    sampling_of,
    show_document,
    show_plan,
)
from personae.errors import InputError, PersonaeError, StoppedEarlyError, UsageError
from personae.records import Task
from personae.records.shown import clean
from personae.session import BENCHMARK, REPORT, read_manifest


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code."""
    parser = _parser()
    args = parser.parse_args(argv)
    if not hasattr(args, "handler"):
        args.help_of.print_help(sys.stderr)
        return UsageError.exit_code
    handler: Handler = args.handler
    try:
        return handler(args)
    except StoppedEarlyError as stop:
        return _say(args, stop, f"Stopped early: {stop}. {_how_to_resume(args)}")
    except (KeyboardInterrupt, asyncio.CancelledError):
        return _say(args, StoppedEarlyError("interrupted"), f"Interrupted. {_how_to_resume(args)}")
    except PersonaeError as error:
        return _say(args, error, f"Error: {error}")
    except BrokenPipeError:
        # The reader of our output has gone (`personae ... | head`); nothing is wrong here.
        sys.stderr.close()
        return 0
    except OSError as error:
        # A path that no room below has a better word for: too long, or not ours to look at.
        refused = InputError(f"cannot be used ({error.strerror or error})", path=error.filename)
        return _say(args, refused, f"Error: {refused}")


def _say(args: argparse.Namespace, error: PersonaeError, text: str) -> int:
    # A complaint names what stands in a stranger's file.
    Console(stderr=True).print(clean(text), highlight=False, markup=False, soft_wrap=True)
    if getattr(args, "json", False):
        print(json.dumps({"error": str(error), "exit_code": error.exit_code}))  # noqa: T201
    return error.exit_code


def _how_to_resume(args: argparse.Namespace) -> str:
    """A handler whose run is not where the arguments say sets `args.run_dir`."""
    name = {"resume": "run", "eval": "out", "audit": "out", "demo": "out"}.get(args.command)
    run = getattr(args, "run_dir", None) if name is None else getattr(args, name)
    if run is None:
        return "Nothing answered is lost; run the same command again to go on."
    return f"Nothing answered is lost. To go on: {shlex.join(['personae', 'resume', str(run)])}"


# The parser ------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="personae",
        description="Question characters, let them act in scenes, judge both, and know how far to "
        "trust the score.",
        epilog="Model ids: provider/model, http://host:port/v1#model, local, local:FILE.gguf, "
        "scripted:FILE.py; as a judge also lift:MODEL. Start with: personae demo",
    )
    parser.add_argument("--version", action="version", version=f"personae {__version__}")
    parser.set_defaults(help_of=parser, command="")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    _add_demo(commands)
    _add_models(commands)
    _add_bench(commands)
    _add_eval(commands)
    _add_resume(commands)
    _add_report(commands)
    _add_agree(commands)
    _add_audit(commands)
    for room in (interview, character, scene, play, rate, cast, serve):
        room.add(commands)
    return parser


# bench -----------------------------------------------------------------------------------------


def _add_bench(commands: Any) -> None:
    bench = command(commands, "bench", None, "build, complete, import and show benchmarks")
    parts = bench.add_subparsers(title="bench commands", metavar="COMMAND")
    made = command(parts, "build", _bench_build, "have an examiner write a benchmark")
    people = made.add_mutually_exclusive_group(required=True)
    people.add_argument(
        "--personas",
        type=Path,
        metavar="FILE",
        help="one persona a line, JSONL, a character card, or a folder of cards",
    )
    people.add_argument("--generate", type=int, metavar="N", help="have N personas written")
    made.add_argument("--examiner", required=True, metavar="MODEL", help="writes the questions")
    made.add_argument("--exemplars", metavar="MODEL", help="writes the exemplars as well")
    made.add_argument(
        "--questions", type=int, default=10, metavar="N", help="questions a task (default 10)"
    )
    made.add_argument(
        "--per-environment", action="store_true", help="N a task and environment, as in the paper"
    )
    made.add_argument(
        "--environments", type=Path, metavar="FILE", help="your own pool: a name a line, or JSON"
    )
    made.add_argument(
        "--tasks",
        nargs="+",
        action="extend",
        metavar="TASK",
        help="any of: " + ", ".join(f"{t.value} ({t.short})" for t in Task),
    )
    made.add_argument("--lang", choices=["en", "zh"], default="en", help="language (default en)")
    made.add_argument("--out", type=Path, required=True, metavar="BENCH.jsonl")
    calls_models(made)

    more = command(parts, "exemplify", _bench_exemplify, "add exemplars to a benchmark")
    more.add_argument("benchmark", type=Path, metavar="BENCH.jsonl")
    more.add_argument("--exemplars", required=True, metavar="MODEL", help="writes them")
    more.add_argument("--out", type=Path, required=True, metavar="BENCH.jsonl")
    calls_models(more)

    imported = command(parts, "import", None, "make a benchmark from public data")
    sources = imported.add_subparsers(title="sources", metavar="SOURCE")
    gym = command(sources, "personagym", _bench_import, "a clone of PersonaGym")
    gym.add_argument("folder", type=Path, metavar="DIR")
    gym.add_argument("--rubrics", type=Path, metavar="DIR", help="its rubrics, as a custom set")
    gym.add_argument("--out", type=Path, required=True, metavar="BENCH.jsonl")
    json_option(gym)

    show = command(parts, "show", _bench_show, "what a benchmark holds; plain exports")
    show.add_argument("benchmark", type=Path, metavar="BENCH.jsonl")
    show.add_argument(
        "--export", type=Path, metavar="FILE", help="write the questions as plain .jsonl or .csv"
    )
    json_option(show)


def _tasks(names: Sequence[str] | None) -> tuple[Task, ...]:
    if not names:
        return tuple(Task)
    try:
        wanted = {Task.parse(part) for name in names for part in name.split(",") if part.strip()}
    except ValueError as error:
        raise UsageError(str(error)) from None
    if not wanted:
        raise UsageError("--tasks names no task")
    return tuple(t for t in Task if t in wanted)


def _bench_build(args: argparse.Namespace) -> int:
    from personae.stages import build

    tasks = _tasks(args.tasks)
    built = carry_out(
        args,
        lambda options: build(
            args.out,
            args.examiner,
            personas=args.personas,
            generate=args.generate,
            exemplars=args.exemplars,
            questions=args.questions,
            per_environment=args.per_environment,
            environments=args.environments,
            tasks=tasks,
            language=args.lang,
            seed=args.seed,
            options=options,
        ),
    )
    return _show_built(args, built)


def _bench_exemplify(args: argparse.Namespace) -> int:
    from personae.stages import exemplify

    built = carry_out(
        args,
        lambda options: exemplify(
            args.benchmark, args.out, args.exemplars, seed=args.seed, options=options
        ),
    )
    return _show_built(args, built)


def _show_built(args: argparse.Namespace, built: Any) -> int:
    if built.plan is not None:
        return show_plan(args, built.plan)
    return _show_benchmark(args, built.benchmark, built.path)


def _bench_import(args: argparse.Namespace) -> int:
    from personae.interview.benchmark_file import write_benchmark
    from personae.interview.importers import import_personagym

    benchmark = import_personagym(args.folder, args.rubrics)
    write_benchmark(benchmark, args.out)
    return _show_benchmark(args, benchmark, args.out)


def _bench_show(args: argparse.Namespace) -> int:
    from personae.interview.benchmark_file import read_benchmark
    from personae.interview.export import export_csv, export_jsonl

    benchmark = read_benchmark(args.benchmark)
    if args.export is not None:
        writers = {".jsonl": export_jsonl, ".csv": export_csv}
        writer = writers.get(args.export.suffix.lower())
        if writer is None:
            raise UsageError("--export FILE ends in .jsonl or .csv")
        writer(benchmark, args.export)
    return _show_benchmark(args, benchmark, args.benchmark)


def _show_benchmark(args: argparse.Namespace, benchmark: Any, path: Path) -> int:
    from personae.interview.export import describe

    document = {**describe(benchmark), "path": str(path)}

    def show(console: Console) -> None:
        console.print(f"{path}: {document['personas']} personas, {document['questions']} questions")
        for task, count in document["tasks"].items():
            console.print(f"  {task}: {count}")
        console.print(f"  with exemplars: {document['exemplars']} questions")
        console.print(f"  language {benchmark.language}, content {benchmark.hash[:16]}")
        for short in benchmark.shortfalls[:20]:
            console.print(
                f"  short of {short.what}: {short.got} of {short.wanted} ({short.cause})",
                markup=False,
            )
        if len(benchmark.shortfalls) > 20:
            console.print(f"  ... and {len(benchmark.shortfalls) - 20} more shortfalls")

    return show_document(args, document, show)


# eval, resume, report --------------------------------------------------------------------------


def _add_eval(commands: Any) -> None:
    made = command(commands, "eval", _eval, "have models answer a benchmark and judges judge them")
    made.add_argument("benchmark", type=Path, metavar="BENCH.jsonl")
    made.add_argument(
        "--model", nargs="+", action="extend", required=True, metavar="MODEL", help="under test"
    )
    made.add_argument(
        "--judge",
        nargs="+",
        action="extend",
        required=True,
        metavar="MODEL",
        help="verdicts; two of different weights are usual. lift:MODEL measures persona lift",
    )
    some = made.add_mutually_exclusive_group()
    some.add_argument("--exemplars", metavar="MODEL", help="completes the exemplars first")
    some.add_argument("--no-exemplars", action="store_true", help="judge without exemplars")
    made.add_argument(
        "--protocol", choices=["paper", "personae"], default="personae", help="docs/protocols.md"
    )
    made.add_argument("--limit", type=int, metavar="N", help="only N questions, round-robin")
    made.add_argument("--temperature", type=float, help="of the models under test (default 0.9)")
    made.add_argument("--top-p", type=float, help="of the models under test (default 0.9)")
    made.add_argument("--max-tokens", type=int, help="of an answer (default 1024)")
    made.add_argument("--out", type=Path, required=True, metavar="RUN", help="the run directory")
    calls_models(made)


def _eval(args: argparse.Namespace) -> int:
    return _evaluate(args, sampling_of(args))


def _evaluate(args: argparse.Namespace, sampling: dict[str, Any]) -> int:
    from personae.stages import evaluate_benchmark

    done = carry_out(
        args,
        lambda options: evaluate_benchmark(
            args.benchmark,
            args.out,
            args.model,
            args.judge,
            exemplars=args.exemplars,
            no_exemplars=args.no_exemplars,
            protocol=args.protocol,
            limit=args.limit,
            sampling=sampling,
            seed=args.seed,
            options=options,
        ),
    )
    if done.plan is not None:
        return show_plan(args, done.plan)
    return _show_report(args, [args.out], write=not args.replay)


def _add_resume(commands: Any) -> None:
    made = command(commands, "resume", _resume, "go on with a stopped run; ask again what failed")
    made.add_argument("run", type=Path, metavar="RUN")
    made.add_argument(
        "--trust-scripts",
        action="store_true",
        help="run the scripts that the manifest names, and send PERSONAE_API_KEY where it says",
    )
    carries_out(made.add_argument_group("the run"))


def _resume(args: argparse.Namespace) -> int:
    run = args.run.resolve()
    manifest = read_manifest(run)
    again = _RESUMES.get(manifest.kind)
    if again is None:
        raise UsageError(f"{run} is a run of {manifest.kind!r}, which this version cannot resume")
    was = Was(run, manifest)
    args.seed = manifest.seed
    folder = Path(was("cwd", str))
    prices = args.prices
    args.prices = None if prices is None else prices.resolve()
    # Relative paths in the arguments, scripts' ids included, are those of the first time.
    with contextlib.chdir(folder) if folder.is_dir() else contextlib.nullcontext():
        return again(args, run, was)


def _resume_eval(args: argparse.Namespace, run: Path, was: Was) -> int:
    # The run keeps a copy of what it was made from; the file may have changed or gone since.
    copy = run / BENCHMARK
    args.benchmark = copy if copy.is_file() else was.path("benchmark")
    args.out = run
    args.model, args.judge = was.models("model"), was.models("judge")
    args.exemplars, args.no_exemplars = was("exemplars", str, None), was("no_exemplars", bool)
    args.protocol, args.limit = was.manifest.protocol, was("limit", int, None)
    return _evaluate(args, was("sampling", dict))


def _resume_build(args: argparse.Namespace, run: Path, was: Was) -> int:
    args.out = was.out()
    args.personas, args.environments = was.path("personas"), was.path("environments")
    args.examiner = was.models("examiner")[0]
    args.exemplars = next(iter(was.manifest.models.get("exemplars", ())), None)
    args.generate, args.questions = was("generate", int, None), was("questions", int)
    args.per_environment, args.tasks = was("per_environment", bool), was.texts("tasks")
    args.lang = was.manifest.language
    return _bench_build(args)


def _resume_exemplify(args: argparse.Namespace, run: Path, was: Was) -> int:
    args.out, args.benchmark = was.out(), Path(was("benchmark", str))
    args.exemplars = was.models("exemplars")[0]
    return _bench_exemplify(args)


def _add_report(commands: Any) -> None:
    made = command(commands, "report", _report, "scores, tables and the HTML page of runs")
    made.add_argument("run", nargs="+", type=Path, metavar="RUN")
    made.add_argument(
        "--audit", nargs="+", action="extend", type=Path, metavar="RUN", help="audits of the judges"
    )
    made.add_argument(
        "--csv",
        action="store_true",
        help="also write scores.csv and units.csv, of plays events.csv, of interviews turns.csv",
    )
    made.add_argument(
        "--scene", nargs="+", action="extend", metavar="ID", help="of plays: these scripts alone"
    )
    made.add_argument("--lang", choices=["en", "zh"], help="of the page (default: the run's)")
    made.add_argument("--out", type=Path, metavar="FILE", help="the page (default RUN/report.html)")
    made.add_argument("--prices", type=Path, metavar="FILE", help="your own price table")
    json_option(made)


def _report(args: argparse.Namespace) -> int:
    return _show_report(args, args.run, write=True)


def _show_report(args: argparse.Namespace, runs: list[Path], *, write: bool) -> int:
    from personae.reports import print_report, report_document, write_csv, write_html
    from personae.reports.gather import gather
    from personae.reports.interviews import are_interview_runs
    from personae.reports.scenes import are_play_runs

    if args.command == "report" and are_play_runs(runs):
        return _show_plays(args, runs)
    if getattr(args, "scene", None):
        raise UsageError("--scene is for plays, and these runs are none")
    if args.command == "report" and are_interview_runs(runs):
        return interview.show_interviews(args, runs, page=args.out or runs[0] / REPORT)
    if args.command == "report" and read_manifest(runs[0]).kind == "cast eval":
        return cast.show_evaluation(args, runs)
    data = gather(runs, audits=getattr(args, "audit", None) or (), prices=prices_of(args))
    page = getattr(args, "report_out", None) or runs[0] / REPORT
    if args.command == "report" and args.out is not None:
        page = args.out
    language = getattr(args, "lang", None) or data.manifests[0].language
    if write:
        write_html(data, page, language)
        if getattr(args, "csv", False):
            write_csv(data, runs[0])
    document = {**report_document(data), "page": str(page) if write else None}

    def show(console: Console) -> None:
        print_report(data, console, language)
        if write:
            console.print(f"The page: {page}", markup=False)

    return show_document(args, document, show)


def _show_plays(args: argparse.Namespace, runs: list[Path]) -> int:
    from personae.reports.scenes import (
        gather_plays,
        plays_document,
        print_plays,
        write_plays_csv,
        write_plays_html,
    )

    data = gather_plays(
        runs, audits=args.audit or (), prices=prices_of(args), wanted=args.scene or ()
    )
    page = args.out or runs[0] / REPORT
    language = args.lang or data.manifests[0].language
    write_plays_html(data, page, language)
    if args.csv:
        write_plays_csv(data, runs[0])
    document = {**plays_document(data), "page": str(page)}

    def show(console: Console) -> None:
        print_plays(data, console, language)
        console.print(f"The page: {page}", markup=False)

    return show_document(args, document, show)


# agree, audit, models, demo --------------------------------------------------------------------


def _add_agree(commands: Any) -> None:
    made = command(commands, "agree", _agree, "compare the judges with people's ratings")
    made.add_argument("run", type=Path, metavar="RUN")
    made.add_argument(
        "--human",
        type=Path,
        required=True,
        metavar="RATINGS.csv",
        help="unit_id,rater,metric,score; or JSONL with these keys",
    )
    json_option(made)


def _agree(args: argparse.Namespace) -> int:
    from personae.interview_stage import is_interview_run
    from personae.judging.people import agree, agree_on_interviews, agree_on_trajectories
    from personae.reports.gather import read_results
    from personae.reports.interviews.gather import read_run
    from personae.reports.people import print_agreement
    from personae.reports.ratings import read_rated
    from personae.session import RESULTS

    manifest = read_manifest(args.run)
    if manifest.kind == "play":
        found = agree_on_trajectories(read_rated(args.run).rows, args.human)
    elif is_interview_run(manifest):
        found = agree_on_interviews(read_run(args.run).rows, args.human)
    else:
        found = agree(read_results(args.run / RESULTS), args.human)
    return show_document(args, found.to_dict(), lambda console: print_agreement(found, console))


def _add_audit(commands: Any) -> None:
    made = command(commands, "audit", _audit, "find out whether a judge can be trusted")
    made.add_argument(
        "--judge", nargs="+", action="extend", required=True, metavar="MODEL", help="to be audited"
    )
    made.add_argument(
        "--answers",
        nargs="+",
        action="extend",
        required=True,
        type=Path,
        metavar="FILE",
        help="a run, its results.jsonl, or answer files of Neeko; or play or interview runs",
    )
    made.add_argument("--limit", type=int, default=40, metavar="N", help="own answers (default 40)")
    made.add_argument("--lang", choices=["en", "zh"], help="default: that of the answers")
    made.add_argument("--out", type=Path, required=True, metavar="RUN", help="the run directory")
    calls_models(made)


def _audit(args: argparse.Namespace) -> int:
    from personae.audits import audit_any
    from personae.reports.audits import print_audits

    done = carry_out(
        args,
        lambda options: audit_any(
            args.answers,
            args.judge,
            args.out,
            language=args.lang,
            limit=args.limit,
            seed=args.seed,
            options=options,
        ),
    )
    if done.plan is not None:
        return show_plan(args, done.plan)
    document = {"audits": [a.to_dict() for a in done.audits], "run": str(args.out)}
    return show_document(args, document, lambda console: print_audits(done.audits, console))


def _resume_audit(args: argparse.Namespace, run: Path, was: Was) -> int:
    args.out = run
    args.judge = was.models("judge")
    args.answers = [Path(p) for p in was.texts("answers")]
    args.limit, args.lang = was("limit", int), was("language", str, None)
    return _audit(args)


def _add_models(commands: Any) -> None:
    made = command(commands, "models", _models, "which models there are; fetch the embedded one")
    json_option(made)
    parts = made.add_subparsers(title="models commands", metavar="COMMAND")
    pull = command(parts, "pull", _pull, "fetch the weights of an embedded model")
    pull.add_argument("name", nargs="?", default="local", metavar="NAME", help="default local")
    json_option(pull)


def _models(args: argparse.Namespace) -> int:
    from personae.models.catalogue import catalogue, print_catalogue

    found = catalogue()
    return show_document(args, found, lambda console: print_catalogue(found, console))


def _pull(args: argparse.Namespace) -> int:
    from personae.models.catalogue import pull_with_progress

    path = pull_with_progress(args.name, Console(stderr=True))
    return show_document(
        args, {"name": args.name, "path": str(path)}, lambda c: c.print(f"Ready: {path}")
    )


def _add_demo(commands: Any) -> None:
    made = command(
        commands,
        "demo",
        _demo,
        "two characters, interviewed and put into a scene by the embedded model",
    )
    made.add_argument("--out", type=Path, metavar="RUN", help="default runs/demo")
    made.add_argument("--model", default="local", metavar="MODEL", help="default local")
    calls_models(made)


def _demo(args: argparse.Namespace) -> int:
    from personae.demo import demo

    args.out = args.out or Path("runs/demo")
    done = carry_out(
        args, lambda options: demo(args.out, args.model, seed=args.seed, options=options)
    )
    if done.plan is not None:
        return show_plan(args, done.plan)
    return _show_report(args, [args.out], write=not args.replay)


def _resume_demo(args: argparse.Namespace, run: Path, was: Was) -> int:
    args.out, args.model = run, was.models("model")[0]
    return _demo(args)


_RESUMES: dict[str, Resume] = {
    "eval": _resume_eval,
    "bench build": _resume_build,
    "bench exemplify": _resume_exemplify,
    "audit": _resume_audit,
    "demo": _resume_demo,
    **interview.RESUMES,
    **scene.RESUMES,
    **play.RESUMES,
    **rate.RESUMES,
    **cast.RESUMES,
}

if __name__ == "__main__":
    sys.exit(main())
