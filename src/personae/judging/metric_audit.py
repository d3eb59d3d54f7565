"""From the scores that a judge gave on several metrics to its audit.

Trajectories and interviews are audited alike: what stands beside an own unit is scored on the
metrics that must notice it, its value is the mean of those, and it is compared with the mean of the
same ones of the own unit. AUC rule, thresholds and least number of pairs are those of
`personae.judging.audit`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, variance
from typing import Generic, Protocol, TypeAlias, TypeVar

from personae.judging.audit import (
    AUC_LOW,
    LEAST_PAIRS,
    ORDER_SHIFT,
    OWN,
    REPEAT,
    ROUNDING,
    THRESHOLDS,
    Pairs,
    Words,
)
from personae.judging.statistics import Interval
from personae.records import Audit, AuditGroup, Failure, Language


class MetricRow(Protocol):
    """What one judge gave to one thing that was to be judged."""

    @property
    def judge(self) -> str:
        """Who judged."""

    @property
    def group(self) -> str:
        """What stands in the own one's place."""

    @property
    def unit_id(self) -> str:
        """The own one that it stands beside."""

    @property
    def cluster(self) -> str:
        """What it has in common with others: those of one cluster are alike."""

    @property
    def scores(self) -> Mapping[str, int | None]:
        """By metric; null where the judge gave none."""

    @property
    def failures(self) -> Mapping[str, Failure]:
        """By metric, why there is none."""


Row = TypeVar("Row", bound=MetricRow)


@dataclass(frozen=True)
class Value(Generic[Row]):
    """A row on the metrics of its group: what `Pairs` compares."""

    unit_id: str
    persona: str
    value: float | None
    row: Row


Found: TypeAlias = Pairs[Value[Row]]


@dataclass(frozen=True)
class Design(Generic[Row]):
    """What is tried on a judge, and what it must not be taken in by.

    Attributes:
        groups: those that decide, in the order of the report.
        orders: of them, those that hold an order to the judge, and the group that each is compared
            with; the others must score lower than the own ones.
        metrics: by group, those that must notice it.
        words: the first part of the names of the tables in `data/audit/words.LANGUAGE.toml`.
        notes: what there is to say of a group beside its numbers: from the words, its name, its
            pairs, the own rows and its rows.
    """

    groups: tuple[str, ...]
    orders: Mapping[str, str]
    metrics: Mapping[str, tuple[str, ...]]
    words: str
    notes: Callable[[Words, str, Found[Row], Sequence[Row], Sequence[Row]], list[str]]


def audit_of(
    design: Design[Row],
    judge: str,
    rows: Sequence[Row],
    *,
    language: Language,
    rubric_hash: str,
    answers_hash: str = "",
    groups: Sequence[str],
    seed: int = 0,
) -> Audit:
    """The audit of one judge from its scores.

    It passes if the lower bound of the AUC is at least `AUC_LOW` against each group that must score
    lower and each order raises the mean by less than `ORDER_SHIFT`; each over at least
    `LEAST_PAIRS` units with both scores. Intervals are the wider ones of two bootstraps, over units
    and over clusters.

    Args:
        judge: whose scores count; rows of others are left aside.
        groups: what was tried; a group that decides and was not tried cannot be passed.
        seed: of the bootstrap.
    """
    mine = [row for row in rows if row.judge == judge]
    by_group: dict[str, list[Row]] = defaultdict(list)
    for row in mine:
        by_group[row.group].append(row)
    words = Words(language)
    found: list[AuditGroup] = []
    reasons: list[str] = []
    shifts: dict[str, float | None] = {}
    for name in design.groups:
        pairs = pairs_of(by_group[OWN], by_group[name])
        base = by_group[design.orders.get(name, OWN)]
        moved = pairs_of(base, by_group[name])
        shifts[name] = moved.shift
        interval = pairs.auc(seed)
        tried = name in groups
        reason = _reason(design, words, name, pairs, interval, moved, tried=tried)
        found.append(
            AuditGroup(
                name=name,
                auc=interval.value,
                low=interval.low,
                high=interval.high,
                n=len(pairs),
                missing=1 - len(pairs) / pairs.asked if pairs.asked else 0.0,
                passed=reason is None,
                mean_own=fmean(pairs.base) if pairs.base else None,
                mean_group=fmean(pairs.values) if pairs.values else None,
                note=_note(
                    design, words, name, pairs, moved, by_group[OWN], by_group[name], tried=tried
                ),
            )
        )
        if reason is not None:
            reasons.append(reason)
    lacking = sum(bool(row.failures) for row in mine)
    if reasons and lacking:
        text = f"{design.words}_reason.missing"
        reasons.append(words(text, missing=lacking, asked=len(mine)))
    given = [score for row in mine for score in row.scores.values()]
    on_own = (name for name in design.groups if design.orders.get(name) == OWN)
    return Audit(
        judge=judge,
        rubric_hash=rubric_hash,
        language=language,
        verdict="failed" if reasons else "passed",
        reasons=tuple(reasons),
        groups=tuple(found),
        order_shift=next((shifts[name] for name in on_own), None),
        length_slope=None,
        repeat_variance=_repeat_variance(by_group[OWN], by_group[REPEAT]),
        swap_shift=None,
        missing=sum(score is None for score in given) / len(given) if given else 0.0,
        thresholds=THRESHOLDS,
        answers_hash=answers_hash,
    )


