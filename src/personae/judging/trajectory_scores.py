"""From ratings to scores: per metric, average, per judge, the gap between scenes' origins.

CharacterBox (section 6.2) averages a model's characters within a scene, then scenes. What happens
where a rating is missing is said at every step (as `personae.judging.scores`, decision 0010):

- A *unit* is one character's trajectory. A judge's score of a unit on a metric is the mean of its
  repeats that gave one. The unit's score is the mean over all judges that were asked, and exists
  only if each of them gave one; otherwise it is *missing*. Its average is the mean of its seven
  metrics, and exists only if each of them does.
- A scene's score is the mean over its characters (of the model) that have one; a model's score is
  the mean over its scenes that have one, and its interval resamples scenes.
- Scenes with one character are kept apart: nobody answers there, so their ratings are of another
  kind (paper: 2 to 4 characters a scene).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

from pydantic import Field

from personae.errors import InputError
from personae.judging.metrics import DIMENSIONS, KEYS, MAXIMS, METRICS, Kind
from personae.judging.scores import panel_mean
from personae.judging.statistics import (
    Interval,
    cluster_bootstrap,
    cronbach_alpha,
    difference,
    ordinal_alpha,
)
from personae.records import Agreement, Estimate, Language, RatingRow, Record

AVERAGE = "average"

U = TypeVar("U", bound=Hashable)
"""What is scored: a trajectory, an interview."""

Origin: TypeAlias = Literal["extracted", "generated"]


class TrajectoryScores(Record):
    """The scores of one model in one language (or of one narrator, on the four maxims).

    Attributes:
        metrics: by metric. Each mean is over scenes, `n` the scenes that enter, `missing` the share
            of trajectories without a score.
        average: of the metrics, over trajectories that have all of them.
        n: scenes that enter the average.
        missing: share of all ratings that are missing (trajectories times metrics).
        acts_missing: mean share of the characters' acts that could not be had.
    """

    model: str
    lang: Language
    metrics: dict[str, Estimate]
    average: Estimate
    n: int = Field(ge=0)
    missing: float = Field(ge=0, le=1)
    acts_missing: float = Field(ge=0, le=1)


class CharacterScores(TrajectoryScores):
    """The scores of one character as one model played it in one language."""

    character: str


class Gap(Record):
    """A model's average in extracted scenes minus that in generated ones.

    Attributes:
        pairing: `title`: within titles that have both, the mean over titles, resampling titles;
            `none`: two independent groups of scenes, each resampled within itself.
        low, high: 95 % interval; null where there are too few.
        titles: how many enter (with `title`).
        extracted, generated: how many scenes enter of each.
        left_out: scenes whose title has only one of the two (with `title`).
    """

    model: str
    lang: Language
    metric: str
    value: float | None
    low: float | None
    high: float | None
    pairing: Literal["title", "none"]
    titles: int = Field(ge=0)
    extracted: int = Field(ge=0)
    generated: int = Field(ge=0)
    left_out: int = Field(ge=0)


class JudgeAgreement(Record):
    """Agreement between judges on one metric (or the average); null where `reason` says why."""

    metric: str
    agreement: Agreement | None
    reason: str | None = None


class Cronbach(Record):
    """Cronbach's alpha of one dimension (section 6.3, Table 2), over trajectories.

    `low` and `high` are its 95 % interval, resampling scenes; null where it does not exist.
    """

    dimension: str
    lang: Language
    metrics: tuple[str, ...]
    alpha: float | None
    low: float | None
    high: float | None
    n: int = Field(ge=0)


class Unit(NamedTuple):
    """One rated trajectory and where it belongs."""

    unit_id: str
    model: str
    lang: Language
    scene: str
    origin: Origin
    title: str
    alone: bool
    acts_missing: float
    character: str = ""


_Values: TypeAlias = Mapping[Unit, float]


def kind_of(row: RatingRow) -> Kind:
    """Whether a row rates a character or a narrator."""
    return "narrator" if row.metric in MAXIMS else "characters"


class Ratings:
    """The rows of one kind, by unit, metric and judge, checked once.

    Args:
        rows: of several runs too, when their unit ids are told apart.

    Attributes:
        judges: all of them, sorted; `asked` those of each unit.
        units: the trajectories, sorted.

    Raises:
        InputError: two rows hold the same rating, or one unit id names two trajectories.
    """

    def __init__(self, rows: Iterable[RatingRow], kind: Kind = "characters") -> None:
        self.kind = kind
        self.keys = KEYS[kind]
        mine = sorted(
            (r for r in rows if r.metric in self.keys),
            key=lambda r: (r.unit_id, r.metric, r.judge, r.repeat),
        )
        seen: set[tuple[str, str, str, int]] = set()
        named: dict[str, Unit] = {}
        given: dict[tuple[Unit, str, str], list[int]] = defaultdict(list)
        judges: dict[str, None] = {}
        asked: dict[Unit, set[str]] = defaultdict(set)
        for row in mine:
            rating = (row.unit_id, row.metric, row.judge, row.repeat)
            if rating in seen:
                raise InputError(
                    f"judge {row.judge!r} has two rows for unit {row.unit_id!r}, metric "
                    f"{row.metric}, repeat {row.repeat}",
                    mend="Score the ratings of each run once",
                )
            seen.add(rating)
            unit = Unit(
                row.unit_id,
                row.model,
                row.language,
                row.scene_id,
                row.origin,
                row.title,
                row.alone,
                row.acts_missing,
                row.character or "",
            )
            if named.setdefault(row.unit_id, unit) != unit:
                raise InputError(f"unit id {row.unit_id!r} names two trajectories")
            judges[row.judge] = None
            asked[unit].add(row.judge)
            scores = given[unit, row.metric, row.judge]
            if row.score is not None:
                scores.append(row.score)
        self.judges = tuple(sorted(judges))
        self.units = tuple(sorted(named.values()))
        self.asked = {unit: frozenset(some) for unit, some in asked.items()}
        self._given = {key: sum(v) / len(v) for key, v in given.items() if v}

    def of_judge(self, judge: str, metric: str) -> dict[Unit, float]:
        """What one judge gave on a metric, or on `average` to the units it rated in full."""
        if metric == AVERAGE:
            return averages_of([self.of_judge(judge, key) for key in self.keys])
        return {
            unit: self._given[unit, metric, judge]
            for unit in self.units
            if (unit, metric, judge) in self._given
        }

    def of_panel(self, metric: str) -> dict[Unit, float]:
        """The mean over the judges that were asked about a unit, where each of them scored it.

        Runs may have been rated by different judges; those of the other run are not missed.
        """
        if metric == AVERAGE:
            return averages_of([self.of_panel(key) for key in self.keys])
        by_judge = {judge: self.of_judge(judge, metric) for judge in self.judges}
        found = {}
        for unit in self.units:
            given = {judge: scores[unit] for judge, scores in by_judge.items() if unit in scores}
            if (mean := panel_mean(given, sorted(self.asked[unit]))) is not None:
                found[unit] = mean
        return found


def averages_of(parts: Sequence[Mapping[U, float]]) -> dict[U, float]:
    """The mean of the parts, for the units that all of them hold."""
    if not parts:
        return {}
    return {
        unit: sum(part[unit] for part in parts) / len(parts)
        for unit in parts[0]
        if all(unit in part for part in parts)
    }


def score_trajectories(
    ratings: Ratings, *, judge: str | None = None, alone: bool = False, seed: int = 0
) -> list[TrajectoryScores]:
    """The scores of every model in each language, sorted.

    Args:
        judge: this one's scores, of the trajectories that it was asked about; None is the panel's.
        alone: the scenes with a single character, instead of all others.
        seed: of the bootstrap.
    """
    groups: dict[tuple[str, Language], list[Unit]] = defaultdict(list)
    for unit in ratings.units:
        if judge is not None and judge not in ratings.asked[unit]:
            continue
        # A narrator has its scene to itself however many act in it.
        if ratings.kind == "narrator" or unit.alone == alone:
            groups[unit.model, unit.lang].append(unit)

    def values(metric: str) -> dict[Unit, float]:
        return ratings.of_panel(metric) if judge is None else ratings.of_judge(judge, metric)

    by_metric, averages = {key: values(key) for key in ratings.keys}, values(AVERAGE)
    return [
        TrajectoryScores(model=model, lang=lang, **_scored(units, by_metric, averages, seed))
        for (model, lang), units in sorted(groups.items())
    ]


def score_characters(ratings: Ratings, *, seed: int = 0) -> list[CharacterScores]:
    """The scores of every character by model and language, sorted; scenes with one kept apart.

    Means and intervals are over the scenes that the character is in.
    """
    groups: dict[tuple[str, str, Language], list[Unit]] = defaultdict(list)
    for unit in ratings.units:
        if not unit.alone:
            groups[unit.character, unit.model, unit.lang].append(unit)
    by_metric = {key: ratings.of_panel(key) for key in ratings.keys}
    averages = ratings.of_panel(AVERAGE)
    return [
        CharacterScores(
            character=name, model=model, lang=lang, **_scored(units, by_metric, averages, seed)
        )
        for (name, model, lang), units in sorted(groups.items())
    ]


def _scored(
    units: Sequence[Unit], by_metric: Mapping[str, _Values], averages: _Values, seed: int
) -> dict[str, Any]:
    metrics = {key: _estimate(units, given, seed) for key, given in by_metric.items()}
    average = _estimate(units, averages, seed)
    return {
        "metrics": metrics,
        "average": average,
        "n": average.n,
        "missing": sum(m.missing for m in metrics.values()) / len(metrics),
        "acts_missing": sum(u.acts_missing for u in units) / len(units),
    }


def scene_means(units: Iterable[Unit], values: _Values) -> dict[str, float]:
    """Scene to the mean over its units that have a value."""
    of_scene: dict[str, list[float]] = defaultdict(list)
    for unit in sorted(units):
        if unit in values:
            of_scene[unit.scene].append(values[unit])
    return {scene: sum(some) / len(some) for scene, some in of_scene.items()}


def _estimate(units: Sequence[Unit], values: _Values, seed: int) -> Estimate:
    scenes = list(scene_means(units, values).values())
    interval = cluster_bootstrap(scenes, seed=seed)
    return Estimate(
        mean=interval.value,
        low=interval.low,
        high=interval.high,
        n=len(scenes),
        missing=sum(u not in values for u in units) / len(units) if units else 0,
    )


def origin_gaps(ratings: Ratings, *, metric: str = AVERAGE, seed: int = 0) -> list[Gap]:
    """Extracted minus generated, for every model and language that has both.

    Paired by title where at least two titles have scenes of both origins, else unpaired.
    """
    values = ratings.of_panel(metric)
    found: list[Gap] = []
    together = [u for u in ratings.units if ratings.kind == "narrator" or not u.alone]
    for model, lang in sorted({(u.model, u.lang) for u in together}):
        mine = [u for u in together if (u.model, u.lang) == (model, lang)]
        sides: dict[Origin, dict[str, list[float]]] = {"extracted": {}, "generated": {}}
        for origin, by_title in sides.items():
            for title in sorted({u.title for u in mine}):
                units = [u for u in mine if (u.origin, u.title) == (origin, title)]
                if scenes := list(scene_means(units, values).values()):
                    by_title[title] = scenes
        extracted, generated = sides["extracted"], sides["generated"]
        if not extracted or not generated:
            continue
        both = sorted((extracted.keys() & generated.keys()) - {""})
        paired = len(both) > 1
        if paired:
            gaps = [_mean(extracted[t]) - _mean(generated[t]) for t in both]
            interval = cluster_bootstrap(gaps, seed=seed)
        else:
            interval = difference(_flat(extracted), _flat(generated), seed=seed)
        used = [
            sum(len(v) for t, v in side.items() if not paired or t in both)
            for side in (extracted, generated)
        ]
        every = len(_flat(extracted)) + len(_flat(generated))
        found.append(
            Gap(
                model=model,
                lang=lang,
                metric=metric,
                value=interval.value,
                low=interval.low,
                high=interval.high,
                pairing="title" if paired else "none",
                titles=len(both) if paired else 0,
                extracted=used[0],
                generated=used[1],
                left_out=every - sum(used),
            )
        )
    return found


def _flat(by_title: Mapping[str, Sequence[float]]) -> list[float]:
    return [value for values in by_title.values() for value in values]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def rating_agreement(
    ratings: Ratings, *, weights_of: Callable[[str], str] = str, seed: int = 0
) -> list[JudgeAgreement]:
    """Ordinal Krippendorff alpha between the models that judged: per metric, and on the average.

    As `scores.judge_agreement`: repeats of one model, and judges of the same weights, are one
    rater. Intervals resample scenes. Scenes with one character are left out, as in all scores.
    """
    together = [u for u in ratings.units if ratings.kind == "narrator" or not u.alone]
    raters: dict[str, list[str]] = defaultdict(list)
    for judge in ratings.judges:
        raters[weights_of(judge)].append(judge)
    return [
        agreement_on(
            metric,
            {judge: ratings.of_judge(judge, metric) for judge in ratings.judges},
            {unit: unit.scene for unit in together},
            list(raters.values()),
            nothing="no trajectory has ratings of two judges",
            seed=seed,
        )
        for metric in (*ratings.keys, AVERAGE)
    ]


def agreement_on(
    metric: str,
    given: Mapping[str, Mapping[U, float]],
    clusters: Mapping[U, str],
    raters: Sequence[Sequence[str]],
    *,
    nothing: str,
    seed: int = 0,
) -> JudgeAgreement:
    """Ordinal Krippendorff alpha on one metric.

    Args:
        given: by judge, its scores of units.
        clusters: of all units that count, what the interval resamples.
        raters: the judges that are one rater each; their scores of a unit are averaged.
        nothing: the reason to give where no unit has two raters' scores.
        seed: of the bootstrap.
    """
    if len(raters) < 2:
        reason = "one judge cannot agree with itself" if raters else "no judge gave ratings"
        return JudgeAgreement(metric=metric, agreement=None, reason=reason)
    table = []
    for unit in clusters:
        of_raters = [[given[j][unit] for j in some if unit in given[j]] for some in raters]
        table.append([_mean(scores) if scores else None for scores in of_raters])
    units = sum(sum(v is not None for v in row) > 1 for row in table)
    if not units:
        return JudgeAgreement(metric=metric, agreement=None, reason=nothing)
    alpha = ordinal_alpha(table, list(clusters.values()), seed=seed)
    return JudgeAgreement(
        metric=metric,
        agreement=_agreement(alpha, units),
        reason="every rating is the same number" if alpha.value is None else None,
    )


def _agreement(alpha: Interval, units: int) -> Agreement:
    return Agreement(alpha=alpha.value, low=alpha.low, high=alpha.high, units=units)


def dimension_alphas(ratings: Ratings, *, seed: int = 0) -> list[Cronbach]:
    """Cronbach's alpha of the three dimensions in each language (section 6.3, Table 2).

    Over the trajectories, of all models, that have the dimension's metrics from every judge; scenes
    with one character are left out.
    """
    values = {metric: ratings.of_panel(metric) for metric in METRICS}
    found: list[Cronbach] = []
    for lang in sorted({u.lang for u in ratings.units}):
        for dimension, metrics in DIMENSIONS.items():
            units = [
                u
                for u in ratings.units
                if u.lang == lang and not u.alone and all(u in values[m] for m in metrics)
            ]
            alpha = cronbach_alpha(
                [[values[m][u] for m in metrics] for u in units],
                [u.scene for u in units],
                seed=seed,
            )
            found.append(
                Cronbach(
                    dimension=dimension,
                    lang=lang,
                    metrics=metrics,
                    alpha=alpha.value,
                    low=alpha.low,
                    high=alpha.high,
                    n=len(units),
                )
            )
    return found


def scores_document(
    rows: Sequence[RatingRow], *, weights_of: Callable[[str], str] = str, seed: int = 0
) -> dict[str, Any]:
    """All scores of the rows as plain JSON values: what `report --json` gives as `scenes`.

    `models` is the contract of issue B5; more stands beside it.

    Raises:
        InputError: as `Ratings`.
    """
    ratings, told = Ratings(rows), Ratings(rows, "narrator")

    def documents(records: Iterable[Record]) -> list[dict[str, Any]]:
        return [record.to_dict() for record in records]

    return {
        "models": documents(score_trajectories(ratings, seed=seed)),
        "characters": documents(score_characters(ratings, seed=seed)),
        "alone": documents(score_trajectories(ratings, alone=True, seed=seed)),
        "by_judge": {
            judge: documents(score_trajectories(ratings, judge=judge, seed=seed))
            for judge in ratings.judges
        },
        "agreement": documents(rating_agreement(ratings, weights_of=weights_of, seed=seed)),
        "cronbach": documents(dimension_alphas(ratings, seed=seed)),
        "gap": documents(
            gap for m in (AVERAGE, *METRICS) for gap in origin_gaps(ratings, metric=m, seed=seed)
        ),
        "narrator": {
            "models": documents(score_trajectories(told, seed=seed)),
            "by_judge": {
                judge: documents(score_trajectories(told, judge=judge, seed=seed))
                for judge in told.judges
            },
            "agreement": documents(rating_agreement(told, weights_of=weights_of, seed=seed)),
        },
    }
