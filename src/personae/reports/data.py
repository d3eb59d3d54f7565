"""What a report is made of: everything it shows, as records, before any of it is formatted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from personae.judging.scores import is_lift, panel_mean
from personae.records import (
    Agreement,
    Audit,
    Benchmark,
    Failure,
    Manifest,
    ModelScores,
    PairedDifference,
    Play,
    Record,
    ResultRow,
    Shortfall,
    Task,
)
from personae.records.cast import CastAnswer

CHARACTER_ROLE = "character"

JudgeState = Literal["passed", "failed", "none"]


class CallCounts(Record):
    """Calls of all roles: sent to an endpoint, answered from the journal, ended in a failure."""

    made: int = Field(default=0, ge=0)
    reused: int = Field(default=0, ge=0)
    failed: int = Field(default=0, ge=0)


class Cost(Record):
    """What the runs used; `usd` is None where the price of any call is unknown."""

    usd: float | None = Field(default=None, ge=0)
    tokens_in: int | None = Field(default=None, ge=0)
    tokens_out: int | None = Field(default=None, ge=0)


class UsageLine(Record):
    """The use of one model in one role.

    `seconds` sums over calls (calls run side by side, so it exceeds the wall time); `cached` is
    part of `tokens_in`, `reasoning` of `tokens_out`; None is unknown.
    """

    role: str
    model: str
    calls: int = Field(ge=0)
    tokens_in: int | None = Field(default=None, ge=0)
    tokens_out: int | None = Field(default=None, ge=0)
    cached: int | None = Field(default=None, ge=0)
    reasoning: int | None = Field(default=None, ge=0)
    usd: float | None = Field(default=None, ge=0)
    seconds: float | None = Field(default=None, ge=0)


class FailureCount(Record):
    """How often one cause ended a call of one model in one role; `example` is one `detail`."""

    role: str
    model: str
    cause: str
    count: int = Field(ge=1)
    example: str = ""


class ReportData(Record):
    """All that a report shows.

    Attributes:
        title: the heading of the page; the run's name.
        runs: the run directories, in the order of `manifests`.
        manifests: what was run; none of the report's wording depends on anything else.
        benchmarks: the benchmarks of the runs, each once. Where they differ in hash the page says
            that scores of different benchmarks cannot be compared.
        rows: all lines of results.jsonl.
        models: the scores, in the order in which they are to be shown.
        agreement: between judges of different weights; None with `agreement_reason`.
        agreement_reason: why there is none: one of the keys under `[agreement_reason]` in the
            strings files, or a sentence that is shown as it is.
        paired: differences between models on the same questions.
        paired_reason: why there are none, as `agreement_reason`.
        audits: every judge of the rows by its id; None for one that was never audited. A judge
            `lift:MODEL` may stand here too; it gives no verdicts, so the warning is not about it.
        calls, cost, usage, failures: sums over the journals.
        wall_seconds: from the first call to the last reply, where known.
        shortfalls: what models were asked for and did not deliver, of runs and benchmarks.
        notes: sentences for the reader, shown as they are.
        plays: of a demo, which plays a scene beside its interview.
        cast_answers: of a demo, which trains two characters and asks both the same.
        results: where the full results stand, as the reader should type it.

    """

    title: str = "Personae"
    runs: tuple[str, ...] = ()
    manifests: tuple[Manifest, ...] = ()
    benchmarks: tuple[Benchmark, ...] = ()
    rows: tuple[ResultRow, ...] = ()
    models: tuple[ModelScores, ...] = ()
    agreement: Agreement | None = None
    agreement_reason: str = ""
    paired: tuple[PairedDifference, ...] = ()
    paired_reason: str = ""
    audits: dict[str, Audit | None] = {}
    calls: CallCounts = CallCounts()
    cost: Cost = Cost()
    usage: tuple[UsageLine, ...] = ()
    failures: tuple[FailureCount, ...] = ()
    wall_seconds: float | None = Field(default=None, ge=0)
    shortfalls: tuple[Shortfall, ...] = ()
    notes: tuple[str, ...] = ()
    plays: tuple[Play, ...] = ()
    cast_answers: tuple[CastAnswer, ...] = ()
    results: str = "results.jsonl"

    @property
    def judges(self) -> tuple[str, ...]:
        """All judges, lift included, in the order of `audits`, then of the rows."""
        return tuple(dict.fromkeys([*self.audits, *(row.judge for row in self.rows)]))

    @property
    def verdict_judges(self) -> tuple[str, ...]:
        """The judges whose scores enter PersonaScore."""
        return tuple(j for j in self.judges if not is_lift(j))

    def judge_state(self, judge: str) -> JudgeState:
        """`passed`, `failed`, or `none` for a judge that was never audited."""
        audit = self.audits.get(judge)
        return "none" if audit is None else audit.verdict

    @property
    def trust(self) -> Literal["passed", "failed", "none", "mixed", "no_judge"]:
        """What the judges' audits say together; `mixed` unless all are in the same state."""
        states = {self.judge_state(j) for j in self.verdict_judges}
        if not states:
            return "no_judge"
        return states.pop() if len(states) == 1 else "mixed"

    def description(self, persona: str) -> str:
        """The description of a character, or its id where no benchmark knows it."""
        for benchmark in self.benchmarks:
            for known in benchmark.personas:
                if known.id == persona:
                    return known.description
        return persona


