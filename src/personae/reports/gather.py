"""From run directories to what a report shows; everything is read, nothing is remembered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from personae.cast_stage import read_cast_answers
from personae.errors import InputError, UsageError
from personae.interview.benchmark_file import read_benchmark
from personae.journal import store
from personae.journal.store import Journal
from personae.judging.scores import judge_agreement, paired, score_models
from personae.models.registry import model_scheme
from personae.play_stage import PLAYS, read_plays
from personae.records import Audit, Benchmark, Manifest, PairedDifference, Prices, ResultRow
from personae.records.files import read_json, read_jsonl
from personae.reports.data import (
    CHARACTER_ROLE,
    CallCounts,
    Cost,
    FailureCount,
    ReportData,
    UsageLine,
)
from personae.session import BENCHMARK, JOURNAL, MANIFEST, RESULTS, read_manifest

AUDITS = "audits.json"


def read_results(path: Path) -> tuple[ResultRow, ...]:
    """The rows of a results.jsonl.

    Raises:
        InputError: names the line that is not a result.
    """
    return tuple(
        ResultRow.from_dict(line, path=path, place=f"line {number}")
        for number, line in read_jsonl(path)
    )


def read_audits(run: Path) -> tuple[Audit, ...]:
    """The audits in a run directory; none if it holds none."""
    path = run / AUDITS
    if not path.is_file():
        return ()
    value = read_json(path)
    if not isinstance(value, list):
        raise InputError("not a list of audits", path=path)
    return tuple(Audit.from_dict(a, path=path, place=f"audit {i}") for i, a in enumerate(value, 1))


def find_audit(
    audits: Iterable[Audit], judge: str, rubric_hash: str | None, language: str
) -> Audit | None:
    """The audit of this judge under these rubrics in this language; the last one counts."""
    found = None
    for audit in audits:
        if (audit.judge, audit.rubric_hash, audit.language) == (judge, rubric_hash, language):
            found = audit
    return found


def gather(
    runs: Sequence[Path], *, audits: Sequence[Path] = (), prices: Prices, title: str = ""
) -> ReportData:
    """Read runs (and audits, given or beside them) and compute all scores.

    Raises:
        InputError: a folder is no run, a run has no results yet, or a file in it is damaged.
        UsageError: a run is named twice.
    """
    manifests: list[Manifest] = []
    benchmarks: dict[str, Benchmark] = {}
    by_run: dict[Path, tuple[ResultRow, ...]] = {}
    notes: list[str] = []
    known = audits_beside(runs, notes)
    counts = {"made": 0, "reused": 0, "failed": 0}
    used: dict[Path, list[UsageLine]] = {}
    failures: list[FailureCount] = []
    seconds = 0.0
    name_once(runs)
    for run in runs:
        manifest = read_manifest(run)
        manifests.append(manifest)
        if not (run / RESULTS).is_file():
            raise InputError(
                f"this run ({manifest.kind}, {manifest.status}) has no {RESULTS}",
                path=run,
                mend=_instead(run, manifest),
            )
        if (run / BENCHMARK).is_file():
            benchmark = read_benchmark(run / BENCHMARK)
            benchmarks[benchmark.hash] = benchmark
        by_run[run] = read_results(run / RESULTS)
        notes += manifest.notes
        if not (run / JOURNAL).is_file():
            continue
        with Journal(run / JOURNAL, read_only=True) as journal:
            total = journal.totals()
            counts["made"] += total.made
            counts["reused"] += total.reused
            failed = journal.failures()
            counts["failed"] += sum(line.count for line in failed)
            seconds += journal.seconds()
            used[run] = [usage_line(line, prices) for line in journal.usage()]
            failures += [
                FailureCount(role=f.role, model=f.model, cause=f.cause, count=f.count)
                for f in failed
            ]
    for folder in audits:
        found = read_audits(folder)
        if not found:
            raise InputError("holds no audit", path=folder, mend="Make one with `personae audit`")
        known += found
    _name_apart(by_run, used)
    usage = [line for lines in used.values() for line in lines]
    rows = [row for some in by_run.values() for row in some]
    models = [scores for some in by_run.values() for scores in score_models(some)]
    agreement, reason = judge_agreement(*by_run.values(), weights_of=weights_of)
    judges = dict.fromkeys(row.judge for row in rows)
    rubric = {m.rubric_hash for m in manifests}
    languages = {m.language for m in manifests}
    one = next(iter(rubric)) if len(rubric) == 1 else None
    differences, why_none = _paired(by_run, [m.model for m in models], manifests)
    return ReportData(
        title=title or " + ".join(run.resolve().name for run in runs),
        runs=tuple(str(run) for run in runs),
        manifests=tuple(manifests),
        benchmarks=tuple(benchmarks.values()),
        rows=tuple(rows),
        models=tuple(models),
        agreement=agreement,
        agreement_reason=reason or "",
        paired=differences,
        paired_reason=why_none,
        audits={j: find_audit(known, j, one, next(iter(languages), "en")) for j in judges},
        calls=CallCounts(**counts),
        cost=total_cost(usage),
        usage=tuple(usage),
        failures=tuple(failures),
        wall_seconds=seconds or None,
        shortfalls=tuple(s for b in benchmarks.values() for s in b.shortfalls),
        notes=tuple(notes),
        plays=tuple(play for run in runs if (run / PLAYS).is_file() for play in read_plays(run)),
        cast_answers=tuple(answer for run in runs for answer in read_cast_answers(run)),
        results=", ".join(str(run / RESULTS) for run in runs),
    )


def name_once(runs: Sequence[Path]) -> None:
    """Refuse a run that is named twice.

    Raises:
        UsageError: one is.
    """
    seen: set[Path] = set()
    for run in runs:
        if run.resolve() in seen:
            raise UsageError(f"the run {run} is named twice")
        seen.add(run.resolve())


def audits_beside(runs: Sequence[Path], notes: list[str]) -> list[Audit]:
    """Those of neighbouring folders, the older ones first, then the runs' own: the last counts.

    A neighbour that is damaged does not stand in the way of these runs; `notes` names it.
    """
    own = {run.resolve(): None for run in runs}
    beside = {
        file.parent: None
        for run in own
        for file in run.parent.glob(f"*/{AUDITS}")
        if file.parent not in own
    }
    found: list[tuple[str, Path, tuple[Audit, ...]]] = []
    for folder in beside:
        try:
            found.append((_created(folder), folder, read_audits(folder)))
        except InputError as error:
            notes.append(f"An audit beside the run was left out: {error}")
    found.sort(key=lambda one: one[:2])
    return [
        *(a for _, _, audits in found for a in audits),
        *(a for run in own for a in read_audits(run)),
    ]


def _created(run: Path) -> str:
    """When a run was begun (ISO 8601, UTC); empty where no manifest says it."""
    return read_manifest(run).created if (run / MANIFEST).is_file() else ""


def weights_of(judge: str) -> str:
    """What identifies a judge's weights: for the embedded model the content of its file.

    `local` and `local:FILE.gguf` may be the same weights under two names, and repeats are not
    agreement. What stands behind an endpoint's name only the endpoint knows.
    """
    if model_scheme(judge) != "local":
        return judge
    from personae.models.local import weights

    source = weights.parse_spec(judge)
    if isinstance(source, weights.WheelWeights):
        source = weights.weights_dir() / source.file_name
    return weights.sha256_of(source) if isinstance(source, Path) and source.is_file() else judge


def _instead(run: Path, manifest: Manifest) -> str:
    """What to do with a run that holds nothing to report."""
    if manifest.kind == "audit":
        return f"An audit goes with the run that it is about: personae report RUN --audit {run}"
    if manifest.kind.startswith("bench"):
        return "It made a benchmark: personae eval BENCH.jsonl --model ... --judge ... --out RUN"
    if manifest.kind.startswith("scene"):
        return "It wrote scenes: personae play SCENES.jsonl --characters ... --narrator ..."
    return f"Finish it first: personae resume {run}"


def _name_apart(
    by_run: dict[Path, tuple[ResultRow, ...]], used: dict[Path, list[UsageLine]]
) -> None:
    """A model that several runs tested stands once for each, with the run's name behind it.

    Where two runs have one name, it is the path as the user typed it. The use of its answers is
    named with it.
    """
    names = Counter(run.resolve().name for run in by_run)
    runs_of: dict[str, set[Path]] = {}
    for run, rows in by_run.items():
        for row in rows:
            runs_of.setdefault(row.model, set()).add(run)
    for run, rows in by_run.items():
        label = str(run) if names[run.resolve().name] > 1 else run.resolve().name
        apart = {m: f"{m} [{label}]" for m, runs in runs_of.items() if len(runs) > 1}
        by_run[run] = tuple(
            row.model_copy(
                update={"model": apart[row.model], "unit_id": f"{row.unit_id} [{label}]"}
            )
            if row.model in apart
            else row
            for row in rows
        )
        used[run] = [
            line.model_copy(update={"model": apart[line.model]})
            if line.role == CHARACTER_ROLE and line.model in apart
            else line
            for line in used.get(run, [])
        ]


def usage_line(line: store.UsageLine, prices: Prices) -> UsageLine:
    """A journal's line of use with its price; what is not known of it is None."""
    price = prices(line.model)
    unknown = line.unmetered > 0
    free = price is not None and price.tokens_in == 0 == price.tokens_out
    return UsageLine(
        role=line.role,
        model=line.model,
        calls=line.calls,
        tokens_in=None if unknown else line.tokens_in,
        tokens_out=None if unknown else line.tokens_out,
        cached=line.cached,
        reasoning=line.reasoning,
        usd=None
        if price is None or (unknown and not free)
        else price.of_tokens(line.tokens_in, line.tokens_out, line.cached),
        seconds=line.seconds,
    )


