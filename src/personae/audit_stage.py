"""The stage `personae audit`: from answers and judges to audits, in a run of its own."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from personae.errors import InputError, UsageError
from personae.interview.benchmark_file import read_benchmark
from personae.journal.client import Plan
from personae.judging.answers import (
    Answers,
    LeftOut,
    answers_of_results,
    read_answer_file,
)
from personae.judging.audit import (
    GROUPS,
    AuditRow,
    Case,
    ask_cases,
    build_cases,
    choose,
    judge_audit,
    load_words,
)
from personae.judging.judge import JUDGE_SAMPLING
from personae.judging.lift import check_judges
from personae.judging.rubrics import rubric_hash, rubric_set
from personae.models.registry import Registry
from personae.records import Audit, Language, Record, Rubric, Sampling
from personae.records.files import read_jsonl, write_atomically
from personae.records.language import written_in
from personae.reports.gather import AUDITS, read_results
from personae.session import BENCHMARK, RESULTS, Options, Run, new_manifest, open_run
from personae.stages import seeded, write_results

AUDIT_ROWS = "audit_rows.jsonl"
DEFAULT_LIMIT = 40


Row = TypeVar("Row")


@dataclass(frozen=True)
class Audited(Generic[Row]):
    """What an audit leaves: of answers, of trajectories, or of interviews.

    Attributes:
        audits: one a judge; none in a dry run, whose verdicts mean nothing.
        rows: every verdict; likewise.
        left_out: the answers, trajectories or interviews that were not used.
        plan: of a dry run.
    """

    run: Path
    audits: tuple[Audit, ...]
    rows: tuple[Row, ...]
    left_out: tuple[LeftOut, ...]
    plan: Plan | None


@dataclass
class Material:
    """Answers, the language they are in, and the rubrics that they were asked under."""

    answers: Answers
    language: Language
    rubrics: tuple[Rubric, ...] = ()


def read_answers(paths: Sequence[Path], language: Language | None = None) -> Material:
    """The answers of runs (a directory or its results.jsonl) and of Neeko's answer files.

    Args:
        language: of the audit; None takes that of the answers.

    Raises:
        InputError: a file cannot be used; the files differ in language or rubrics; none holds an
            answer that can be used.
    """
    answers = Answers()
    languages: dict[Language, Path] = {}
    rubrics: dict[tuple[Rubric, ...], Path] = {}
    for path in paths:
        results = path / RESULTS if path.is_dir() else path
        if path.is_dir() and not results.is_file():
            raise InputError(
                f"this folder has no {RESULTS}",
                path=path,
                mend="Give a finished run, its results.jsonl, or answer files one by one",
            )
        if path.is_dir() or _is_results(path):
            benchmark_file = results.parent / BENCHMARK
            if not benchmark_file.is_file():
                raise InputError(
                    f"there is no {BENCHMARK} beside it, which says who the characters are",
                    path=results,
                    mend="Give the results inside their run directory",
                )
            benchmark = read_benchmark(benchmark_file)
            answers.add(answers_of_results(read_results(results), benchmark, results))
            languages.setdefault(benchmark.language, path)
            rubrics.setdefault(benchmark.rubrics, path)
        else:
            found = read_answer_file(path)
            answers.add(found)
            if found.answers:
                languages.setdefault(written_in(a.answer for a in found.answers), path)
            rubrics.setdefault((), path)
    for what, seen in (("languages", languages), ("rubrics", rubrics)):
        if len(seen) > 1:
            one, other, *_ = seen.values()
            raise InputError(
                f"{one} and {other} have different {what}, and a judge is audited for one",
                mend="Audit them one after the other",
            )
    if not answers.answers:
        causes = Counter(left.cause for left in answers.left_out)
        listed = ", ".join(f"{n} {cause}" for cause, n in sorted(causes.items()))
        raise InputError(
            f"no answer that can be used ({listed or 'there is none'})",
            path=paths[0] if len(paths) == 1 else None,
            mend="Give a run in which a model answered, or answer files",
        )
    spoken = next(iter(languages))
    if language is not None and language != spoken:
        raise InputError(
            f"the answers are in {spoken!r}, the audit was asked for in {language!r}",
            path=languages[spoken],
            mend="Leave --lang out",
        )
    return Material(answers, spoken, next(iter(rubrics)))


def _is_results(path: Path) -> bool:
    """Whether a JSONL file's first line is a result row."""
    if path.suffix.lower() not in (".jsonl", ".ndjson"):
        return False
    first = next(read_jsonl(path), None)
    return first is not None and "unit_id" in first[1]


