"""Means, agreement, separation and correlation, each with an interval that says what it resamples.

All intervals are 95 % percentile bootstraps (Efron and Tibshirani, An Introduction to the
Bootstrap, 1993, chapter 13) over *clusters* (Davison and Hinkley, Bootstrap Methods and their
Application, 1997, section 3.8): clusters are drawn with replacement, each with everything in it,
because answers of one character are more alike than answers of two. Ten thousand resamples, the
same ones for the same seed. Below two clusters there is no interval. A resample in which the
statistic does not exist (all values the same, say) is left out; if that befalls more than one in
twenty, there is no interval.

A drawn sample is never written out: all statistics here are functions of how often each cluster was
drawn, so a resample is a row of counts, and 10,000 of them are matrix products.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.intp]

RESAMPLES = 10_000
LEVEL = 0.95
UNDEFINED_AT_MOST = 0.05  # share of resamples without a value beyond which there is no interval
_CELLS = 2_000_000  # array elements per block of resamples: 16 MB, whatever the number of clusters
_KENDALL_POINTS = 2_000  # distinct points up to which all pairs are held as one matrix
_KENDALL_RESAMPLES = 1_000  # beyond that


class Interval(NamedTuple):
    """A statistic with its 95 % interval.

    Attributes:
        value: the statistic over all data; None where it does not exist.
        low, high: bounds of the interval; None below two clusters and where it does not exist.
        clusters: how many clusters were resampled.

    """

    value: float | None
    low: float | None
    high: float | None
    clusters: int


def cluster_bootstrap(
    values: Sequence[float],
    clusters: Sequence[Hashable] | None = None,
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Interval:
    """Mean over clusters of the cluster's own mean. The interval resamples clusters.

    Args:
        values: n numbers.
        clusters: n labels; None where each value is a cluster of its own.
        seed: of the resampling; the order of labelled clusters does not matter.
        resamples: how many samples are drawn.

    Raises:
        ValueError: not as many labels as values, or a value that is not finite.

    """
    data = _finite(values, "values")
    index, count = _labels(clusters, len(data))
    if count == 0:
        return Interval(None, None, None, 0)
    means = np.bincount(index, weights=data, minlength=count) / np.bincount(index, minlength=count)
    return _bootstrap(lambda drawn: drawn @ means / drawn.sum(axis=1), count, seed, resamples)


def ordinal_alpha(
    ratings: Sequence[Sequence[float | None]],
    clusters: Sequence[Hashable] | None = None,
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Interval:
    """Krippendorff's alpha for ordinal data, with missing ratings. The interval resamples clusters.

    Krippendorff, Computing Krippendorff's Alpha-Reliability (2011): any number of raters, ordinal
    metric. The ordinal difference of two categories is the difference of their midranks among the
    pairable ratings, so neither the number nor the spacing of the categories matters.

    Args:
        ratings: one row per unit, one entry per rater, None (or NaN) where that rater gave none;
            units with fewer than two ratings cannot be paired and do not count.
        clusters: one label per unit; None where each unit is a cluster of its own.
        seed: of the resampling.
        resamples: how many samples are drawn.

    Returns:
        alpha: 1 is full agreement, 0 what chance gives; None where no unit has two ratings or all
        pairable ratings are the same. `clusters` counts the clusters that hold a pairable unit.

    Raises:
        ValueError: rows of different length, or not as many labels as rows.

    """
    if len({len(row) for row in ratings}) > 1:
        raise ValueError("each unit needs one entry per rater (None where a rating is missing)")
    table = np.array(
        [[np.nan if r is None else r for r in row] for row in ratings], dtype=np.float64
    ).reshape(len(ratings), len(ratings[0]) if ratings else 0)
    if np.isinf(table).any():
        raise ValueError("ratings must be finite")
    if clusters is not None and len(clusters) != len(ratings):
        raise ValueError(f"{len(ratings)} units but {len(clusters)} cluster labels")
    pairable = (~np.isnan(table)).sum(axis=1) >= 2
    table = table[pairable]
    if not len(table):
        return Interval(None, None, None, 0)
    kept = None if clusters is None else [c for c, p in zip(clusters, pairable, strict=True) if p]
    index, count = _labels(kept, len(table))

    unit, rater = np.nonzero(~np.isnan(table))
    level, levels = _levels(table[unit, rater])
    per_unit = np.bincount(unit, minlength=len(table))
    marginals = _tally(index[unit], level, count, levels)
    # Coincidences off the diagonal: each ordered pair of ratings of a unit weighs 1 / (m_u - 1).
    cluster_of, pairs, weights = [], [], []
    position = np.full(table.shape, -1, dtype=np.intp)
    position[unit, rater] = level
    for a in range(table.shape[1]):
        for b in range(a + 1, table.shape[1]):
            both = (position[:, a] >= 0) & (position[:, b] >= 0)
            both &= position[:, a] != position[:, b]
            cluster_of.append(index[both])
            pairs.append(position[both, a] * levels + position[both, b])
            weights.append(2.0 / (per_unit[both] - 1))
    seen, pair = np.unique(np.concatenate(pairs), return_inverse=True)
    coincidences = _tally(
        np.concatenate(cluster_of), pair, count, len(seen), np.concatenate(weights)
    )
    first, second = seen // levels, seen % levels

    def alpha(drawn: Floats) -> Floats:
        n_c = _product(drawn, marginals)
        n = n_c.sum(axis=1)
        midrank = np.cumsum(n_c, axis=1) - n_c / 2
        apart = (midrank[:, first] - midrank[:, second]) ** 2
        observed = (_product(drawn, coincidences) * apart).sum(axis=1)
        # sum over c, k of n_c n_k (midrank_c - midrank_k)^2, without the table of pairs
        centred = midrank - ((n_c * midrank).sum(axis=1) / n)[:, None]
        expected = 2 * n * (n_c * centred**2).sum(axis=1)
        varied = (n_c > 0).sum(axis=1) > 1
        return _ratio(expected - (n - 1) * observed, expected, varied)

    return _bootstrap(alpha, count, seed, resamples, width=max(levels, len(seen)))


def auc(
    own: Sequence[float],
    other: Sequence[float],
    *,
    own_clusters: Sequence[Hashable] | None = None,
    other_clusters: Sequence[Hashable] | None = None,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Interval:
    """Probability that a value of `own` exceeds one of `other`, ties counting half.

    That is the Mann-Whitney U over the number of pairs (Hanley and McNeil, Radiology 143, 1982);
    every value is compared with every other, not only with its partner. The interval resamples
    clusters (questions, say), each with all its own and other values.

    Args:
        own: values that should be higher.
        other: values that should be lower.
        own_clusters: labels of `own`; None where `own[i]` and `other[i]` are a pair, for all i.
        other_clusters: labels of `other`; None where `own_clusters` is.
        seed: of the resampling.
        resamples: how many samples are drawn.

    Raises:
        ValueError: no labels for lists of different length, or labels for one list only.

    """
    a, b = _finite(own, "own"), _finite(other, "other")
    if (own_clusters is None) != (other_clusters is None):
        raise ValueError("give cluster labels for both groups or for neither")
    if own_clusters is None or other_clusters is None:
        if len(a) != len(b):
            raise ValueError("unlabelled groups must be pairs, and these differ in length")
        own_clusters, other_clusters = range(len(a)), range(len(b))
    if (len(own_clusters), len(other_clusters)) != (len(a), len(b)):
        raise ValueError("not as many cluster labels as values")
    index, count = _labels([*own_clusters, *other_clusters], len(a) + len(b))
    if not len(a) or not len(b):
        return Interval(None, None, None, count)
    level, levels = _levels(np.concatenate([a, b]))
    mine = _tally(index[: len(a)], level[: len(a)], count, levels)
    theirs = _tally(index[len(a) :], level[len(a) :], count, levels)

    def probability(drawn: Floats) -> Floats:
        high, low = _product(drawn, mine), _product(drawn, theirs)
        below = np.cumsum(low, axis=1) - low / 2
        pairs = high.sum(axis=1) * low.sum(axis=1)
        return _ratio((high * below).sum(axis=1), pairs, pairs > 0)

    return _bootstrap(probability, count, seed, resamples, width=levels)


def correlation(
    x: Sequence[float],
    y: Sequence[float],
    clusters: Sequence[Hashable] | None = None,
    *,
    kind: Literal["spearman", "kendall", "pearson"] = "spearman",
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Interval:
    """Spearman's rho (midranks for ties), Kendall's tau-b or Pearson's r of n pairs.

    The interval resamples clusters; with None, the pairs themselves. Kendall's tau compares all
    pairs of distinct points, so beyond 2,000 points its interval takes 1,000 resamples at most.

    Raises:
        ValueError: lists of different length, or a value that is not finite.

    """
    a, b, index, count = _pairs(x, y, clusters)
    if len(a) < 2:
        return Interval(None, None, None, count)
    points, point = np.unique(np.column_stack([a, b]), axis=0, return_inverse=True)
    tally = _tally(index, point.reshape(-1), count, len(points))
    px, py = points[:, 0], points[:, 1]
    if kind == "kendall":
        if len(points) > _KENDALL_POINTS:
            resamples = min(resamples, _KENDALL_RESAMPLES)
        statistic = _kendall(px, py)
    elif kind == "spearman":
        statistic = _spearman(px, py)
    else:
        statistic = _pearson(px, py)
    return _bootstrap(
        lambda drawn: statistic(_product(drawn, tally)), count, seed, resamples, width=len(points)
    )


def slope(
    x: Sequence[float],
    y: Sequence[float],
    clusters: Sequence[Hashable] | None = None,
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Interval:
    """Least-squares slope of `y` on `x`: units of y per unit of x; None where all `x` are the same.

    The interval resamples clusters; with None, the pairs themselves.

    Raises:
        ValueError: lists of different length, or a value that is not finite.

    """
    a, b, index, count = _pairs(x, y, clusters)
    if count == 0:
        return Interval(None, None, None, 0)
    # Centred first: the moments below lose digits when the mean is far from 0. The weight of a
    # cluster in each resample acts on these per-cluster sums alone.
    a, b = a - a.mean(), b - b.mean()
    spread = float(a @ a)
    moments = np.column_stack(
        [
            np.bincount(index, weights=w, minlength=count)
            for w in (np.ones_like(a), a, b, a * a, a * b)
        ]
    )

    def least_squares(drawn: Floats) -> Floats:
        n, sx, sy, sxx, sxy = (drawn @ moments).T
        variation = sxx - sx * sx / n
        return _ratio(sxy - sx * sy / n, variation, variation > 1e-12 * spread)

    return _bootstrap(least_squares, count, seed, resamples)


def length_slope(
    scores: Sequence[float],
    lengths: Sequence[float],
    clusters: Sequence[Hashable] | None = None,
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Interval:
    """Slope of score on log2 of length: score points per doubling of the answer.

    The interval resamples clusters (with None, the answers).

    Raises:
        ValueError: a length that is not positive, or lists of different length.

    """
    size = _finite(lengths, "lengths")
    if (size <= 0).any():
        raise ValueError("lengths must be positive")
    return slope(np.log2(size).tolist(), scores, clusters, seed=seed, resamples=resamples)


def cronbach_alpha(
    items: Sequence[Sequence[float]],
    clusters: Sequence[Hashable] | None = None,
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Interval:
    """Cronbach's alpha: how far the items of a scale go together. The interval resamples clusters.

    Cronbach, Coefficient alpha and the internal structure of tests, Psychometrika 16 (1951):
    k / (k - 1) times (1 - sum of the items' variances / variance of their sum), over k items.

    Args:
        items: one row per unit, one number per item; units that lack an item are left out before.
        clusters: one label per unit; None where each unit is a cluster of its own.
        seed: of the resampling.
        resamples: how many samples are drawn.

    Returns:
        alpha: at most 1, below 0 where items vary against each other; None below two items, below
        two units, and where the units' sums are all the same.

    Raises:
        ValueError: rows of different length, a number that is not finite, or not as many labels as
            rows.

    """
    if len({len(row) for row in items}) > 1:
        raise ValueError("each unit needs one number per item")
    k = len(items[0]) if items else 0
    table = _finite([v for row in items for v in row], "items").reshape(len(items), k)
    index, count = _labels(clusters, len(items))
    if k < 2 or len(items) < 2:
        return Interval(None, None, None, count)
    # Centred first, as in `slope`; all variances are then sums over the drawn clusters.
    table = table - table.mean(axis=0)
    columns = np.column_stack([table, table.sum(axis=1)])
    sums = np.column_stack(
        [
            np.bincount(index, weights=w, minlength=count)
            for w in (np.ones(len(table)), *columns.T, *(columns**2).T)
        ]
    )
    spread = float((columns[:, -1] ** 2).sum()) + float((columns**2).sum())

    def alpha(drawn: Floats) -> Floats:
        n, firsts, seconds = np.split(drawn @ sums, [1, k + 2], axis=1)
        variances = seconds - firsts**2 / n  # times n - 1, which cancels
        whole = variances[:, -1]
        return _ratio(
            k / (k - 1) * (whole - variances[:, :-1].sum(axis=1)), whole, whole > 1e-12 * spread
        )

    return _bootstrap(alpha, count, seed, resamples)


def crossed_bootstrap(
    table: Sequence[Sequence[float]],
    clusters: Sequence[Hashable] | None = None,
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Interval:
    """Mean of a table of units that were each measured in every replicate (seeds of a training).

    The interval draws replicates and clusters of units, each with replacement and independently of
    each other: both vary, and neither lies within the other (Owen, The pigeonhole bootstrap, Annals
    of Applied Statistics 1, 2007). With few replicates their part is underestimated: by a third of
    its variance with three.

    Args:
        table: a row for each replicate, one number for each unit, no number missing.
        clusters: one label per unit, as of `cluster_bootstrap`.
        seed: of the resampling.
        resamples: how many samples are drawn.

    Returns:
        the mean over clusters of the cluster's own mean over units and replicates; with one
        replicate what `cluster_bootstrap` gives. `clusters` counts those of units.

    Raises:
        ValueError: rows of different length, not as many labels as units, or a value that is not
            finite.

    """
    if len({len(row) for row in table}) > 1:
        raise ValueError("each replicate needs one number per unit")
    if len(table) < 2:
        return cluster_bootstrap(
            table[0] if table else (), clusters if table else None, seed=seed, resamples=resamples
        )
    data = np.stack([_finite(row, "values") for row in table])
    index, count = _labels(clusters, data.shape[1])
    if count == 0:
        return Interval(None, None, None, 0)
    size = np.bincount(index, minlength=count)
    means = np.stack([np.bincount(index, weights=row, minlength=count) / size for row in data])
    value = float(means.mean())
    if count < 2:
        return Interval(value, None, None, count)
    # Two streams, as in `difference`; both in blocks of one size, so that they go side by side.
    width = max(count, len(means))
    drawn = np.concatenate(
        [
            ((rows @ means) * columns).sum(axis=1) / (len(means) * count)
            for rows, columns in zip(
                _draws(len(means), resamples, 2 * seed, width),
                _draws(count, resamples, 2 * seed + 1, width),
                strict=True,
            )
        ]
    )
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(value, float(low), float(high), count)


def difference(
    x: Sequence[float], y: Sequence[float], *, seed: int = 0, resamples: int = RESAMPLES
) -> Interval:
    """Mean of `x` minus mean of `y`, two independent groups, each resampled within itself.

    Efron and Tibshirani (1993), section 8.3 (two-sample problem). `clusters` counts both groups;
    there is no interval where either has fewer than two values.

    Raises:
        ValueError: a value that is not finite.

    """
    a, b = _finite(x, "x"), _finite(y, "y")
    count = len(a) + len(b)
    if not len(a) or not len(b):
        return Interval(None, None, None, count)
    value = float(a.mean() - b.mean())
    if len(a) < 2 or len(b) < 2:
        return Interval(value, None, None, count)

    def means(values: Floats, stream: int) -> Floats:
        blocks = _draws(len(values), resamples, stream, 1)
        return np.concatenate([drawn @ values for drawn in blocks]) / len(values)

    # Two streams, lest groups of one size be drawn alike.
    drawn = means(a, 2 * seed) - means(b, 2 * seed + 1)
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(value, float(low), float(high), count)


# The parts that the statistics share.


def _finite(values: Sequence[float], name: str) -> Floats:
    data = np.asarray(values, dtype=np.float64).reshape(-1)
    if not np.isfinite(data).all():
        raise ValueError(f"{name} must be finite numbers; leave missing ones out")
    return data


def _pairs(
    x: Sequence[float], y: Sequence[float], clusters: Sequence[Hashable] | None
) -> tuple[Floats, Floats, Ints, int]:
    """Both lists checked, and the cluster of each pair with the number of clusters."""
    a, b = _finite(x, "x"), _finite(y, "y")
    if len(a) != len(b):
        raise ValueError(f"{len(a)} values of x but {len(b)} of y")
    return a, b, *_labels(clusters, len(a))


def _labels(clusters: Sequence[Hashable] | None, n: int) -> tuple[Ints, int]:
    """Cluster numbers (n,) and how many there are; labels are sorted, so their order is nothing."""
    if clusters is None:
        return np.arange(n), n
    if len(clusters) != n:
        raise ValueError(f"{n} values but {len(clusters)} cluster labels")
    number = {label: i for i, label in enumerate(sorted(set(clusters), key=repr))}
    return np.fromiter((number[c] for c in clusters), dtype=np.intp, count=n), len(number)


def _levels(values: Floats) -> tuple[Ints, int]:
    """Place of each value (n,) among the distinct values, from 0, and how many distinct ones."""
    distinct, level = np.unique(values, return_inverse=True)
    return level.reshape(-1), len(distinct)


def _tally(
    rows: Ints, columns: Ints, n_rows: int, n_columns: int, weights: Floats | None = None
) -> csr_array[Any]:
    """Sum of weights (default: count) by column and row, sparse, shape (n_columns, n_rows)."""
    from scipy.sparse import coo_array

    data = np.ones(len(rows)) if weights is None else weights
    return coo_array((data, (columns, rows)), shape=(n_columns, n_rows)).tocsr()


def _product(drawn: Floats, tally: csr_array[Any]) -> Floats:
    """(resamples, clusters) counts times a tally: (resamples, columns)."""
    return np.asarray(tally @ drawn.T, dtype=np.float64).T


def _ratio(numerator: Floats, denominator: Floats, exists: NDArray[np.bool_]) -> Floats:
    """Quotient, NaN where the statistic does not exist."""
    return np.divide(
        numerator, denominator, out=np.full_like(numerator, np.nan), where=exists, dtype=np.float64
    )


def _draws(count: int, resamples: int, seed: int, width: int) -> Iterator[Floats]:
    """How often each of `count` clusters was drawn, in blocks of shape (resamples in it, count)."""
    block = max(1, min(resamples, _CELLS // max(count, width, 1)))
    if block == resamples:  # the same draws come again, metric by metric: half of a report's time
        yield _one_block(count, resamples, seed)
        return
    random = np.random.default_rng(seed)
    for start in range(0, resamples, block):
        yield _block(random, count, min(block, resamples - start))


@lru_cache(maxsize=4)
def _one_block(count: int, resamples: int, seed: int) -> Floats:
    drawn = _block(np.random.default_rng(seed), count, resamples)
    drawn.flags.writeable = False
    return drawn


def _block(random: np.random.Generator, count: int, size: int) -> Floats:
    drawn = random.integers(0, count, size=(size, count))
    drawn += np.arange(size)[:, None] * count
    counts = np.bincount(drawn.ravel(), minlength=size * count)
    return counts.reshape(size, count).astype(np.float64)


def _bootstrap(
    statistic: Callable[[Floats], Floats],
    count: int,
    seed: int,
    resamples: int,
    width: int = 1,
) -> Interval:
    """The statistic with each cluster once, and its percentiles over resamples.

    Args:
        statistic: counts (r, count) to values (r,), NaN where it does not exist.
        count: the number of clusters.
        seed: of the resampling.
        resamples: how many samples are drawn.
        width: the widest array row that the statistic makes, where wider than `count`.

    """
    if resamples < 1:
        raise ValueError("resamples must be at least 1")
    value = float(statistic(np.ones((1, count)))[0])
    if np.isnan(value):
        return Interval(None, None, None, count)
    if count < 2:
        return Interval(value, None, None, count)
    drawn = np.concatenate([statistic(d) for d in _draws(count, resamples, seed, width)])
    defined = drawn[~np.isnan(drawn)]
    if len(defined) < (1 - UNDEFINED_AT_MOST) * len(drawn):
        return Interval(value, None, None, count)
    low, high = np.quantile(defined, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(value, float(low), float(high), count)


Statistic: TypeAlias = Callable[[Floats], Floats]


def _pearson(x: Floats, y: Floats) -> Statistic:
    """Pearson's r of points (u,) as a function of how often each occurs (r, u)."""

    def r(weights: Floats) -> Floats:
        return _weighted_pearson(weights, (x - x.mean())[None, :], (y - y.mean())[None, :])

    return r


def _weighted_pearson(weights: Floats, x: Floats, y: Floats) -> Floats:
    """Pearson's r per row; `x` and `y` are (r, u) or (1, u)."""
    n = weights.sum(axis=1)[:, None]
    dx = x - (weights * x).sum(axis=1)[:, None] / n
    dy = y - (weights * y).sum(axis=1)[:, None] / n
    weighted = weights * dx
    xx, xy = (weighted * dx).sum(axis=1), (weighted * dy).sum(axis=1)
    yy = (weights * dy * dy).sum(axis=1)
    # All points of a sample equal in x or y: rounding leaves a residue of this order at most.
    scale_x = (weights * x * x).sum(axis=1) + 1e-300
    scale_y = (weights * y * y).sum(axis=1) + 1e-300
    exists = (xx > 1e-14 * scale_x) & (yy > 1e-14 * scale_y)
    return np.clip(_ratio(xy, np.sqrt(xx * yy), exists), -1, 1)


def _spearman(x: Floats, y: Floats) -> Statistic:
    """Spearman's rho: Pearson's r of the midranks that each sample has."""
    rank_x, rank_y = _midranks(x), _midranks(y)

    def rho(weights: Floats) -> Floats:
        return _weighted_pearson(weights, rank_x(weights), rank_y(weights))

    return rho


def _midranks(values: Floats) -> Statistic:
    """Midranks, less their mean, of points (u,) that occur `weights` (r, u) times in a sample."""
    level, levels = _levels(values)
    members = _tally(np.arange(len(values)), level, len(values), levels)

    def ranks(weights: Floats) -> Floats:
        tied = _product(weights, members)
        middle = np.cumsum(tied, axis=1) - tied / 2 - weights.sum(axis=1)[:, None] / 2
        return np.take(middle, level, axis=1)

    return ranks


def _kendall(x: Floats, y: Floats) -> Statistic:
    """Kendall's tau-b (Kendall, The treatment of ties in ranking problems, Biometrika 33, 1945)."""
    if len(x) > _KENDALL_POINTS:
        return _kendall_one_by_one(x, y)
    signs = np.sign(x[:, None] - x[None, :]) * np.sign(y[:, None] - y[None, :])
    tied_x = _tally(np.arange(len(x)), *_pick(x))
    tied_y = _tally(np.arange(len(y)), *_pick(y))

    def tau(weights: Floats) -> Floats:
        surplus = ((weights @ signs) * weights).sum(axis=1)
        n = weights.sum(axis=1)
        # n (n - 1) less the ordered pairs tied in x, likewise in y
        untied_x = n * n - (_product(weights, tied_x) ** 2).sum(axis=1)
        untied_y = n * n - (_product(weights, tied_y) ** 2).sum(axis=1)
        both = untied_x * untied_y
        return np.clip(_ratio(surplus, np.sqrt(both), both > 0), -1, 1)

    return tau


def _pick(values: Floats) -> tuple[Ints, int, int]:
    """Columns, number of rows and number of columns for a tally of points by distinct value."""
    level, levels = _levels(values)
    return level, len(values), levels


def _kendall_one_by_one(x: Floats, y: Floats) -> Statistic:
    """The same by sorting (n log n), for more points than all pairs of them fit in memory."""
    from scipy.stats import kendalltau

    def tau(weights: Floats) -> Floats:
        times = weights.astype(np.intp)
        return np.array(
            [kendalltau(np.repeat(x, t), np.repeat(y, t)).statistic for t in times],
            dtype=np.float64,
        )

    return tau