def total_cost(usage: Sequence[UsageLine]) -> Cost:
    """Sums; one unknown part makes the sum unknown."""

    def total(values: list[float | None]) -> float | None:
        known = [v for v in values if v is not None]
        return sum(known) if len(known) == len(values) else None

    tokens_in = total([line.tokens_in for line in usage])
    tokens_out = total([line.tokens_out for line in usage])
    return Cost(
        usd=total([line.usd for line in usage]),
        tokens_in=None if tokens_in is None else int(tokens_in),
        tokens_out=None if tokens_out is None else int(tokens_out),
    )


def _paired(
    by_run: Mapping[Path, tuple[ResultRow, ...]],
    models: Sequence[str],
    manifests: Sequence[Manifest],
) -> tuple[tuple[PairedDifference, ...], str]:
    """Every two models on their common questions, or the reason why they are not compared."""
    if len(models) < 2:
        return (), "one_model"
    if len({m.benchmark_hash for m in manifests}) > 1:
        return (), "different_benchmarks"
    # The same judge without exemplars, or by another rubric, measures something else.
    if len({(m.rubric_hash, bool(m.arguments.get("no_exemplars"))) for m in manifests}) > 1:
        return (), "different_rules"
    if len({frozenset((r.judge, r.repeat) for r in rows) for rows in by_run.values()}) > 1:
        return (), "different_judges"
    rows = [row for some in by_run.values() for row in some]
    found: list[PairedDifference] = []
    for i, model in enumerate(models):
        for other in models[i + 1 :]:
            found += paired(rows, model, other)
    return tuple(found), ""
