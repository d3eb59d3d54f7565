"""The stages of a run as functions: each takes artefacts, leaves an artefact, and can be resumed.

The commands and the Python API are thin doors to these.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from personae.data import load_environments
from personae.errors import InputError, OutputError, StoppedEarlyError, UsageError
from personae.interview.benchmark_file import read_benchmark, write_benchmark
from personae.interview.build import (
    EXAMINER_SAMPLING,
    EXEMPLAR_SAMPLING,
    BuildPlan,
    build_benchmark,
    write_exemplars,
)
from personae.interview.evaluate import ANSWER_SAMPLING, EvalPlan, evaluate
from personae.interview.personas import generate_personas, read_personas
from personae.journal.client import Client, Plan
from personae.judging.judge import JUDGE_SAMPLING
from personae.judging.lift import check_judges, is_lift
from personae.judging.rubrics import rubric_hash
from personae.models.registry import Registry
from personae.records import (
    Benchmark,
    Language,
    Record,
    ResultRow,
    Sampling,
    Shortfall,
    Task,
)
from personae.records.files import write_atomically
from personae.session import (
    BENCHMARK,
    MANIFEST,
    RESULTS,
    Options,
    Run,
    new_manifest,
    open_run,
    read_manifest,
    repair_messages,
)

Protocol = Literal["paper", "personae"]


@dataclass(frozen=True)
class Built:
    """What `build` and `exemplify` leave: the benchmark, where, and a dry run's plan."""

    benchmark: Benchmark
    path: Path
    plan: Plan | None


@dataclass(frozen=True)
class Evaluated:
    """What `evaluate_benchmark` leaves."""

    run: Path
    rows: tuple[ResultRow, ...]
    plan: Plan | None


def seeded(sampling: Sampling, seed: int) -> Sampling:
    """The sampling with the run's seed."""
    return sampling.model_copy(update={"seed": seed})


def run_beside(out: Path, part: str = "") -> Path:
    """The run directory that a stage keeps beside its output file: `NAME.run`."""
    return out.with_name(f"{out.name}{part}.run")


def read_pool(path: Path | None, language: Language) -> tuple[str, ...]:
    """The environments to choose from: the shipped 150, or the user's (text or JSON list).

    Raises:
        InputError: the file holds no names, or a name twice.
    """
    if path is None:
        return load_environments(language)
    from personae.records.files import read_json, read_text

    if path.suffix.lower() == ".json":
        value = read_json(path)
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise InputError("not a JSON list of names", path=path)
        names = [v.strip() for v in value if v.strip()]
    else:
        names = [line.strip() for line in read_text(path).splitlines() if line.strip()]
    if not names:
        raise InputError("holds no environment", path=path, mend="Write one name a line")
    twice = next((n for n in names if names.count(n) > 1), None)
    if twice is not None:
        raise InputError(f"the environment {twice!r} stands twice", path=path)
    return tuple(names)


async def build(
    out: Path,
    examiner: str,
    *,
    personas: Path | None = None,
    generate: int | None = None,
    exemplars: str | None = None,
    questions: int = 10,
    per_environment: bool = False,
    environments: Path | None = None,
    tasks: Sequence[Task] = tuple(Task),
    language: Language = "en",
    seed: int = 0,
    options: Options | None = None,
    registry: Registry | None = None,
) -> Built:
    """Build a benchmark (`personae bench build`); its run is kept in `OUT.run` beside it.

    Args:
        out: the benchmark file to write.
        personas: a file of personas; or
        generate: how many to have written.
        exemplars: the model that writes exemplars; None leaves the benchmark without.
        questions: a task, or a task and environment if `per_environment`.

    Raises:
        UsageError: neither personas nor generate, or both; other wrong arguments; `out` is there
            and not as this build left it (what was answered is kept beside it).
        InputError: a file cannot be used.
        StoppedEarlyError: a cap; call again to go on.
    """
    if (personas is None) == (generate is None):
        raise UsageError("give either --personas FILE or --generate N")
    if questions < 1 or (generate is not None and generate < 1):
        raise UsageError("--questions and --generate count from 1")
    options = options or Options()
    if out.exists() and not (run_beside(out) / MANIFEST).is_file():
        raise _in_the_way(out)
    people = read_personas(personas) if personas is not None else ()
    plan = BuildPlan(
        examiner=examiner,
        pool=read_pool(environments, language),
        language=language,
        tasks=tuple(tasks),
        questions=questions,
        per_environment=per_environment,
        sampling=seeded(EXAMINER_SAMPLING, seed),
    )
    writer_sampling = seeded(EXEMPLAR_SAMPLING, seed)
    manifest = new_manifest(
        "bench build",
        {"examiner": [examiner], "exemplars": [exemplars] if exemplars else []},
        language,
        seed=seed,
        sampling={"examiner": plan.sampling.to_dict(), "exemplars": writer_sampling.to_dict()},
        arguments={
            "out": str(out),
            "personas": None if personas is None else str(personas),
            "generate": generate,
            "questions": questions,
            "per_environment": per_environment,
            "environments": None if environments is None else str(environments),
            "tasks": [t.value for t in tasks],
            "cwd": str(Path.cwd()),
        },
        made_from=tuple(sorted(p.id for p in people)),
    )
    async with open_run(run_beside(out), manifest, options, registry=registry) as run:
        short: tuple[Shortfall, ...] = ()
        if generate is not None:
            people, short = await generate_personas(
                run.client, examiner, generate, language=language, sampling=plan.sampling
            )
        benchmark = await build_benchmark(
            run.client, plan, people, window=options.window, watcher=options.watcher
        )
        benchmark = benchmark.model_copy(update={"shortfalls": (*short, *benchmark.shortfalls)})
        if exemplars is not None:
            benchmark = await write_exemplars(
                run.client,
                benchmark,
                exemplars,
                sampling=writer_sampling,
                window=options.window,
                watcher=options.watcher,
            )
        if not run.dry:
            _check_own(out, {benchmark.hash, run.manifest.benchmark_hash})
            write_benchmark(benchmark, out)
            run.manifest = run.manifest.model_copy(update={"benchmark_hash": benchmark.hash})
        return Built(benchmark, out, run.plan)


