"""Do the judges score as people do?

PersonaGym, Table 2 (answers); CharacterBox, Table 3 (plays); Neeko, Table 3 (interviews).

Ratings are a CSV file with the columns `unit_id,rater,metric,score`, or JSONL with these keys. A
metric is a task (by any of its names), one of those that plays or interviews are judged on, or a
name of the rater's own, such as `overall`. A metric needs one scale for all its raters, but not
that of the judges: correlations compare order (Spearman, Kendall) or are free of scale (Pearson),
and single answers are compared by standardised scores.
"""

from __future__ import annotations

import csv
import math
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from io import StringIO
from itertools import groupby
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from pydantic import Field

from personae.errors import InputError
from personae.judging.interview_metrics import METRICS as INTERVIEW_METRICS
from personae.judging.interview_metrics import SEVEN, TRANSFER, metrics_for, parse_interview_metric
from personae.judging.interview_scores import AVERAGE as INTERVIEW_AVERAGE
from personae.judging.interview_scores import Unit as InterviewUnit
from personae.judging.interview_scores import Verdicts
from personae.judging.metrics import KEYS, MAXIMS, METRICS, Kind, parse_metric
from personae.judging.scores import JudgedAnswer, judged_answers
from personae.judging.statistics import Interval, cluster_bootstrap, correlation, ordinal_alpha
from personae.judging.trajectory_scores import AVERAGE, Ratings
from personae.records import (
    Agreement,
    Estimate,
    InterviewRow,
    RatingRow,
    Record,
    ResultRow,
    Task,
)
from personae.records.files import read_jsonl, read_text
from personae.records.interview import InterviewMode, Method

