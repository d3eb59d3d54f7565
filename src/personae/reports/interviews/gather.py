"""From runs of interviews to what a report shows; everything is read, nothing is kept."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from personae.errors import InputError, UsageError
from personae.interview.questions import INTERVIEWS, PROFILES, SCRIPTS
from personae.interview_stage import (
    is_interview_run,
    read_interviews,
    read_kept_scripts,
    read_profiles,
)
from personae.journal.store import Journal
from personae.judging.interview_audit import covered
from personae.judging.interview_metrics import METRICS
from personae.judging.interview_scores import Voice, interviews_document
from personae.records import (
    Audit,
    InterviewRow,
    Language,
    Prices,
    content_hash,
)
from personae.records.files import read_records
from personae.reports.data import (
    CallCounts,
    Cost,
    FailureCount,
    UsageLine,
)
from personae.reports.gather import (
    audits_beside,
    find_audit,
    name_once,
    read_audits,
    total_cost,
    usage_line,
    weights_of,
)
from personae.reports.interviews.data import (
    InterviewRun,
    InterviewsReport,
    Judge,
    voice_of,
)
from personae.session import JOURNAL, RESULTS, read_manifest


def are_interview_runs(runs: Sequence[Path]) -> bool:
    """Whether runs are reported as interviews of Neeko's kind.

    Raises:
        InputError: a folder is no run.
        UsageError: some are and some are not.
    """
    found = {run: is_interview_run(read_manifest(run)) for run in runs}
    ours = [run for run, is_one in found.items() if is_one]
    others = [run for run, is_one in found.items() if not is_one]
    if ours and others:
        raise UsageError(
            f"{ours[0]} holds interviews and {others[0]} does not, and their scores measure "
            f"different things. Report them apart: personae report {others[0]}; personae report "
            f"{ours[0]}"
        )
    return bool(ours)


def gather_interviews(
    runs: Sequence[Path], *, audits: Sequence[Path] = (), prices: Prices, title: str = ""
) -> InterviewsReport:
    """Read runs of interviews, and the audits given or beside them; compute all scores.

    Raises:
        InputError: a folder is no such run or holds no interviews yet; a file is damaged.
        UsageError: a run is named twice.
    """
    name_once(runs)
    read = told_apart([read_run(run) for run in runs])
    notes: list[str] = []
    known = audits_beside(runs, notes)
    for folder in audits:
        more = read_audits(folder)
        if not more:
            raise InputError("holds no audit", path=folder, mend="Make one with `personae audit`")
        known += more
    spent = _Spent(read, prices)
    caveats = tuple(_caveats(read))
    scores = interviews_document([row for one in read for row in one.rows], weights_of=weights_of)
    if "rules" in caveats:  # the same judge by another rubric measures something else
        scores["paired"] = []
    return InterviewsReport(
        title=title or " + ".join(run.resolve().name for run in runs),
        runs=read,
        interviews=scores,
        differences_reason=_why_no_differences(read, scores, caveats),
        judges=tuple(_judges(read, known)),
        calls=spent.calls,
        cost=spent.cost,
        usage=tuple(spent.usage),
        failures=tuple(spent.failures),
        wall_seconds=spent.seconds or None,
        notes=(*(n for one in read for n in one.manifest.notes), *notes),
        caveats=caveats,
    )


def read_run(run: Path) -> InterviewRun:
    """A run of interviews, judged or not.

    Raises:
        InputError: it holds no interviews yet, or a line of a file is damaged.
    """
    manifest = read_manifest(run)
    if not (run / INTERVIEWS).is_file():
        raise InputError(
            f"this run ({manifest.kind}, {manifest.status}) has no {INTERVIEWS}",
            path=run,
            mend=f"Finish it first: personae resume {run}",
        )
    return InterviewRun(
        run,
        manifest,
        read_kept_scripts(run) if (run / SCRIPTS).is_file() else (),
        read_interviews(run),
        read_records(InterviewRow, run / RESULTS) if (run / RESULTS).is_file() else (),
    )


# Telling runs apart ------------------------------------------------------------------------------


def told_apart(runs: Sequence[InterviewRun]) -> tuple[InterviewRun, ...]:
    """The runs with their own names for what several of them have.

    A model that two runs held by the same method, in the same mode and language, stands once for
    each, with the run's name behind it. What two runs ask by one id without asking the same stands
    apart too, or answers to different questions would stand side by side.
    """
    names = Counter(one.run.resolve().name for one in runs)
    labels = {
        one.run: str(one.run) if names[one.run.resolve().name] > 1 else one.run.resolve().name
        for one in runs
    }
    held_in: dict[Voice, set[Path]] = defaultdict(set)
    asks: dict[str, set[str]] = defaultdict(set)
    for one in runs:
        for held in one.interviews:
            held_in[voice_of(held)].add(one.run)
        for script, asked in _asked(one).items():
            asks[script].add(asked)
    twice = frozenset(voice.model for voice, where in held_in.items() if len(where) > 1)
    unlike = frozenset(script for script, asked in asks.items() if len(asked) > 1)
    return tuple(_renamed(one, labels[one.run], twice, unlike) for one in runs)


def _renamed(
    one: InterviewRun, label: str, twice: frozenset[str], unlike: frozenset[str]
) -> InterviewRun:
    def apart(name: str, among: frozenset[str]) -> str:
        return f"{name} [{label}]" if name in among else name

    def unit(interview: str, model: str, script: str) -> str:
        return f"{interview} [{label}]" if model in twice or script in unlike else interview

    return replace(
        one,
        scripts=tuple(
            script.model_copy(update={"id": apart(script.id, unlike)}) for script in one.scripts
        ),
        interviews=tuple(
            held.model_copy(
                update={
                    "id": unit(held.id, held.model, held.script_id),
                    "model": apart(held.model, twice),
                    "script_id": apart(held.script_id, unlike),
                }
            )
            for held in one.interviews
        ),
        rows=tuple(
            row.model_copy(
                update={
                    "interview_id": unit(row.interview_id, row.model, row.script_id),
                    "model": apart(row.model, twice),
                    "script_id": apart(row.script_id, unlike),
                }
            )
            for row in one.rows
        ),
    )


def _asked(one: InterviewRun) -> Mapping[str, str]:
    """The hash of what each script asks; a run without scripts is read from its interviews.

    A live interviewer's words are not the script's, and differ between models.
    """
    found = {script.id: script.hash for script in one.scripts}
    for held in one.interviews:
        if held.script_id not in found:
            fixed = held.mode in ("single", "replayed")
            turns = [[e.character, e.asked if fixed else None] for e in held.exchanges]
            found[held.script_id] = content_hash([held.kind, held.topic, turns])
    return found


# What it took, who judged, what limits the reading -----------------------------------------------


class _Spent:
    """Sums over the runs' journals; what a journal that is gone would say is unknown."""

    def __init__(self, runs: Sequence[InterviewRun], prices: Prices) -> None:
        made = reused = failed = 0
        self.usage: list[UsageLine] = []
        self.failures: list[FailureCount] = []
        self.seconds = 0.0
        known = True
        for one in runs:
            if not (one.run / JOURNAL).is_file():
                known = False
                continue
            with Journal(one.run / JOURNAL, read_only=True) as journal:
                total, lost = journal.totals(), journal.failures()
                made += total.made
                reused += total.reused
                failed += sum(line.count for line in lost)
                self.seconds += journal.seconds()
                self.usage += [usage_line(line, prices) for line in journal.usage()]
                self.failures += [
                    FailureCount(role=f.role, model=f.model, cause=f.cause, count=f.count)
                    for f in lost
                ]
        self.calls = CallCounts(made=made, reused=reused, failed=failed)
        self.cost = total_cost(self.usage) if known else Cost()