def _check_own(out: Path, hashes: set[str | None]) -> None:
    """Refuse to write over what this build did not leave there, exemplars added since for one.

    Raises:
        UsageError: the file is not a benchmark of one of these hashes.
    """
    if not out.exists():
        return
    try:
        own = read_benchmark(out).hash in hashes
    except InputError:
        own = False
    if not own:
        raise _in_the_way(out)


def _in_the_way(out: Path) -> UsageError:
    return UsageError(
        f"{out} is there already, and not as this build left it (were exemplars added to it?): "
        "move it away, or choose another --out"
    )


async def exemplify(
    source: Path,
    out: Path,
    writer: str,
    *,
    seed: int = 0,
    options: Options | None = None,
    registry: Registry | None = None,
) -> Built:
    """Add exemplars to a benchmark (`personae bench exemplify`).

    The file may be its own output. Its run, `OUT.exemplify-HASH.run`, is named after what it was
    made from, so that neither the build's run nor an earlier attempt stands in its way. A benchmark
    that has all its exemplars is written as it is.

    Raises:
        InputError: the benchmark cannot be read.
        StoppedEarlyError: a cap; call again to go on.
    """
    benchmark = read_benchmark(source)
    options = options or Options()
    if benchmark.has_exemplars:
        if not options.dry_run:
            write_benchmark(benchmark, out)
        return Built(benchmark, out, Plan() if options.dry_run else None)
    sampling = seeded(EXEMPLAR_SAMPLING, seed)
    manifest = new_manifest(
        "bench exemplify",
        {"exemplars": [writer]},
        benchmark.language,
        seed=seed,
        sampling={"exemplars": sampling.to_dict()},
        arguments={"benchmark": str(source), "out": str(out), "cwd": str(Path.cwd())},
        benchmark_hash=benchmark.hash,
        made_from=(benchmark.hash,),
    )
    path = run_beside(out, f".exemplify-{benchmark.hash[:8]}")
    async with open_run(path, manifest, options, registry=registry) as run:
        done = await write_exemplars(
            run.client,
            benchmark,
            writer,
            sampling=sampling,
            window=options.window,
            watcher=options.watcher,
        )
        if not run.dry:
            write_benchmark(done, out)
        return Built(done, out, run.plan)


