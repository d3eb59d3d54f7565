"""From verdicts to scores: per task, PersonaScore, per judge, and two models on the same questions.

PersonaGym (paper, section 3) averages its judges per answer and its answers per task and over
personas. Here every step says what happens where a verdict is missing:

- A *unit* is one model's answer to one question. A judge's score of a unit is the mean of its
  repeats that gave one. A unit's score is the mean over all verdict judges, and exists only if each
  of them gave a score; otherwise the unit is *missing*. A mean over the judges that happened to
  answer would compare a mild panel with a severe one.
- A persona's task score is the mean over its scored units of that task. Its PersonaScore is the
  mean of its task scores, and exists only if every task asked of it has a scored unit.
- A model's score is the mean over its personas that have one; the interval resamples personas.
- Judges named `lift:...` fill `lift`, never a score. A refusal is no failure: it is an answer,
  judged like any other, and counted beside.

Score one run at a time: the panel is the set of judges that occur in the rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple, TypeAlias

from personae.errors import InputError
from personae.judging.lift import is_lift
from personae.judging.statistics import cluster_bootstrap, ordinal_alpha
from personae.records import (
    Agreement,
    Estimate,
    Failure,
    ModelScores,
    PairedDifference,
    Question,
    Record,
    ResultRow,
    Task,
)

__all__ = [
    "LIFT", "PERSONA_SCORE", "JudgedAnswer", "Verdict", "is_lift", "judge_agreement",
    "judged_answers", "paired", "panel_mean", "persona_mean", "score_models",
]  # fmt: skip

PERSONA_SCORE = "PersonaScore"
LIFT = "lift"


class Verdict(Record):
    """What one judge said about an answer: mean of its repeats, and its first repeat's reason."""

    judge: str
    score: float | None
    justification: str | None = None
    failure: Failure | None = None


class JudgedAnswer(Record):
    """An answer with all that was said about it.

    `score` is the unit's score (mean over the judges), `spread` the distance between the highest
    and the lowest judge, in points.
    """

    unit_id: str
    model: str
    persona: str
    task: Task
    question: str
    environment: str | None
    answer: str | None
    score: float | None
    spread: float | None
    verdicts: tuple[Verdict, ...]


class _Unit(NamedTuple):
    """One answer of one model to one question, and where it belongs."""

    model: str
    persona: str
    task: Task
    question_id: str


_Values: TypeAlias = Mapping[_Unit, float]


def panel_mean(given: Mapping[str, float], panel: Sequence[str]) -> float | None:
    """The score of a unit: the mean over the panel, None unless each judge of it gave one."""
    if not panel or any(judge not in given for judge in panel):
        return None
    return sum(given[judge] for judge in panel) / len(panel)


def persona_mean(by_task: Iterable[Iterable[float | None]]) -> float | None:
    """The PersonaScore of one character from its units' scores, task by task.

    The mean of its task means; None unless every task has a unit with a score.
    """
    means = [_mean([v for v in of_task if v is not None]) for of_task in by_task]
    known = [m for m in means if m is not None]
    return _mean(known) if len(known) == len(means) else None


def score_models(
    rows: Sequence[ResultRow], *, expected: Iterable[Question] = (), seed: int = 0
) -> list[ModelScores]:
    """The scores of every model in the rows, in order of first appearance.

    Args:
        rows: results of one run, in any order.
        expected: the questions that were to be asked; what the rows lack of them counts as missing.
            Without it the rows are taken to hold every unit, failed ones included.
        seed: of the bootstrap.

    Returns:
        one record per model. Each `Estimate` has the mean over personas, the 95 % interval
        resampling personas, `n` the personas that enter, and `missing` the share of units without a
        score. Where no verdict judge was asked, nothing is missing: the three figures are None, `n`
        and `missing` are 0. `lift` is None where no lift judge was asked, `expected_score` where no
        judge gave one.

    Raises:
        InputError: two rows hold the same verdict, or one unit id names two answers.

    """
    table = _Table(rows, expected)
    return [table.scores_of(model, seed) for model in table.models]


def judge_agreement(
    *runs: Sequence[ResultRow],
    weights_of: Callable[[str], str] = str,
    seed: int = 0,
) -> tuple[Agreement | None, str | None]:
    """Ordinal Krippendorff alpha between the models that judged, and why there is none.

    The raters are models: repeats of one model are averaged first, and judges of the same weights
    are one rater. Units are all answers with the scores of at least two raters; the interval
    resamples personas.

    Args:
        runs: results of one run each; their answers are pooled.
        weights_of: judge id to the identity of its weights, where that is not the id itself.
        seed: of the bootstrap.

    Returns:
        the agreement and None; or None and the reason; or, where all verdicts are the same, an
        agreement without alpha and the reason.

    Raises:
        InputError: as `score_models`.

    """
    tables = [_Table(rows, ()) for rows in runs]
    judges = sorted({j for table in tables for j in table.judges})
    raters: dict[str, list[str]] = defaultdict(list)
    for judge in judges:
        raters[weights_of(judge)].append(judge)
    if not judges:
        return None, "no judge gave verdicts"
    if len(raters) == 1:
        repeated = len(judges) > 1 or any(row.repeat for rows in runs for row in rows)
        if repeated:
            return None, "repeats of one model are not agreement"
        return None, "one judge cannot agree with itself"
    ratings, personas = [], []
    for table in tables:
        for unit in table.units:
            given = table.verdicts(unit)
            of_raters = [[given[j] for j in some if j in given] for some in raters.values()]
            ratings.append([_mean(scores) for scores in of_raters])
            personas.append(unit.persona)
    units = sum(sum(r is not None for r in row) > 1 for row in ratings)
    if not units:
        return None, "no answer has scores of two judges"
    alpha = ordinal_alpha(ratings, personas, seed=seed)
    reason = "every verdict is the same number" if alpha.value is None else None
    return Agreement(alpha=alpha.value, low=alpha.low, high=alpha.high, units=units), reason