COLUMNS = ("unit_id", "rater", "metric", "score")
OVERALL = "overall"
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
        method, mode: of interviews, by which method the model played and how it was asked.
        measure: what stands against the ratings: the mean over the judges, or lift.
        units: answers with both; `unscored` those that people rated and no full panel scored.

    """

    metric: str
    task: Task | None
    model: str | None
    method: Method | None = None
    mode: InterviewMode | None = None
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


class TrajectoryDispute(Record):
    """A trajectory on which judges and people differ; `difference` as in `Dispute`.

    Attributes:
        score: the mean over the judges.
    """

    metric: str
    unit_id: str
    model: str
    score: float
    ratings: dict[str, float]
    human_score: float
    difference: float


class InterviewDispute(TrajectoryDispute):
    """An interview on which judges and people differ; `unit_id` is its id."""

    method: Method
    mode: InterviewMode


class SystemMeans(Record):
    """What people and judges gave to the same interviews of one model by one method.

    Attributes:
        interviews: those that both scored.
        people, judges: means over characters of the means over their interviews (Trans: over
            scripts), each on its own scale; `missing` is the share of the interviews that people
            rated and no full panel scored.
    """

    metric: str
    model: str
    method: Method
    mode: InterviewMode
    interviews: int = Field(ge=0)
    people: Estimate
    judges: Estimate


class SystemOrder(Record):
    """Do judges put models and methods in the order in which people put them (Neeko, Table 3)?

    Attributes:
        by_people, by_judges: `MODEL by METHOD`, the highest mean first; of equal ones by name.
        kendall: tau-b between the two sides' means, over the systems; None where all of a side are
            the same. It has no interval: a run has few systems, and they are no sample of any.
    """

    metric: str
    mode: InterviewMode
    by_people: tuple[str, ...] = Field(min_length=2)
    by_judges: tuple[str, ...] = Field(min_length=2)
    kendall: float | None


class HumanAgreement(Record):
    """What `agree` found.

    Attributes:
        over: what the intervals resample: personas for answers, scenes for trajectories, characters
            for interviews (for transfer dialogues their scripts).
        systems, orders: of interviews.
    """

    metrics: tuple[MetricAgreement, ...]
    raters: tuple[RaterAgreement, ...]
    disputes: tuple[Dispute | InterviewDispute | TrajectoryDispute, ...]
    ratings: int = Field(ge=1)
    over: Literal["personas", "scenes", "characters"] = "personas"
    systems: tuple[SystemMeans, ...] = ()
    orders: tuple[SystemOrder, ...] = ()


class _System(NamedTuple):
    """Whose units are compared by themselves."""

    model: str
    method: Method | None = None
    mode: InterviewMode | None = None


class _Ratings(NamedTuple):
    """The ratings of one metric: unit id to rater to score; not `asked` if made of others."""

    name: str
    task: Task | None
    by_unit: dict[str, dict[str, float]]
    asked: bool = True


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
    metrics = _read(ratings_csv, answers, partial(_name_of_answer, answers))
    personas = {u: a.persona for u, a in answers.items()}
    scores = {u: a.score for u, a in answers.items() if a.score is not None}
    measures: list[tuple[Literal["score", "lift"], Mapping[str, float]]] = []
    if any(a.verdicts for a in answers.values()):
        measures.append(("score", scores))
    if lifts:
        measures.append(("lift", lifts))
    return HumanAgreement(
        metrics=tuple(
            _compare(metric, task, system, units, personas, name, values, seed)
            for metric in metrics
            for task, system, units in _parts(metric, answers)
            for name, values in measures
        ),
        raters=tuple(_between_raters(metric, personas, seed) for metric in metrics),
        disputes=tuple(
            Dispute(
                metric=metric.name,
                answer=answers[unit],
                ratings=dict(sorted(metric.by_unit[unit].items())),
                human_score=human,
                difference=difference,
            )
            for metric, unit, human, difference in _disputes(
                [(metric, scores) for metric in metrics], disputes
            )
        ),
        ratings=sum(len(by_rater) for m in metrics for by_rater in m.by_unit.values()),
    )


def agree_on_trajectories(
    rows: Sequence[RatingRow], ratings_csv: Path, *, disputes: int = 10, seed: int = 0
) -> HumanAgreement:
    """Compare the judges of a rated play run with people's ratings of its trajectories.

    As CharacterBox, Table 3. A metric is one of the seven by its key or name, or a name of the
    raters' own, which stands against the average of the seven. Where people rated all seven and
    nothing of their own, their mean over the seven is compared too, as `overall`.

    Args:
        rows: the ratings of one run; those of a narrator by its maxims as well.
        ratings_csv: the ratings; UTF-8, at most 64 MB.
        disputes: how many of the trajectories with the largest differences to return.
        seed: of the bootstrap.

    Returns:
        for each metric the correlations of people's mean rating with the mean over the judges, over
        all models and, where there are several, for each. Intervals resample scenes.

    Raises:
        InputError: there are no rows; the ratings cannot be read (names the line and the mend); or
            as `Ratings`.

    """
    if not rows:
        raise InputError(
            "no judge has rated this run yet", mend="Rate it first: personae rate RUN --judge MODEL"
        )
    characters, narrators = Ratings(rows), Ratings(rows, "narrator")
    units = {u.unit_id: u for u in (*characters.units, *narrators.units)}
    kinds: dict[str, Kind] = {u.unit_id: "characters" for u in characters.units}
    kinds |= {u.unit_id: "narrator" for u in narrators.units}
    metrics = _read(ratings_csv, units, partial(_name_of_trajectory, kinds))
    if all(m.name in METRICS + MAXIMS for m in metrics):
        metrics += _overall(metrics, METRICS)
    scenes = {u: unit.scene for u, unit in units.items()}

    def scores(metric: _Ratings) -> dict[str, float]:
        found: dict[str, float] = {}
        for ratings in (characters, narrators):
            key = metric.name if metric.name in METRICS + MAXIMS else AVERAGE
            if key == AVERAGE or key in ratings.keys:
                found |= {u.unit_id: score for u, score in ratings.of_panel(key).items()}
        return found

    judged = [(metric, scores(metric)) for metric in metrics]
    of_metric = {metric.name: values for metric, values in judged}
    return HumanAgreement(
        metrics=tuple(
            _compare(metric, None, system, rated, scenes, "score", values, seed)
            for metric, values in judged
            for system, rated in _by_system(
                metric, {u: _System(unit.model) for u, unit in units.items()}
            )
        ),
        raters=tuple(_between_raters(metric, scenes, seed) for metric in metrics),
        disputes=tuple(
            TrajectoryDispute(
                metric=metric.name,
                unit_id=unit,
                model=units[unit].model,
                score=of_metric[metric.name][unit],
                ratings=dict(sorted(metric.by_unit[unit].items())),
                human_score=human,
                difference=difference,
            )
            for metric, unit, human, difference in _disputes(judged, disputes)
        ),
        ratings=sum(len(by_rater) for m in metrics for by_rater in m.by_unit.values() if m.asked),
        over="scenes",
    )


def agree_on_interviews(
    rows: Sequence[InterviewRow], ratings_file: Path, *, disputes: int = 10, seed: int = 0
) -> HumanAgreement:
    """Compare the judges of an interview run with people's ratings of its interviews.

    As Neeko, Table 3, where three people rated VK, RK and HK. A metric is one of the eight by its
    key or name, or a name of the raters' own, which stands against the average of the seven (of
    transfer dialogues: Trans). Where people rated several of the seven and nothing of their own,
    the means over those are compared too, as `overall`.

    Args:
        rows: the verdicts of one run.
        ratings_file: the ratings; UTF-8, at most 64 MB. Units are interview ids.
        disputes: how many of the interviews with the largest differences to return.
        seed: of the bootstrap.

    Returns:
        for each metric the correlations of people's mean rating with the mean over the judges, over
        all interviews and, where there are several, for each model, method and mode; both sides'
        means for each of these, and the order in which they put them. Intervals resample
        characters, of transfer dialogues scripts.

    Raises:
        InputError: there are no rows; the ratings cannot be read (names the line and the mend); or
            as `Verdicts`.

    """
    if not rows:
        raise InputError(
            "no judge has scored this run's interviews",
            mend="Name one: personae interview ... --judge MODEL",
        )
    verdicts = Verdicts(rows)
    units = {unit.interview: unit for unit in verdicts.units}
    metrics = _read(ratings_file, units, partial(_name_of_interview, units))
    own_names = [m.name for m in metrics if m.name not in INTERVIEW_METRICS]
    parts = tuple(m.name for m in metrics if m.name in SEVEN)
    if not own_names and len(parts) > 1:
        metrics += _overall(metrics, parts)
    clusters = {u: unit.cluster for u, unit in units.items()}
    systems = {u: _System(unit.model, unit.method, unit.mode) for u, unit in units.items()}

    def scores(metric: _Ratings) -> dict[str, float]:
        if metric.name in INTERVIEW_METRICS:
            given: Mapping[InterviewUnit, float] = verdicts.panel[metric.name]
        elif metric.asked:
            given = {**verdicts.panel[INTERVIEW_AVERAGE], **verdicts.panel[TRANSFER]}
        else:
            of_parts = [verdicts.panel[part] for part in parts]
            given = {
                unit: _mean(part[unit] for part in of_parts)
                for unit in verdicts.units
                if all(unit in part for part in of_parts)
            }
        return {unit.interview: score for unit, score in given.items()}

    judged = [(metric, scores(metric)) for metric in metrics]
    of_metric = {metric.name: values for metric, values in judged}
    means = [
        found
        for metric, values in judged
        for found in _system_means(metric, values, systems, clusters, seed)
    ]
    return HumanAgreement(
        metrics=tuple(
            _compare(metric, None, system, rated, clusters, "score", values, seed)
            for metric, values in judged
            for system, rated in _by_system(metric, systems)
        ),
        raters=tuple(_between_raters(metric, clusters, seed) for metric in metrics),
        disputes=tuple(
            InterviewDispute(
                metric=metric.name,
                unit_id=unit,
                model=units[unit].model,
                method=units[unit].method,
                mode=units[unit].mode,
                score=of_metric[metric.name][unit],
                ratings=dict(sorted(metric.by_unit[unit].items())),
                human_score=human,
                difference=difference,
            )
            for metric, unit, human, difference in _disputes(judged, disputes)
        ),
        ratings=sum(len(by_rater) for m in metrics for by_rater in m.by_unit.values() if m.asked),
        over="characters",
        systems=tuple(means),
        orders=tuple(_orders(means)),
    )


def _system_means(
    metric: _Ratings,
    values: Mapping[str, float],
    systems: Mapping[str, _System],
    clusters: Mapping[str, str],
    seed: int,
) -> Iterator[SystemMeans]:
    """Both sides' means over the same interviews, for each model, method and mode."""
    rated: dict[_System, list[str]] = defaultdict(list)
    for unit in sorted(metric.by_unit):
        rated[systems[unit]].append(unit)
    for system, units in sorted(rated.items()):
        both = [unit for unit in units if unit in values]
        human = {unit: _mean(metric.by_unit[unit].values()) for unit in both}
        missing = 1 - len(both) / len(units)
        assert system.method is not None
        assert system.mode is not None
        yield SystemMeans(
            metric=metric.name,
            model=system.model,
            method=system.method,
            mode=system.mode,
            interviews=len(both),
            people=_estimate(human, both, clusters, missing, seed),
            judges=_estimate(values, both, clusters, missing, seed),
        )