async def evaluate_benchmark(
    benchmark: Benchmark | Path,
    out: Path,
    models: Sequence[str],
    judges: Sequence[str],
    *,
    exemplars: str | None = None,
    no_exemplars: bool = False,
    protocol: Protocol = "personae",
    limit: int | None = None,
    sampling: Mapping[str, Any] | None = None,
    seed: int = 0,
    options: Options | None = None,
    registry: Registry | None = None,
) -> Evaluated:
    """Have models answer a benchmark and judges judge them (`personae eval`).

    Args:
        benchmark: a file or the record.
        out: the run directory.
        exemplars: the model that completes missing exemplars first, beside the run.
        no_exemplars: judge without.
        limit: questions, round-robin over personas, then tasks.
        sampling: overrides for the models under test (`temperature`, `top_p`, `max_tokens`).

    Raises:
        UsageError: the benchmark lacks exemplars and nothing was said about it; no judge; no model.
        StoppedEarlyError: a cap; call again (or `personae resume`) to go on. What was answered is
            in results.jsonl, the rest is marked `not_asked`.
    """
    source = benchmark if isinstance(benchmark, Path) else None
    bench = read_benchmark(benchmark) if isinstance(benchmark, Path) else benchmark
    options = options or Options()
    _check_eval(bench, source, models, judges, exemplars, no_exemplars, protocol, limit)
    answer_sampling = Sampling.from_dict(
        {**seeded(ANSWER_SAMPLING, seed).to_dict(), **(sampling or {})}, place="sampling"
    )
    judge_sampling = seeded(JUDGE_SAMPLING, seed)
    if protocol == "paper":
        judge_sampling = judge_sampling.model_copy(update={"logprobs": 0})
    writer_sampling = seeded(EXEMPLAR_SAMPLING, seed)
    source_hash, named = _first_made_from(bench, source, out)
    manifest = new_manifest(
        "eval",
        {
            "model": models,
            "judge": judges,
            "exemplars": [exemplars]
            if exemplars and (not bench.has_exemplars or source_hash != bench.hash)
            else [],
        },
        bench.language,
        seed=seed,
        protocol=protocol,
        sampling={
            "model": answer_sampling.to_dict(),
            "judge": judge_sampling.to_dict(),
            "exemplars": writer_sampling.to_dict(),
        },
        arguments={
            "benchmark": named,
            "exemplars": exemplars,
            "no_exemplars": no_exemplars,
            "limit": limit,
            "sampling": dict(sampling or {}),
            "cwd": str(Path.cwd()),
        },
        rubric_hash=rubric_hash(bench.language, bench.rubrics),
        benchmark_hash=source_hash,
        made_from=(source_hash,),
    )
    plan = EvalPlan(
        models=tuple(models),
        judges=tuple(judges),
        exemplars=not no_exemplars,
        limit=limit,
        sampling=answer_sampling,
        judge_sampling=judge_sampling,
    )
    async with open_run(out, manifest, options, registry=registry) as run:
        if options.live:
            write_benchmark(bench, out / BENCHMARK)
        if exemplars is not None and not bench.has_exemplars:
            bench = await write_exemplars(
                run.client,
                bench,
                exemplars,
                sampling=writer_sampling,
                window=options.window,
                watcher=options.watcher,
            )
            if bench.hash != source_hash:
                bench = bench.model_copy(update={"made_from": (source_hash,)})
            run.manifest = run.manifest.model_copy(update={"benchmark_hash": bench.hash})
            if options.live:
                write_benchmark(bench, out / BENCHMARK)
        rows = await evaluate_in(run, bench, plan)
        return Evaluated(out, tuple(rows), run.plan)


def _first_made_from(bench: Benchmark, source: Path | None, out: Path) -> tuple[str, str | None]:
    """Hash and path of the benchmark that a run was first given.

    A run that is resumed from the copy it keeps, its exemplars perhaps completed, was made from
    what its manifest says.
    """
    if source is None or source.resolve() != (out / BENCHMARK).resolve():
        return bench.hash, None if source is None else str(source)
    old = read_manifest(out)
    completed = bench.made_from == old.made_from
    return old.made_from[0] if completed else bench.hash, old.arguments.get("benchmark")


def _check_eval(
    bench: Benchmark,
    source: Path | None,
    models: Sequence[str],
    judges: Sequence[str],
    exemplars: str | None,
    no_exemplars: bool,
    protocol: Protocol,
    limit: int | None,
) -> None:
    where = shlex.quote(str(source)) if source is not None else "the benchmark"
    if not models or not judges:
        raise UsageError("give at least one --model and one --judge")
    if len(set(models)) != len(models):
        raise UsageError("a --model is named twice")
    if limit is not None and limit < 1:
        raise UsageError("--limit counts from 1")
    if not bench.questions:
        raise InputError("holds no questions", path=source)
    if exemplars is not None and no_exemplars:
        raise UsageError("--exemplars and --no-exemplars exclude each other")
    if protocol == "paper" and no_exemplars:
        raise UsageError("the paper's protocol judges with exemplars; leave --no-exemplars out")
    verdicts = [j for j in judges if not is_lift(j)]
    if not bench.has_exemplars and exemplars is None and not no_exemplars and verdicts:
        lacking = sum(q.exemplars is None for q in bench.questions)
        raise UsageError(
            f"{where}: {lacking} of {len(bench.questions)} questions have no exemplars. Add them "
            f"with `personae bench exemplify {where} --exemplars MODEL --out {where}`, or give "
            "--exemplars MODEL, or judge without by --no-exemplars"
        )
    check_judges(judges)


async def evaluate_in(run: Run, bench: Benchmark, plan: EvalPlan) -> list[ResultRow]:
    """Evaluate in an open run and write its results.jsonl; when it is stopped, what there is.

    Raises:
        StoppedEarlyError: a cap or Ctrl-C; what was not asked is marked `not_asked`.
    """
    options = run.options
    try:
        rows = await evaluate(
            run.client, bench, plan, window=options.window, watcher=options.watcher
        )
    except StoppedEarlyError:
        with contextlib.suppress(OutputError):  # the stop itself is what the user must hear of
            await _partial_results(run, bench, plan)
        raise
    if options.live:
        write_results(rows, run.path / RESULTS)
    return rows


async def _partial_results(run: Run, bench: Benchmark, plan: EvalPlan) -> None:
    """What the journal holds, as results; what it lacks is marked `not_asked`."""
    journal = run.client.journal
    if journal is None or run.dry:
        return
    reader = Client(
        journal, Registry(), repair=repair_messages(bench.language), replay=True, gaps=True
    )
    rows = await evaluate(reader, bench, plan, window=run.options.window)
    write_results(rows, run.path / RESULTS)


def write_results(rows: Sequence[Record], path: Path) -> None:
    """Write results.jsonl, whole or not at all."""
    write_atomically(path, (row.to_json() + "\n" for row in rows))
