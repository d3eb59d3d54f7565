"""Do the judges score as people do? As in PersonaGym, Table 2, where two people rated answers.

Ratings are a CSV file with the columns `unit_id,rater,metric,score`. A metric is a task (by any of
its names) or a name of the rater's own, such as `overall`. A metric needs one scale for all its
raters, but not that of the judges: correlations compare order (Spearman, Kendall) or are free of
scale (Pearson), and single answers are compared by standardised scores.
"""

from __future__ import annotations

import csv
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from pydantic import Field

from personae.errors import InputError
from personae.judging.scores import JudgedAnswer, judged_answers
from personae.judging.statistics import Interval, correlation, ordinal_alpha
from personae.records import Agreement, Record, ResultRow, Task
from personae.records.files import read_text

COLUMNS = ("unit_id", "rater", "metric", "score")
_MAX_BYTES = 64 * 2**20
_NUMBER = re.compile(r"[+-]?[0-9]{1,9}(\.[0-9]{1,9})?")


WhyNoAlpha: TypeAlias = Literal[
    "one rater", "no answer has two ratings", "all ratings are the same"
]


class Correlation(Record):
    """A correlation with its 95 % interval; None where it does not exist."""

    value: float | None
    low: float | None
    high: float | None


class MetricAgreement(Record):
    """How one metric's ratings go with the scores of the same answers. Intervals resample personas.

    Attributes:
        metric: the task's full name, or the raters' own name.
        task: the task whose answers these are; None for a metric that is no task, over all of them.
        model: the model whose answers these are; None for all models of the run together. The
            paper's table is per model.
        measure: what stands against the ratings: the mean over the judges, or lift.
        units: answers with both; `unscored` those that people rated and no full panel scored.

    """

    metric: str
    task: Task | None
    model: str | None
    measure: Literal["score", "lift"]
    units: int = Field(ge=0)
    unscored: int = Field(ge=0)
    spearman: Correlation
    kendall: Correlation
    pearson: Correlation


class RaterAgreement(Record):
    """Ordinal Krippendorff alpha between the raters of one metric; None where `reason` says why."""

    metric: str
    raters: int = Field(ge=1)
    agreement: Agreement | None
    reason: WhyNoAlpha | None = None


class Dispute(Record):
    """An answer on which judges and people differ.

    `difference` is the judges' score less the people's, each standardised over the answers of the
    metric (mean 0, standard deviation 1): their scales may differ.
    """

    metric: str
    answer: JudgedAnswer
    ratings: dict[str, float]
    human_score: float
    difference: float


class HumanAgreement(Record):
    """What `agree` found."""

    metrics: tuple[MetricAgreement, ...]
    raters: tuple[RaterAgreement, ...]
    disputes: tuple[Dispute, ...]
    ratings: int = Field(ge=1)


class _Ratings(NamedTuple):
    """The ratings of one metric: unit id to rater to score."""

    name: str
    task: Task | None
    by_unit: dict[str, dict[str, float]]


def agree(
    rows: Sequence[ResultRow], ratings_csv: Path, *, disputes: int = 10, seed: int = 0
) -> HumanAgreement:
    """Compare the judges of a run with people's ratings of its answers.

    Args:
        rows: results of one run.
        ratings_csv: the ratings; UTF-8, at most 64 MB.
        disputes: how many of the answers with the largest differences to return.
        seed: of the bootstrap.

    Returns:
        for each metric the correlations of people's mean rating with the unit's score (and lift,
        where the run measured it), over all models and, where there are several, for each; a metric
        that is no task also for each task. The raters' own agreement. The largest differences.

    Raises:
        InputError: the ratings cannot be read; names the line and the mend. Or as `score_models`.

    """
    answers = {a.unit_id: a for a in judged_answers(rows)}
    lifts = _lifts(rows)
    metrics = _read(ratings_csv, answers)
    scores = {u: a.score for u, a in answers.items() if a.score is not None}
    measures: list[tuple[Literal["score", "lift"], Mapping[str, float]]] = []
    if any(a.verdicts for a in answers.values()):
        measures.append(("score", scores))
    if lifts:
        measures.append(("lift", lifts))
    return HumanAgreement(
        metrics=tuple(
            _compare(metric, task, model, units, answers, name, values, seed)
            for metric in metrics
            for task, model, units in _parts(metric, answers)
            for name, values in measures
        ),
        raters=tuple(_between_raters(metric, answers, seed) for metric in metrics),
        disputes=tuple(
            sorted(
                (d for metric in metrics for d in _disputes(metric, answers, scores)),
                key=lambda d: (-abs(d.difference), d.answer.unit_id, d.metric),
            )[:disputes]
        ),
        ratings=sum(len(by_rater) for m in metrics for by_rater in m.by_unit.values()),
    )