def paired(
    rows: Sequence[ResultRow],
    model: str,
    other: str,
    *,
    expected: Iterable[Question] = (),
    seed: int = 0,
) -> list[PairedDifference]:
    """Scores of `model` minus those of `other`, on questions where both have a score.

    First PersonaScore, then each task by its full name, then `"lift"` where lift was measured.
    Means and intervals are built as in `score_models` from the differences of units; `missing` is
    the share of questions put to either model where one of the two has no score.

    Raises:
        InputError: as `score_models`, or a model that does not occur in the rows.

    """
    table = _Table(rows, expected)
    for name in (model, other):
        if name not in table.models:
            raise InputError(
                f"no results of model {name!r}",
                mend=f"The models of this run are {', '.join(table.models) or 'none'}.",
            )
    asked = {u._replace(model=model) for u in table.units if u.model in (model, other)}

    def differences(values: _Values) -> dict[_Unit, float]:
        partners = ((u, u._replace(model=other)) for u in asked)
        return {u: values[u] - values[o] for u, o in partners if u in values and o in values}

    estimates: dict[str, Estimate] = {}
    if table.judges:
        scored = differences(table.mean_over(table.judges, table.scores))
        estimates[PERSONA_SCORE] = _estimate(asked, scored, seed)
        estimates |= {t: _estimate(u, scored, seed) for t, u in _by_task(asked).items()}
    if table.lift_judges:
        lifted = differences(table.mean_over(table.lift_judges, table.lifts))
        estimates[LIFT] = _estimate(asked, lifted, seed)
    return [
        PairedDifference(model=model, other=other, what=what, estimate=estimate)
        for what, estimate in estimates.items()
    ]


def judged_answers(rows: Sequence[ResultRow]) -> list[JudgedAnswer]:
    """Every answer of the rows with its verdicts, ordered by unit id.

    Raises:
        InputError: as `score_models`.

    """
    table = _Table(rows, ())
    return [table.judged(unit) for unit in table.units]


