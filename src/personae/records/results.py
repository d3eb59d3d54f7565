"""What a run leaves behind: one row per judged answer and judge, and the scores over them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from personae.records.base import Record
from personae.records.benchmark import Task
from personae.records.call import Failure


class ResultRow(Record):
    """One line of results.jsonl: one answer as one judge saw it.

    `unit_id` names the answer (model and question), so all judges of an answer share it; ratings
    by people use the same ids. A judge `lift:MODEL` fills `lift` (nats a token) and leaves `score`
    null; it never enters PersonaScore. `score` null with `failure` set is missing, never 0.

    Attributes:
        answer: the answer's text, or null when the model under test gave none.
        failure: why there is no score (or no lift): `answer: ...` when there was nothing to judge.
        justification: the judge's reason, given before its score.
        expected_score: the probability-weighted score over the digits 1 to 5, where the judge's
            endpoint offers log-probabilities.
        refusal: whether the answer was taken for a refusal; null when there is no answer.
        repeat: 0, 1, ... for repeated verdicts of one judge.

    """

    unit_id: str
    model: str
    persona: str
    task: Task
    question_id: str
    question: str
    environment: str | None = None
    answer: str | None
    judge: str
    score: int | None = Field(ge=1, le=5)
    failure: Failure | None
    justification: str | None = None
    expected_score: float | None = Field(default=None, ge=1, le=5)
    lift: float | None = None
    refusal: bool | None = None
    repeat: int = 0


class Estimate(Record):
    """A mean with its 95 % interval, bootstrapped over personas.

    `n` counts personas that enter the mean, `missing` is the share (0 to 1) of units without a
    score; `low` and `high` are null below two personas; all three null where nothing was scored.
    """

    mean: float | None
    low: float | None
    high: float | None
    n: int = Field(ge=0)
    missing: float = Field(ge=0, le=1)


class ModelScores(Record):
    """The scores of one model under test."""

    model: str
    persona_score: Estimate
    tasks: dict[str, Estimate]
    n_answers: int = Field(ge=0)
    refusal_rate: float | None
    refusal_by_task: dict[str, float | None] = {}
    lift: Estimate | None
    lift_tasks: dict[str, Estimate] = {}
    by_judge: dict[str, Estimate] = {}
    expected_score: Estimate | None = None


class Agreement(Record):
    """Ordinal Krippendorff alpha between judges with its 95 % interval, bootstrapped by persona."""

    alpha: float | None
    low: float | None
    high: float | None
    units: int = Field(ge=0)


class PairedDifference(Record):
    """Mean score of `model` minus that of `other` on the same questions, by persona."""

    model: str
    other: str
    what: str
    estimate: Estimate


class AuditGroup(Record):
    """How a judge scores a known-worse group against the characters' own answers.

    `auc` is the probability that an own answer scores above one of the group (ties count half).
    """

    name: str
    auc: float | None
    low: float | None
    high: float | None
    n: int = Field(ge=0)
    missing: float = Field(ge=0, le=1)
    passed: bool | None
    mean_own: float | None = None
    mean_group: float | None = None
    note: str = ""


class Audit(Record):
    """The verdict over one judge: found by judge model, rubric hash and language."""

    judge: str
    rubric_hash: str
    language: str
    verdict: Literal["passed", "failed"]
    reasons: tuple[str, ...]
    groups: tuple[AuditGroup, ...]
    order_shift: float | None
    length_slope: float | None
    repeat_variance: float | None
    swap_shift: float | None
    missing: float = Field(ge=0, le=1)
    thresholds: dict[str, float]
    answers_hash: str = ""