# Reading


def _read(path: Path, answers: Mapping[str, JudgedAnswer]) -> list[_Ratings]:
    """The ratings by metric, tasks first in the paper's order, then others by name."""
    found: dict[str, _Ratings] = {}
    for number, cells in _lines(path):

        def wrong(what: str, mend: str, place: int = number) -> InputError:
            return InputError(what, path=path, place=f"line {place}", mend=mend)

        unit, rater, name, text = (cells[c] for c in COLUMNS)
        if unit not in answers:
            raise wrong(
                f"no answer of this run has the unit id {_short(unit)}",
                f"Unit ids are those of results.jsonl, {_short(min(answers, default=''))} for one",
            )
        if not rater or not name:
            raise wrong(
                f"the {'metric' if rater else 'rater'} is empty", "Fill in all four columns"
            )
        if not _NUMBER.fullmatch(text):
            raise wrong(
                f"the score {_short(text)} is not a number",
                "Write it with digits and a point, such as 4 or 3.5; where a rater gave none, "
                "leave the line out",
            )
        task = _task(name)
        if task is not None and task != answers[unit].task:
            raise wrong(
                f"the metric is {task.value} but the answer is to a question of "
                f"{answers[unit].task.value}",
                "Rate an answer by its own task, or by a name that is no task, such as overall",
            )
        label = name if task is None else task.value
        metric = found.setdefault(label.casefold(), _Ratings(label, task, {}))
        ratings = metric.by_unit.setdefault(unit, {})
        if rater in ratings:
            raise wrong(
                f"rater {_short(rater)} rates {_short(unit)} by {metric.name} a second time",
                "Keep one line for each rater, answer and metric",
            )
        ratings[rater] = float(text)
    if not found:
        raise InputError("holds no ratings", path=path, mend="Write one rating a line")
    order = list(Task)
    return sorted(
        found.values(), key=lambda m: (order.index(m.task) if m.task else len(order), m.name)
    )