def pairs_of(
    base: Sequence[Row], group: Sequence[Row], only: Sequence[str] | None = None
) -> Found[Row]:
    """Both sides on the metrics that the rows of the group were scored on, or on some of them."""
    metrics = {row.unit_id: tuple(row.scores if only is None else only) for row in group}
    return Pairs(
        {row.unit_id: _value(row, metrics[row.unit_id]) for row in base if row.unit_id in metrics},
        [_value(row, metrics[row.unit_id]) for row in group],
    )


def _value(row: Row, metrics: Sequence[str]) -> Value[Row]:
    """The row's mean over the metrics; None where one of them is missing."""
    scores = [row.scores.get(metric) for metric in metrics]
    given = [score for score in scores if score is not None]
    value = fmean(given) if given and len(given) == len(scores) else None
    return Value(row.unit_id, row.cluster, value, row)


def _reason(
    design: Design[Row],
    words: Words,
    name: str,
    pairs: Found[Row],
    interval: Interval,
    moved: Found[Row],
    *,
    tried: bool,
) -> str | None:
    """Why a group was not passed; None if it was."""
    table = f"{design.words}_reason"
    group = words(f"{design.words}_group.{name}")
    if not tried:
        return words(f"{table}.skipped", group=group)
    is_order = name in design.orders
    enough = moved if is_order else pairs
    if len(enough) < LEAST_PAIRS or (not is_order and interval.low is None):
        return words(
            f"{table}.few", group=group, n=len(enough), asked=enough.asked, least=LEAST_PAIRS
        )
    if is_order:
        assert moved.shift is not None
        if moved.shift >= ORDER_SHIFT - ROUNDING:
            return words(f"{table}.{name}", shift=moved.shift, most=ORDER_SHIFT)
        return None
    assert interval.low is not None
    if interval.low < AUC_LOW - ROUNDING:
        return words(
            f"{table}.auc",
            group=group,
            metrics=", ".join(design.metrics[name]),
            auc=interval.value,
            low=interval.low,
            high=interval.high,
            least=AUC_LOW,
        )
    return None


def _note(
    design: Design[Row],
    words: Words,
    name: str,
    pairs: Found[Row],
    moved: Found[Row],
    own: Sequence[Row],
    group: Sequence[Row],
    *,
    tried: bool,
) -> str:
    table = f"{design.words}_note"
    if not tried:
        return words(f"{table}.not_tested")
    notes = [words(f"{table}.metrics", metrics=", ".join(design.metrics[name]))]
    notes += design.notes(words, name, pairs, own, group)
    if name in design.orders and moved.shift is not None:
        notes.append(words(f"{table}.order", shift=moved.shift))
    able = sum(set(design.metrics[name]) <= row.scores.keys() for row in own)
    if pairs.asked < able:
        notes.append(words(f"{table}.partly", n=pairs.asked, all=able))
    return "; ".join(notes)


def _repeat_variance(own: Sequence[Row], repeats: Sequence[Row]) -> float | None:
    """Mean over units and metrics of the variance (n - 1) of what the same call gave."""
    scores: dict[tuple[str, str], list[int]] = defaultdict(list)
    repeated = {row.unit_id for row in repeats}
    for row in (*own, *repeats):
        for metric, score in row.scores.items():
            if row.unit_id in repeated and score is not None:
                scores[row.unit_id, metric].append(score)
    spreads = [variance(given) for given in scores.values() if len(given) > 1]
    return fmean(spreads) if spreads else None