@dataclass(frozen=True)
class Verdict:
    """One judge's word on an answer; `score` None with `failure` is missing."""

    judge: str
    repeat: int
    score: int | None
    expected: float | None
    reason: str | None
    failure: Failure | None


@dataclass(frozen=True)
class Unit:
    """One answer with all that was said about it."""

    unit_id: str
    model: str
    persona: str
    task: Task
    question_id: str
    question: str
    environment: str | None
    answer: str | None
    refusal: bool | None
    verdicts: tuple[Verdict, ...]
    lifts: tuple[tuple[str, float | None, Failure | None], ...]
    panel: tuple[str, ...]

    @property
    def by_judge(self) -> dict[str, float]:
        """Each judge's score, repeats averaged; judges without a score are absent."""
        scores: dict[str, list[int]] = {}
        for verdict in self.verdicts:
            if verdict.score is not None:
                scores.setdefault(verdict.judge, []).append(verdict.score)
        return {judge: sum(s) / len(s) for judge, s in scores.items()}

    @property
    def mean(self) -> float | None:
        """The mean over the panel; None unless every judge of it gave a score."""
        return panel_mean(self.by_judge, self.panel)

    @property
    def spread(self) -> float:
        """Points between the highest and the lowest judge; 0 where fewer than two gave a score."""
        scores = self.by_judge.values()
        return max(scores) - min(scores) if scores else 0.0

    @property
    def lift(self) -> float | None:
        """The mean lift in nats a token over the lift judges that gave one."""
        known = [value for _, value, _ in self.lifts if value is not None]
        return sum(known) / len(known) if known else None


def group_units(rows: Iterable[ResultRow]) -> tuple[Unit, ...]:
    """The rows by answer, in the order in which the answers first appear.

    The panel of an answer is the set of verdict judges that occur in the rows of its model.
    """
    groups: dict[tuple[str, str], list[ResultRow]] = {}
    panels: dict[str, dict[str, None]] = {}
    for row in rows:
        groups.setdefault((row.model, row.unit_id), []).append(row)
        if not is_lift(row.judge):
            panels.setdefault(row.model, {})[row.judge] = None
    known = {model: tuple(judges) for model, judges in panels.items()}
    return tuple(_unit(group, known.get(model, ())) for (model, _), group in groups.items())


def _unit(rows: list[ResultRow], panel: tuple[str, ...]) -> Unit:
    first = rows[0]
    return Unit(
        unit_id=first.unit_id,
        model=first.model,
        persona=first.persona,
        task=first.task,
        question_id=first.question_id,
        question=first.question,
        environment=first.environment,
        answer=first.answer,
        refusal=first.refusal,
        verdicts=tuple(
            Verdict(
                row.judge,
                row.repeat,
                row.score,
                row.expected_score,
                row.justification,
                row.failure,
            )
            for row in rows
            if not is_lift(row.judge)
        ),
        lifts=tuple((row.judge, row.lift, row.failure) for row in rows if is_lift(row.judge)),
        panel=panel,
    )