def _estimate(
    values: Mapping[str, float],
    units: Sequence[str],
    clusters: Mapping[str, str],
    missing: float,
    seed: int,
) -> Estimate:
    found = cluster_bootstrap([values[u] for u in units], [clusters[u] for u in units], seed=seed)
    return Estimate(
        mean=found.value, low=found.low, high=found.high, n=found.clusters, missing=missing
    )


def _orders(means: Sequence[SystemMeans]) -> Iterator[SystemOrder]:
    """The order of the systems of each metric and mode, where there are two or more."""

    def place(one: SystemMeans) -> tuple[int, str]:
        return [m.metric for m in means].index(one.metric), one.mode

    for _, some in groupby(sorted(means, key=place), key=place):
        known = [
            (f"{one.model} by {one.method}", round(people, 9), round(judges, 9), one)
            for one in some
            if (people := one.people.mean) is not None and (judges := one.judges.mean) is not None
        ]
        if len(known) < 2:
            continue
        tau = correlation(
            [judges for *_, judges, _ in known], [people for _, people, *_ in known], kind="kendall"
        )
        yield SystemOrder(
            metric=known[0][3].metric,
            mode=known[0][3].mode,
            by_people=tuple(name for name, *_ in sorted(known, key=lambda k: (-k[1], k[0]))),
            by_judges=tuple(name for name, *_ in sorted(known, key=lambda k: (-k[2], k[0]))),
            kendall=tau.value,
        )