class _Table:
    """The rows of a run by unit and judge, checked once.

    Attributes:
        models: the models under test, in order of first appearance.
        units: every expected unit, sorted.
        judges: the verdict judges, sorted; `lift_judges` the others.
        scores: unit to judge to mean of the repeats that gave a score; `expected_scores` and
            `lifts` likewise.

    """

    def __init__(self, rows: Sequence[ResultRow], expected: Iterable[Question]) -> None:
        self.models = tuple(dict.fromkeys(r.model for r in rows))
        names = {r.judge for r in rows}
        self.judges = tuple(sorted(j for j in names if not is_lift(j)))
        self.lift_judges = tuple(sorted(j for j in names if is_lift(j)))
        # Sorted, so that neither the order of the rows nor a resumed run moves the last digit.
        self._rows: dict[_Unit, list[ResultRow]] = defaultdict(list)
        for row in sorted(rows, key=lambda r: (r.unit_id, r.judge, r.repeat)):
            self._rows[_Unit(row.model, row.persona, row.task, row.question_id)].append(row)
        self._check(rows)
        asked = {
            _Unit(model, q.persona_id, q.task, q.id) for q in expected for model in self.models
        }
        self.units = tuple(sorted(asked | self._rows.keys()))
        self.scores = self._per_judge(lambda row: row.score)
        self.expected_scores = self._per_judge(lambda row: row.expected_score)
        self.lifts = self._per_judge(lambda row: row.lift)

    def _check(self, rows: Sequence[ResultRow]) -> None:
        """Each verdict once, each unit id one answer."""
        seen: set[tuple[str, str, int]] = set()
        for row in rows:
            verdict = (row.unit_id, row.judge, row.repeat)
            if verdict in seen:
                raise InputError(
                    f"judge {row.judge!r} has two rows for unit {row.unit_id!r}, "
                    f"repeat {row.repeat}",
                    mend="Score one run at a time; a results file has one row per verdict.",
                )
            seen.add(verdict)
        of: dict[str, _Unit] = {}
        for unit, of_unit in self._rows.items():
            for row in of_unit:
                if of.setdefault(row.unit_id, unit) != unit or row.unit_id != of_unit[0].unit_id:
                    raise InputError(
                        f"unit id {row.unit_id!r} and the answer of {unit.model!r} to question "
                        f"{unit.question_id!r} are not one to one",
                        mend="Each pair of model and question has one unit id, and the other way.",
                    )

    def _per_judge(
        self, value: Callable[[ResultRow], float | None]
    ) -> dict[_Unit, dict[str, float]]:
        found: dict[_Unit, dict[str, list[float]]] = {}
        for unit, rows in self._rows.items():
            by_judge: dict[str, list[float]] = defaultdict(list)
            for row in rows:
                if (v := value(row)) is not None:
                    by_judge[row.judge].append(float(v))
            found[unit] = by_judge
        return {u: {j: sum(v) / len(v) for j, v in d.items()} for u, d in found.items()}

    def verdicts(self, unit: _Unit) -> dict[str, float]:
        """Verdict judges that scored the unit, with their score."""
        return {j: s for j, s in self.scores.get(unit, {}).items() if not is_lift(j)}

    def mean_over(
        self, judges: Sequence[str], values: Mapping[_Unit, Mapping[str, float]]
    ) -> dict[_Unit, float]:
        """Mean over the judges for each unit that has a value of all of them."""
        complete = {}
        for unit in self.units:
            if (mean := panel_mean(values.get(unit, {}), judges)) is not None:
                complete[unit] = mean
        return complete

    def scores_of(self, model: str, seed: int) -> ModelScores:
        """All figures of one model."""
        units = {u for u in self.units if u.model == model}
        by_task = _by_task(units)

        def over(
            judges: Sequence[str], values: Mapping[_Unit, Mapping[str, float]]
        ) -> tuple[Estimate, dict[str, Estimate]]:
            if not judges:  # nobody was asked, so nothing is missing
                none = Estimate(mean=None, low=None, high=None, n=0, missing=0)
                return none, dict.fromkeys(by_task, none)
            scored = self.mean_over(judges, values)
            return _estimate(units, scored, seed), {
                task: _estimate(of_task, scored, seed) for task, of_task in by_task.items()
            }

        persona_score, tasks = over(self.judges, self.scores)
        lift, lift_tasks = over(self.lift_judges, self.lifts)
        weighing = [j for j in self.judges if any(j in d for d in self.expected_scores.values())]
        answered = {
            u: next((r.refusal for r in self._rows[u] if r.refusal is not None), None)
            for u in units
            if u in self._rows and self._rows[u][0].answer is not None
        }
        return ModelScores(
            model=model,
            persona_score=persona_score,
            tasks=tasks,
            n_answers=len(answered),
            refusal_rate=_share(answered.values()),
            refusal_by_task={
                task: _share(answered[u] for u in of_task if u in answered)
                for task, of_task in by_task.items()
            },
            lift=lift if self.lift_judges else None,
            lift_tasks=lift_tasks if self.lift_judges else {},
            by_judge={j: over([j], self.scores)[0] for j in self.judges},
            expected_score=over(weighing, self.expected_scores)[0] if weighing else None,
        )

    def judged(self, unit: _Unit) -> JudgedAnswer:
        """One answer with its verdicts."""
        rows = self._rows[unit]
        given = self.verdicts(unit)
        first = {r.judge: r for r in reversed(rows) if not is_lift(r.judge)}
        apart = [abs(a - b) for a, b in combinations(given.values(), 2)]
        return JudgedAnswer(
            unit_id=rows[0].unit_id,
            model=unit.model,
            persona=unit.persona,
            task=unit.task,
            question=rows[0].question,
            environment=rows[0].environment,
            answer=rows[0].answer,
            score=panel_mean(given, self.judges),
            spread=max(apart) if apart else None,
            verdicts=tuple(
                Verdict(
                    judge=j,
                    score=given.get(j),
                    justification=first[j].justification,
                    failure=None if j in given else first[j].failure,
                )
                for j in self.judges
                if j in first
            ),
        )


def _by_task(units: Iterable[_Unit]) -> dict[str, set[_Unit]]:
    """Units by the task's full name, in the paper's order."""
    found: dict[str, set[_Unit]] = {}
    units = list(units)
    for task in Task:
        if of_task := {u for u in units if u.task == task}:
            found[task.value] = of_task
    return found


def _estimate(units: Iterable[_Unit], values: _Values, seed: int) -> Estimate:
    """Mean over personas of the mean over tasks of the mean over units, resampling personas."""
    asked: dict[str, dict[Task, list[_Unit]]] = defaultdict(lambda: defaultdict(list))
    units = sorted(units)
    for unit in units:
        asked[unit.persona][unit.task].append(unit)
    personas = []
    for persona in sorted(asked):
        of_tasks = asked[persona].values()
        mean = persona_mean([values.get(unit) for unit in of_task] for of_task in of_tasks)
        if mean is not None:
            personas.append(mean)
    interval = cluster_bootstrap(personas, seed=seed)
    unscored = sum(u not in values for u in units)
    return Estimate(
        mean=interval.value,
        low=interval.low,
        high=interval.high,
        n=len(personas),
        missing=unscored / len(units) if units else 0,
    )


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _share(flags: Iterable[bool | None]) -> float | None:
    """Share of True among those that are known."""
    return _mean([float(f) for f in flags if f is not None])