def _lines(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Line numbers and cells by column; spaces around cells mean nothing."""
    header = ",".join(COLUMNS)
    mend = f"The first line must be {header}"
    reader = csv.reader(StringIO(read_text(path, limit=_MAX_BYTES), newline=""), strict=True)
    columns: list[str] = []
    while True:
        try:
            line = next(reader, None)
        except csv.Error as error:
            raise InputError(
                f"not CSV ({error})",
                path=path,
                place=f"line {reader.line_num}",
                mend="Cells with a comma or a quotation mark stand in double quotation marks",
            ) from None
        if line is None:
            break
        cells = [cell.strip() for cell in line]
        place = f"line {reader.line_num}"
        if not any(cells):
            continue
        if not columns:
            columns = cells
            if sorted(columns) != sorted(COLUMNS):
                raise InputError(
                    f"the columns are {_short(','.join(columns))}",
                    path=path,
                    place=place,
                    mend=mend,
                )
            continue
        if len(cells) != len(columns):
            raise InputError(
                f"{len(cells)} cells where the header has {len(columns)}",
                path=path,
                place=place,
                mend="Cells with a comma stand in double quotation marks; decimals take a point",
            )
        yield reader.line_num, dict(zip(columns, cells, strict=True))
    if not columns:
        raise InputError("is empty", path=path, mend=mend)


def _task(name: str) -> Task | None:
    try:
        return Task.parse(name)
    except ValueError:
        return None


def _short(text: str) -> str:
    """A cell of a stranger's file as it may stand in a message."""
    return repr(text if len(text) <= 60 else f"{text[:57]}...")


# Comparing


def _lifts(rows: Sequence[ResultRow]) -> dict[str, float]:
    """Mean lift of each unit over the lift judges, where every one of them gave one."""
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for row in rows:
        if row.lift is not None:
            found[row.unit_id][row.judge] = row.lift
    judges = {j for by_judge in found.values() for j in by_judge}
    return {u: _mean(by.values()) for u, by in found.items() if by.keys() == judges}


def _parts(
    metric: _Ratings, answers: Mapping[str, JudgedAnswer]
) -> Iterator[tuple[Task | None, str | None, list[str]]]:
    """All rated answers, then each model's; for a metric that is no task, each task's too."""
    rated = sorted(metric.by_unit)
    tasks: list[Task | None] = [metric.task]
    if metric.task is None:
        tasks += [t for t in Task if any(answers[u].task == t for u in rated)]
    of_run = sorted({answers[u].model for u in rated})
    models: list[str | None] = [None, *of_run] if len(of_run) > 1 else [None]
    for task in tasks:
        for model in models:
            yield (
                task,
                model,
                [
                    u
                    for u in rated
                    if task in (None, answers[u].task) and model in (None, answers[u].model)
                ],
            )


def _compare(
    metric: _Ratings,
    task: Task | None,
    model: str | None,
    units: Sequence[str],
    answers: Mapping[str, JudgedAnswer],
    measure: Literal["score", "lift"],
    values: Mapping[str, float],
    seed: int,
) -> MetricAgreement:
    both = [u for u in units if u in values]
    judged = [values[u] for u in both]
    human = [_mean(metric.by_unit[u].values()) for u in both]
    personas = [answers[u].persona for u in both]

    def of(kind: Literal["spearman", "kendall", "pearson"]) -> Correlation:
        found: Interval = correlation(judged, human, personas, kind=kind, seed=seed)
        return Correlation(value=found.value, low=found.low, high=found.high)

    return MetricAgreement(
        metric=metric.name,
        task=task,
        model=model,
        measure=measure,
        units=len(both),
        unscored=len(units) - len(both),
        spearman=of("spearman"),
        kendall=of("kendall"),
        pearson=of("pearson"),
    )


def _between_raters(
    metric: _Ratings, answers: Mapping[str, JudgedAnswer], seed: int
) -> RaterAgreement:
    raters = sorted({r for by_rater in metric.by_unit.values() for r in by_rater})
    if len(raters) == 1:
        return RaterAgreement(metric=metric.name, raters=1, agreement=None, reason="one rater")
    units = sorted(u for u, by_rater in metric.by_unit.items() if len(by_rater) > 1)
    if not units:
        return RaterAgreement(
            metric=metric.name,
            raters=len(raters),
            agreement=None,
            reason="no answer has two ratings",
        )
    alpha = ordinal_alpha(
        [[metric.by_unit[u].get(r) for r in raters] for u in units],
        [answers[u].persona for u in units],
        seed=seed,
    )
    return RaterAgreement(
        metric=metric.name,
        raters=len(raters),
        agreement=Agreement(alpha=alpha.value, low=alpha.low, high=alpha.high, units=len(units)),
        reason="all ratings are the same" if alpha.value is None else None,
    )


def _disputes(
    metric: _Ratings, answers: Mapping[str, JudgedAnswer], scores: Mapping[str, float]
) -> list[Dispute]:
    """Every answer with both, unless all judges' scores or all people's are the same."""
    both = sorted(u for u in metric.by_unit if u in scores)
    human = {u: _mean(metric.by_unit[u].values()) for u in both}
    judged, rated = _standardised({u: scores[u] for u in both}), _standardised(human)
    if judged is None or rated is None:
        return []
    return [
        Dispute(
            metric=metric.name,
            answer=answers[u],
            ratings=dict(sorted(metric.by_unit[u].items())),
            human_score=human[u],
            difference=judged[u] - rated[u],
        )
        for u in both
    ]


def _standardised(values: Mapping[str, float]) -> dict[str, float] | None:
    """Mean 0, standard deviation 1; None where all values are the same."""
    if len(set(values.values())) < 2:
        return None
    centre = _mean(values.values())
    spread = math.sqrt(_mean((v - centre) ** 2 for v in values.values()))
    return {u: (v - centre) / spread for u, v in values.items()}


def _mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return math.fsum(numbers) / len(numbers)