def _overall(metrics: Sequence[_Ratings], keys: Sequence[str]) -> list[_Ratings]:
    """People's mean over these metrics, where they rated all of them."""
    by_name = {m.name: m for m in metrics}
    if not by_name.keys() >= set(keys):
        return []
    found: dict[str, dict[str, float]] = {}
    for unit in by_name[keys[0]].by_unit:
        given = [by_name[key].by_unit.get(unit, {}) for key in keys]
        raters = set.intersection(*(set(one) for one in given))
        if raters:
            found[unit] = {r: _mean(one[r] for one in given) for r in sorted(raters)}
    return [_Ratings(OVERALL, None, found, asked=False)] if found else []


# Reading


def _read(
    path: Path,
    units: Collection[str],
    name_of: Callable[[str, str], tuple[str, Task | None]],
) -> list[_Ratings]:
    """The ratings by metric, tasks (or metrics) first in the paper's order, then others by name.

    Args:
        name_of: the metric that a rating of a unit is about, and the task if it is one; raises
            `_WrongMetricError` where the unit has no such metric.
    """
    found: dict[str, _Ratings] = {}
    by_line = _objects(path) if path.suffix.lower() in (".jsonl", ".ndjson") else _lines(path)
    for number, cells in by_line:

        def wrong(what: str, mend: str, place: int = number) -> InputError:
            return InputError(what, path=path, place=f"line {place}", mend=mend)

        unit, rater, name, text = (cells[c] for c in COLUMNS)
        if unit not in units:
            raise wrong(
                f"no answer of this run has the unit id {_short(unit)}",
                f"Unit ids are those of results.jsonl, {_short(min(units, default=''))} for one",
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
        try:
            label, task = name_of(name, unit)
        except _WrongMetricError as error:
            raise wrong(error.what, error.mend) from None
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
    order = [*(task.value for task in Task), *METRICS, *MAXIMS, *INTERVIEW_METRICS]
    return sorted(
        found.values(),
        key=lambda m: (order.index(m.name) if m.name in order else len(order), m.name),
    )


class _WrongMetricError(Exception):
    """A rating that cannot be of its unit."""

    def __init__(self, what: str, mend: str) -> None:
        super().__init__(what)
        self.what, self.mend = what, mend


def _name_of_answer(
    answers: Mapping[str, JudgedAnswer], name: str, unit: str
) -> tuple[str, Task | None]:
    task = _task(name)
    if task is not None and task != answers[unit].task:
        raise _WrongMetricError(
            f"the metric is {task.value} but the answer is to a question of "
            f"{answers[unit].task.value}",
            "Rate an answer by its own task, or by a name that is no task, such as overall",
        )
    return (name, None) if task is None else (task.value, task)


def _name_of_trajectory(kinds: Mapping[str, Kind], name: str, unit: str) -> tuple[str, Task | None]:
    try:
        key = parse_metric(name)
    except ValueError:
        return name, None
    wanted = KEYS[kinds[unit]]
    if key not in wanted:
        raise _WrongMetricError(
            f"the metric is {key} but the unit is rated on {', '.join(wanted)}",
            "Rate characters on the seven metrics, narrators on the four maxims",
        )
    return key, None


def _name_of_interview(
    units: Mapping[str, InterviewUnit], name: str, unit: str
) -> tuple[str, Task | None]:
    try:
        key = parse_interview_metric(name)
    except ValueError:
        return name, None
    wanted = metrics_for("transfer" if units[unit].transfer else "multi")
    if key not in wanted:
        raise _WrongMetricError(
            f"the metric is {key} but the interview is judged on {', '.join(wanted)}",
            "Rate transfer dialogues on Trans, all other interviews on the seven",
        )
    return key, None


def _objects(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Line numbers and cells of JSONL, as `_lines` gives them of CSV."""
    for number, line in read_jsonl(path):
        wrong = next(
            (
                column
                for column in COLUMNS
                if not isinstance(line.get(column), str)
                and not (column == "score" and type(line.get(column)) in (int, float))
            ),
            None,
        )
        if wrong is not None or len(line) != len(COLUMNS):
            raise InputError(
                f"`{wrong}` is missing or no text" if wrong else "there are other keys beside it",
                path=path,
                place=f"line {number}",
                mend=f"The keys are {', '.join(COLUMNS)}; a score may be a number",
            )
        yield number, {column: str(line[column]).strip() for column in COLUMNS}


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
) -> Iterator[tuple[Task | None, _System | None, list[str]]]:
    """All rated answers, then each model's; for a metric that is no task, each task's too."""
    tasks: list[Task | None] = [metric.task]
    if metric.task is None:
        tasks += [t for t in Task if any(answers[u].task == t for u in metric.by_unit)]
    for task in tasks:
        for system, rated in _by_system(metric, {u: _System(a.model) for u, a in answers.items()}):
            yield task, system, [u for u in rated if task in (None, answers[u].task)]


def _by_system(
    metric: _Ratings, systems: Mapping[str, _System]
) -> Iterator[tuple[_System | None, list[str]]]:
    """All rated units, then, where there are several systems, each one's."""
    rated = sorted(metric.by_unit)
    yield None, rated
    of_run = sorted({systems[u] for u in rated})
    for system in of_run if len(of_run) > 1 else ():
        yield system, [u for u in rated if systems[u] == system]


def _compare(
    metric: _Ratings,
    task: Task | None,
    system: _System | None,
    units: Sequence[str],
    clusters: Mapping[str, str],
    measure: Literal["score", "lift"],
    values: Mapping[str, float],
    seed: int,
) -> MetricAgreement:
    both = [u for u in units if u in values]
    # Means of the same numbers in another order differ in the last digit, and would not tie.
    judged = [round(values[u], 9) for u in both]
    human = [round(_mean(metric.by_unit[u].values()), 9) for u in both]
    of_cluster = [clusters[u] for u in both]

    def of(kind: Literal["spearman", "kendall", "pearson"]) -> Correlation:
        found: Interval = correlation(judged, human, of_cluster, kind=kind, seed=seed)
        return Correlation(value=found.value, low=found.low, high=found.high)

    return MetricAgreement(
        metric=metric.name,
        task=task,
        model=system.model if system else None,
        method=system.method if system else None,
        mode=system.mode if system else None,
        measure=measure,
        units=len(both),
        unscored=len(units) - len(both),
        spearman=of("spearman"),
        kendall=of("kendall"),
        pearson=of("pearson"),
    )


def _between_raters(metric: _Ratings, clusters: Mapping[str, str], seed: int) -> RaterAgreement:
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
        [clusters[u] for u in units],
        seed=seed,
    )
    return RaterAgreement(
        metric=metric.name,
        raters=len(raters),
        agreement=Agreement(alpha=alpha.value, low=alpha.low, high=alpha.high, units=len(units)),
        reason="all ratings are the same" if alpha.value is None else None,
    )


def _disputes(
    judged: Sequence[tuple[_Ratings, Mapping[str, float]]], most: int
) -> list[tuple[_Ratings, str, float, float]]:
    """The units with the largest differences: metric, unit, people's mean, the difference.

    Every unit with both counts, unless all judges' scores or all people's are the same.
    """
    found: list[tuple[_Ratings, str, float, float]] = []
    for metric, scores in judged:
        both = sorted(u for u in metric.by_unit if u in scores)
        human = {u: _mean(metric.by_unit[u].values()) for u in both}
        by_judges, by_people = _standardised({u: scores[u] for u in both}), _standardised(human)
        if by_judges is not None and by_people is not None:
            found += [(metric, u, human[u], by_judges[u] - by_people[u]) for u in both]
    return sorted(found, key=lambda d: (-abs(d[3]), d[1], d[0].name))[:most]


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