def _judges(runs: Sequence[InterviewRun], audits: Sequence[Audit]) -> Iterator[Judge]:
    """The judges as the manifests name them, each once a language and rubric.

    An audit counts if it speaks of every metric that the judge has scored: all are under one rubric
    hash, and one without transfer dialogues says nothing of Trans.
    """
    first: dict[tuple[str, Language, str | None], Path] = {}
    scored: dict[tuple[str, Language, str | None], set[str]] = defaultdict(set)
    for one in runs:
        lang, rubric = one.manifest.language, one.manifest.rubric_hash
        for model in one.manifest.models.get("judge", ()):
            first.setdefault((model, lang, rubric), one.run)
        for row in one.rows:
            scored[row.judge, lang, rubric].add(row.metric)
    for (model, lang, rubric), run in first.items():
        given = scored[model, lang, rubric]
        able = [audit for audit in audits if given <= set(covered(audit))]
        found = find_audit(able, model, rubric, lang)
        partial = find_audit(audits, model, rubric, lang) if found is None else None
        lacking = given.difference(covered(partial)) if partial is not None else set()
        yield Judge(model, lang, found, run, tuple(m for m in METRICS if m in lacking))


def _caveats(runs: Sequence[InterviewRun]) -> Iterator[str]:
    """What makes runs, or interviews in one run, differ in more than their models."""
    judged = [one for one in runs if one.rows]
    rubrics = {(one.manifest.language, one.manifest.rubric_hash) for one in judged}
    if len(rubrics) > len({language for language, _ in rubrics}):
        yield "rules"
    panels = {frozenset((row.judge, row.repeat) for row in one.rows) for one in judged}
    if len(panels) > 1:
        yield "judges"
    told: dict[tuple[Language, str], set[str]] = defaultdict(set)
    for one in judged:
        for profile in read_profiles(one.run) if (one.run / PROFILES).is_file() else ():
            told[one.manifest.language, profile.name].add(profile.text)
    if any(len(texts) > 1 for texts in told.values()):
        yield "profiles"
    if judged and len(judged) < len(runs):
        yield "some_unjudged"
    live = {held.interviewer for one in runs for held in one.interviews if held.mode == "live"}
    if len(live) > 1:
        yield "interviewers"
    modes = {held.mode for one in runs for held in one.interviews}
    if "live" in modes:
        yield "live"
    if "unknown" in modes:
        yield "unknown"


def _why_no_differences(
    runs: Sequence[InterviewRun], scores: Mapping[str, Any], caveats: Sequence[str]
) -> str:
    """Empty where there are some."""
    if scores["paired"]:
        return ""
    if not any(one.rows for one in runs):
        return "unjudged"
    if "rules" in caveats:
        return "different_rules"
    systems = {(row.model, row.method) for one in runs for row in one.rows}
    return "one_voice" if len(systems) < 2 else "nothing_common"
