"""What a report of interviews is made of: everything it shows, before any of it is formatted."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from personae.judging.interview_scores import AVERAGE, Verdicts, Voice
from personae.judging.trajectory_scores import JudgeAgreement
from personae.records import (
    Agreement,
    Audit,
    Interview,
    InterviewRow,
    InterviewScript,
    Language,
    Manifest,
)
from personae.reports.data import CallCounts, Cost, FailureCount, JudgeState, UsageLine
from personae.session import RESULTS

Trust = Literal["passed", "failed", "none", "mixed", "unjudged"]


def voice_of(one: Interview | InterviewRow) -> Voice:
    """Whose interviews it is scored with."""
    return Voice(model=one.model, method=one.method, mode=one.mode, lang=one.language)


@dataclass(frozen=True)
class InterviewRun:
    """One run of interviews, as its files have it.

    Attributes:
        rows: the verdicts; none where nobody has judged.
    """

    run: Path
    manifest: Manifest
    scripts: tuple[InterviewScript, ...]
    interviews: tuple[Interview, ...]
    rows: tuple[InterviewRow, ...]


@dataclass(frozen=True)
class Judge:
    """A judge under one rubric.

    Attributes:
        audit: of interviews, under the rubric of these verdicts.
        run: a run that it judged.
        lacking: metrics that it scored and its audit, which therefore does not count, is silent of.
    """

    model: str
    lang: Language
    audit: Audit | None
    run: Path
    lacking: tuple[str, ...] = ()

    @property
    def state(self) -> JudgeState:
        """`passed`, `failed`, or `none` for a judge that was never audited."""
        return "none" if self.audit is None else self.audit.verdict


@dataclass(frozen=True)
class LeftOut:
    """Interviews that cannot be scored, since a turn of theirs could not be had or used.

    Attributes:
        cause: the first failure in the interview, which is the one that counts.
        interviews: how many; of how many of this voice there are in all.
        places: where they stand: file and place of an imported one, else its id.
        example: what is said of one of them.
    """

    voice: Voice
    cause: str
    interviews: int
    of: int
    places: tuple[str, ...]
    example: str


@dataclass(frozen=True)
class Unscored:
    """Verdicts that a judge owes on interviews that can be scored."""

    judge: str
    metric: str
    cause: str
    count: int
    of: int
    example: str


@dataclass(frozen=True)
class InterviewsReport:
    """All that a report of interviews shows.

    Attributes:
        title: the heading; the runs' names.
        runs: the runs, told apart.
        interviews: what `report --json` gives under `interviews`.
        differences_reason: why there are no differences: a key under `[interviews.no_differences]`.
        judges: of all verdicts.
        calls, cost, usage, failures: sums over the journals.
        wall_seconds: from first call to last reply, summed over the runs; None is unknown.
        notes: sentences for the reader, shown as they are.
        caveats: keys under `[interviews.caveat]`: what else limits the reading.
    """

    title: str
    runs: tuple[InterviewRun, ...]
    interviews: dict[str, Any]
    differences_reason: str = ""
    judges: tuple[Judge, ...] = ()
    calls: CallCounts = field(default_factory=CallCounts)
    cost: Cost = field(default_factory=Cost)
    usage: tuple[UsageLine, ...] = ()
    failures: tuple[FailureCount, ...] = ()
    wall_seconds: float | None = None
    notes: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()

    @property
    def manifests(self) -> tuple[Manifest, ...]:
        """Of the runs, in their order."""
        return tuple(one.manifest for one in self.runs)

    @property
    def results(self) -> str:
        """Where the rows stand, as the reader should type it."""
        return ", ".join(str(one.run / RESULTS) for one in self.runs)

    @property
    def trust(self) -> Trust:
        """What the audits of the judges say together."""
        states = {judge.state for judge in self.judges}
        if not states:
            return "unjudged"
        return states.pop() if len(states) == 1 else "mixed"

    @cached_property
    def held(self) -> tuple[Interview, ...]:
        """All interviews."""
        return tuple(interview for one in self.runs for interview in one.interviews)

    @cached_property
    def rows(self) -> tuple[InterviewRow, ...]:
        """All verdicts."""
        return tuple(row for one in self.runs for row in one.rows)

    @cached_property
    def rows_of(self) -> Mapping[str, tuple[InterviewRow, ...]]:
        """The verdicts by interview id, the judges in order."""
        found: dict[str, list[InterviewRow]] = defaultdict(list)
        for row in self.rows:
            found[row.interview_id].append(row)
        return {
            unit: tuple(sorted(rows, key=lambda r: (r.judge, r.repeat)))
            for unit, rows in found.items()
        }

    @cached_property
    def verdicts(self) -> Verdicts:
        """The verdicts, by interview, metric and judge."""
        return Verdicts(self.rows)

    @cached_property
    def scores_of(self) -> Mapping[str, Mapping[str, float | None]]:
        """The panel's scores by interview id and metric, averages too; None is missing.

        What an interview was not judged on is absent.
        """
        found: dict[str, dict[str, float | None]] = defaultdict(dict)
        for row in self.rows:
            found[row.interview_id].setdefault(row.metric, None)
        for what, values in self.verdicts.panel.items():
            for unit, value in values.items():
                found[unit.interview][what] = value
        return found

    @cached_property
    def turns_of(self) -> Mapping[str, Mapping[int, float]]:
        """The panel's scores of turns (from 1) by interview id."""
        found: dict[str, dict[int, float]] = defaultdict(dict)
        for turn in range(1, max((unit.turns for unit in self.verdicts.units), default=0) + 1):
            for unit, value in self.verdicts.of_turn(turn).items():
                found[unit.interview][turn] = value
        return found

    @property
    def _agreed(self) -> JudgeAgreement | None:
        """On an interview's average; on Trans where there are transfer dialogues alone."""
        found = [JudgeAgreement.from_dict(one) for one in self.interviews["agreement"]]
        return next((one for one in found if one.metric == AVERAGE), found[-1] if found else None)

    @property
    def agreement(self) -> Agreement | None:
        """Of the judges on an interview's average."""
        return None if self._agreed is None else self._agreed.agreement

    @property
    def agreement_reason(self) -> str | None:
        """Why there is none."""
        return "no judge gave ratings" if self._agreed is None else self._agreed.reason

    @cached_property
    def voices(self) -> tuple[Voice, ...]:
        """Model, method, mode and language of all interviews, in the order of the runs."""
        return tuple(dict.fromkeys(voice_of(one) for one in self.held))

    @cached_property
    def by_script(self) -> Mapping[str, tuple[Interview, ...]]:
        """The interviews by what was asked, in the order of voices."""
        order = {voice: i for i, voice in enumerate(self.voices)}
        found: dict[str, list[Interview]] = defaultdict(list)
        for one in self.held:
            found[one.script_id].append(one)
        return {
            script: tuple(sorted(some, key=lambda one: order[voice_of(one)]))
            for script, some in found.items()
        }

    @cached_property
    def left_out(self) -> tuple[LeftOut, ...]:
        """The interviews that cannot be scored, by voice and cause."""
        totals = Counter(voice_of(one) for one in self.held)
        groups: dict[tuple[Voice, str], list[Interview]] = defaultdict(list)
        for one in self.held:
            if one.failure is not None:
                groups[voice_of(one), one.failure.cause].append(one)
        return tuple(
            LeftOut(
                voice,
                cause,
                len(some),
                totals[voice],
                tuple(one.source or one.id for one in some),
                next((f.detail for one in some if (f := one.failure) and f.detail), ""),
            )
            for (voice, cause), some in groups.items()
        )

    @cached_property
    def unscored(self) -> tuple[Unscored, ...]:
        """The verdicts that are missing though there was something to judge."""
        asked: Counter[tuple[str, str]] = Counter()
        lost: Counter[tuple[str, str, str]] = Counter()
        examples: dict[tuple[str, str, str], str] = {}
        for row in self.rows:
            if row.failure is not None and row.failure.cause.startswith("answer: "):
                continue
            asked[row.judge, row.metric] += 1
            if row.failure is not None:
                key = (row.judge, row.metric, row.failure.cause)
                lost[key] += 1
                examples.setdefault(key, row.failure.detail)
        return tuple(
            Unscored(*key, n, asked[key[0], key[1]], examples[key])
            for key, n in sorted(lost.items())
        )