async def audit_judges(
    answers: Sequence[Path],
    judges: Sequence[str],
    out: Path,
    *,
    language: Language | None = None,
    limit: int = DEFAULT_LIMIT,
    groups: Sequence[str] = GROUPS,
    seed: int = 0,
    options: Options | None = None,
    registry: Registry | None = None,
) -> Audited[AuditRow]:
    """Find out whether judges can be trusted (`personae audit`).

    Leaves `audits.json` (one audit a judge) and `audit_rows.jsonl` (every verdict) in the run.

    Args:
        answers: runs, their results.jsonl, or answer files.
        judges: model ids; `lift:MODEL` too.
        out: the run directory.
        language: default: that of the answers.
        limit: how many own answers, spread over characters; each costs up to eleven verdicts.
        groups: which known groups to try; without one that decides no judge passes.

    Raises:
        UsageError: no judge, an unknown group, or other wrong arguments.
        InputError: see `read_answers`.
        StoppedEarlyError: a cap; call again to go on. The audit is written when it is whole.
    """
    options = options or Options()
    judges = tuple(dict.fromkeys(judges))
    check_asked(judges, answers, limit)
    check_judges(judges)
    check_groups(groups, GROUPS)
    material = read_answers(answers, language)
    found, spoken = material.answers, material.language
    sampling = seeded(JUDGE_SAMPLING, seed)
    manifest = new_manifest(
        "audit",
        {"judge": judges},
        spoken,
        seed=seed,
        sampling={"judge": sampling.to_dict()},
        arguments={
            "answers": [str(path) for path in answers],
            "language": language,
            "limit": limit,
            "groups": list(groups),
            "cwd": str(Path.cwd()),
        },
        rubric_hash=rubric_hash(spoken, material.rubrics),
        made_from=(found.hash,),
        notes=tuple(_notes(found, spoken)),
    )
    cases = build_cases(
        choose(found.answers, limit, seed), found.answers, spoken, groups=groups, seed=seed
    )
    async with open_run(out, manifest, options, registry=registry) as run:
        rows, audits = await audit_in(
            run,
            judges,
            cases,
            found,
            language=spoken,
            rubrics=material.rubrics,
            sampling=sampling,
            groups=groups,
            seed=seed,
        )
        return Audited(out, audits, rows, tuple(found.left_out), run.plan)


async def audit_in(
    run: Run,
    judges: Sequence[str],
    cases: Sequence[Case],
    answers: Answers,
    *,
    language: Language,
    rubrics: tuple[Rubric, ...] = (),
    sampling: Sampling,
    groups: Sequence[str],
    seed: int,
) -> tuple[tuple[AuditRow, ...], tuple[Audit, ...]]:
    """Have the cases judged in an open run and write its two files; nothing of a dry run.

    Args:
        answers: what the cases were built from.
        rubrics: custom ones, where the answers were asked under such.
    """
    rows = await ask_cases(
        run.client,
        judges,
        cases,
        cast=answers.cast,
        rubrics=rubric_set(language, rubrics),
        language=language,
        sampling=sampling,
        window=run.options.window,
        watcher=run.options.watcher,
    )
    if run.dry:
        return (), ()
    audits = tuple(
        judge_audit(
            judge,
            rows,
            language=language,
            rubric_hash=rubric_hash(language, rubrics),
            answers_hash=answers.hash,
            groups=groups,
            seed=seed,
        )
        for judge in judges
    )
    write_audit(run, rows, audits)
    return tuple(rows), audits


def check_asked(judges: Sequence[str], answers: Sequence[Path], limit: int) -> None:
    """Refuse an audit of nobody, of nothing, or of none.

    Raises:
        UsageError: no judge, no answers, or a limit below 1.
    """
    if not judges or not answers:
        raise UsageError("give at least one --judge and one of --answers")
    if limit < 1:
        raise UsageError("--limit counts from 1")


def check_groups(groups: Sequence[str], known: Sequence[str]) -> None:
    """Refuse a group that there is not.

    Raises:
        UsageError: names it, and those that there are.
    """
    unknown = [g for g in groups if g not in known]
    if unknown:
        raise UsageError(f"there is no group {unknown[0]!r}; the groups are {', '.join(known)}")


def write_audit(run: Run, rows: Sequence[Record], audits: Sequence[Audit]) -> None:
    """Write an audit's two files into its run; a replay writes nothing."""
    if run.options.live:
        write_results(rows, run.path / AUDIT_ROWS)
        whole = json.dumps([a.to_dict() for a in audits], ensure_ascii=False, indent=2)
        write_atomically(run.path / AUDITS, whole + "\n")


def causes_by_file(left_out: Iterable[LeftOut]) -> dict[str, Counter[str]]:
    """How often each cause left something out, file by file."""
    found: dict[str, Counter[str]] = {}
    for left in left_out:
        found.setdefault(left.path, Counter())[left.cause] += 1
    return found


def _notes(found: Answers, language: Language) -> list[str]:
    """What was left out, file by file, in plain words."""
    words = load_words(language)["left_out"]
    notes = [
        words["summary"].format(
            n=causes.total(),
            source=path,
            causes=", ".join(f"{words[cause]} {n}" for cause, n in sorted(causes.items())),
        )
        for path, causes in causes_by_file(found.left_out).items()
    ]
    notes += [words["no_profile"].format(name=n, source=path) for n, path in found.unknown]
    return notes
