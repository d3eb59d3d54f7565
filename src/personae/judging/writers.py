"""Writers of scenes compared on the four criteria (CharacterBox, section 6.5, Table 4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from personae.judging.statistics import cluster_bootstrap
from personae.records import Estimate, Record
from personae.records.scene import Origin
from personae.world.writing import CRITERIA, ComparedScene, Criterion, Method, criteria


class ComparedWriter(Record):
    """One cell of the comparison (Table 4).

    Attributes:
        criteria: mean score with its 95 % interval over sources; null where it is not scored
            (creativity of extracted scenes).
        n: scenes that were scored.
        missing: share (0 to 1) of the sources that brought no score.
        causes: how many are missing for which cause.
    """

    writer: str
    method: Method
    origin: Origin
    criteria: dict[Criterion, Estimate | None]
    n: int
    missing: float
    causes: dict[str, int] = {}


class ComparedMethods(Record):
    """Three stages minus single pass of one writer, over the sources that have both scores."""

    writer: str
    origin: Origin
    criteria: dict[Criterion, Estimate | None]
    n: int


class Comparison(Record):
    """Writers and methods beside each other."""

    reviewer: str
    writers: tuple[ComparedWriter, ...]
    differences: tuple[ComparedMethods, ...]


def summarise(rows: Sequence[ComparedScene], reviewer: str, *, seed: int = 0) -> Comparison:
    """Means, differences, and what is missing; the intervals resample sources."""
    cells: dict[tuple[str, Method, Origin], list[ComparedScene]] = {}
    for row in rows:
        cells.setdefault((row.writer, row.method, row.origin), []).append(row)
    writers = []
    for (writer, method, origin), some in cells.items():
        scored = {r.unit: r.scores for r in some if r.scores is not None}
        missing = 1 - len(scored) / len(some)
        writers.append(
            ComparedWriter(
                writer=writer,
                method=method,
                origin=origin,
                criteria={
                    name: _estimate({u: s[name] for u, s in scored.items()}, missing, seed)
                    if name in criteria(origin)
                    else None
                    for name in CRITERIA
                },
                n=len(scored),
                missing=missing,
                causes=dict(Counter(r.cause for r in some if r.cause is not None)),
            )
        )
    return Comparison(
        reviewer=reviewer, writers=tuple(writers), differences=tuple(_differences(cells, seed))
    )


def _differences(
    cells: Mapping[tuple[str, Method, Origin], Sequence[ComparedScene]], seed: int
) -> Iterator[ComparedMethods]:
    for (writer, method, origin), some in cells.items():
        other = cells.get((writer, "three_stages", origin))
        if method != "single" or other is None:
            continue
        before = {r.unit: r.scores for r in some if r.scores is not None}
        after = {r.unit: r.scores for r in other if r.scores is not None}
        both = [u for u in before if u in after]
        missing = 1 - len(both) / len(some)
        yield ComparedMethods(
            writer=writer,
            origin=origin,
            criteria={
                name: _estimate({u: after[u][name] - before[u][name] for u in both}, missing, seed)
                if name in criteria(origin)
                else None
                for name in CRITERIA
            },
            n=len(both),
        )


def _estimate(values: Mapping[str, int], missing: float, seed: int) -> Estimate:
    found = cluster_bootstrap(list(values.values()), list(values), seed=seed)
    return Estimate(
        mean=found.value, low=found.low, high=found.high, n=len(values), missing=missing
    )
