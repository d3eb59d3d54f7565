from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Literal, TypeAlias, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from personae.judging.statistics import (
    Interval,
    _draws,
    auc,
    cluster_bootstrap,
    correlation,
    cronbach_alpha,
    crossed_bootstrap,
    difference,
    length_slope,
    ordinal_alpha,
    slope,
)

Array: TypeAlias = NDArray[np.float64]

# Krippendorff, Computing Krippendorff's Alpha-Reliability (2011), section C: four observers A to D,
# twelve units, missing data. He gives alpha = .743 nominal, .815 ordinal, .849 interval.
#
#     unit  1  2  3  4  5  6  7  8  9 10 11 12
#     A     1  2  3  3  2  1  4  1  2  .  .  .
#     B     1  2  3  3  2  2  4  1  2  5  .  3
#     C     .  3  3  3  2  3  4  2  2  5  1  .
#     D     1  2  3  3  2  4  4  1  2  5  1  .
#
# The ordinal one by hand. Unit 12 has one rating and cannot be paired, so n = 40 ratings remain:
# n1..n5 = 9, 13, 10, 5, 3; their midranks (counted from 0) 4.5, 15.5, 27, 34.5, 38.5.
# Units that disagree: 2 = {2,2,2,3}: o23 += 3/3; 8 = {1,1,1,2}: o12 += 3/3; 6 = {1,2,3,4}: each of its
# six pairs += 1/3. So o12 = 4/3, o13 = 1/3, o14 = 1/3, o23 = 4/3, o24 = 1/3, o34 = 1/3.
# Squared midrank differences: 12 121, 13 506.25, 14 900, 15 1156, 23 132.25, 24 361, 25 529, 34 56.25,
# 35 132.25, 45 16.
# Observed, over c < k: (4*121 + 506.25 + 900 + 4*132.25 + 361 + 56.25) / 3 = 945.5
# Expected, over c < k: 117*121 + 90*506.25 + 45*900 + 27*1156 + 130*132.25 + 65*361 + 39*529 + 50*56.25
#                       + 30*132.25 + 15*16 = 199740
# alpha = 1 - 39 * 945.5 / 199740 = 0.815388
KRIPPENDORFF = [
    (1, 1, None, 1), (2, 2, 3, 2), (3, 3, 3, 3), (3, 3, 3, 3), (2, 2, 2, 2), (1, 2, 3, 4),
    (4, 4, 4, 4), (1, 1, 2, 1), (2, 2, 2, 2), (None, 5, 5, 5), (None, None, 1, 1),
    (None, 3, None, None),
]  # fmt: skip


def _value(interval: Interval) -> float:
    assert interval.value is not None
    return interval.value


def _bounds(interval: Interval) -> tuple[float, float]:
    assert interval.low is not None
    assert interval.high is not None
    return interval.low, interval.high


def _written_out(count: int, resamples: int, seed: int) -> list[list[int]]:
    """The drawn clusters of each resample as lists, for references that know no weights."""
    drawn = np.concatenate(list(_draws(count, resamples, seed, 1))).astype(int)
    return [np.repeat(np.arange(count), row).tolist() for row in drawn]


# Means


def test_the_mean_weighs_clusters_alike_however_many_values_they_hold() -> None:
    result = cluster_bootstrap([1, 5, 5, 5], ["a", "b", "b", "b"])
    assert result.value == 3
    assert result.clusters == 2


def test_the_interval_of_two_clusters_runs_from_one_to_the_other() -> None:
    # four equally likely resamples: both a (1), one each (3), both b (5)
    assert cluster_bootstrap([1, 5]) == Interval(3, 1, 5, 2)


def test_one_cluster_has_a_mean_but_no_interval() -> None:
    assert cluster_bootstrap([1, 2], ["a", "a"]) == Interval(1.5, None, None, 1)


def test_no_values_have_no_mean() -> None:
    assert cluster_bootstrap([]) == Interval(None, None, None, 0)


def test_the_interval_of_the_mean_is_that_of_all_possible_resamples() -> None:
    values = [1.0, 2.0, 4.0, 4.5, 5.0, 2.5]
    means = [np.mean(sample) for sample in itertools.product(values, repeat=6)]
    low, high = _bounds(cluster_bootstrap(values, seed=3))
    assert low == pytest.approx(np.quantile(means, 0.025), abs=0.09)
    assert high == pytest.approx(np.quantile(means, 0.975), abs=0.09)


def test_the_interval_of_the_mean_agrees_with_scipy() -> None:
    values = np.random.default_rng(5).normal(3, 1, 80)
    theirs = stats.bootstrap((values,), np.mean, method="percentile", rng=1).confidence_interval
    low, high = _bounds(cluster_bootstrap(values.tolist()))
    assert low == pytest.approx(theirs.low, abs=0.02)
    assert high == pytest.approx(theirs.high, abs=0.02)


def test_clustered_values_have_a_wider_interval_than_independent_ones() -> None:
    values = [float(i % 5) for i in range(5) for _ in range(20)]
    low, high = _bounds(cluster_bootstrap(values, [i // 20 for i in range(100)]))
    narrow_low, narrow_high = _bounds(cluster_bootstrap(values))
    assert high - low > 3 * (narrow_high - narrow_low)


def test_the_same_seed_gives_the_same_interval_and_another_seed_another() -> None:
    values = [1.0, 2.0, 2.5, 4.0, 4.75, 5.0, 3.3]
    assert cluster_bootstrap(values, seed=1) == cluster_bootstrap(values, seed=1)
    assert cluster_bootstrap(values, seed=1) != cluster_bootstrap(values, seed=2)


def test_the_order_of_labelled_values_changes_nothing() -> None:
    values, labels = [1.0, 2.0, 4.0, 5.0, 3.0], ["d", "b", "a", "c", "b"]
    order = [3, 1, 4, 0, 2]
    shuffled = cluster_bootstrap([values[i] for i in order], [labels[i] for i in order])
    assert shuffled == cluster_bootstrap(values, labels)


def test_blocks_of_resamples_give_every_resample_once() -> None:
    blocks = list(_draws(3_000, 1_500, 0, 1))
    assert len(blocks) > 1
    assert sum(len(b) for b in blocks) == 1_500
    assert all((b.sum(axis=1) == 3_000).all() for b in blocks)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_value_that_is_not_finite_is_an_error(bad: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        cluster_bootstrap([1.0, bad])


def test_labels_that_do_not_match_the_values_are_an_error() -> None:
    with pytest.raises(ValueError, match="2 values but 1 cluster labels"):
        cluster_bootstrap([1.0, 2.0], ["a"])


# Krippendorff's alpha


def test_alpha_of_krippendorffs_own_example_is_815() -> None:
    result = ordinal_alpha(KRIPPENDORFF)
    assert _value(result) == pytest.approx(1 - 39 * 945.5 / 199740, abs=1e-12)
    assert round(_value(result), 3) == 0.815
    assert result.clusters == 11


def _alpha_by_definition(ratings: Sequence[Sequence[float | None]]) -> float:
    """The definition with every pair of values written out (Krippendorff 2011)."""
    units = [[r for r in row if r is not None] for row in ratings]
    units = [u for u in units if len(u) > 1]
    pooled = sorted(r for u in units for r in u)
    total = len(pooled)

    def difference(c: float, k: float) -> float:
        low, high = min(c, k), max(c, k)
        between = sum(low <= r <= high for r in pooled)
        return (between - (pooled.count(c) + pooled.count(k)) / 2) ** 2 if c != k else 0

    observed = sum(
        difference(a, b) / (len(u) - 1) for u in units for a, b in itertools.permutations(u, 2)
    )
    expected = sum(difference(a, b) for a, b in itertools.permutations(pooled, 2))
    return 1 - (total - 1) * observed / expected


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(*[st.one_of(st.none(), st.integers(1, 5))] * 3),
        min_size=2,
        max_size=8,
    )
)
def test_alpha_is_what_the_definition_says(ratings: list[tuple[int | None, ...]]) -> None:
    pairable = [[r for r in row if r is not None] for row in ratings]
    values = {r for row in pairable if len(row) > 1 for r in row}
    result = ordinal_alpha(ratings, resamples=1)
    if len(values) < 2:
        assert result.value is None
    else:
        assert _value(result) == pytest.approx(_alpha_by_definition(ratings), abs=1e-9)


def test_alpha_depends_on_order_only_not_on_the_spacing_of_the_scale() -> None:
    stretched = [[None if r is None else 10.0**r for r in row] for row in KRIPPENDORFF]
    assert _value(ordinal_alpha(stretched)) == pytest.approx(_value(ordinal_alpha(KRIPPENDORFF)))


def test_the_interval_of_alpha_is_that_of_the_samples_written_out() -> None:
    labels = [i % 4 for i in range(12)]
    result = ordinal_alpha(KRIPPENDORFF, labels, seed=7, resamples=150)
    members = [[KRIPPENDORFF[i] for i in range(12) if i % 4 == c] for c in range(4)]
    naive = [
        _alpha_by_definition([row for c in sample for row in members[c]])
        for sample in _written_out(4, 150, 7)
    ]
    assert _bounds(result) == pytest.approx(tuple(np.quantile(naive, [0.025, 0.975])), abs=1e-9)


def test_two_judges_of_full_accord_reach_one_and_of_full_discord_fall_below_zero() -> None:
    assert _value(ordinal_alpha([(i, i) for i in (1, 2, 3, 4, 5)])) == 1
    assert _value(ordinal_alpha([(1, 5), (5, 1), (1, 5), (5, 1)])) < 0


def test_judges_who_always_say_the_same_number_have_no_alpha() -> None:
    assert ordinal_alpha([(3, 3), (3, 3)]) == Interval(None, None, None, 2)


def test_units_with_one_rating_have_no_alpha() -> None:
    assert ordinal_alpha([(3, None), (None, 4)]).value is None
    assert ordinal_alpha([]).value is None


def test_alpha_has_no_interval_where_many_resamples_have_no_variation() -> None:
    # only unit 5 differs from the rest; about a third of the resamples miss it
    ratings = [(3, 3), (3, 3), (3, 3), (3, 3), (4, 4)]
    assert ordinal_alpha(ratings) == Interval(1, None, None, 5)


# Separation


def _auc_by_definition(own: list[int], other: list[int]) -> float:
    return float(np.mean([(a > b) + 0.5 * (a == b) for a in own for b in other]))


def test_auc_counts_a_tie_half() -> None:
    # 9 pairs: 5 beats three, 3 beats one and ties one, 2 beats one and loses two: 3 + 1.5 + 1
    assert _value(auc([5, 3, 2], [1, 3, 4])) == pytest.approx(5.5 / 9)


def test_auc_is_the_mann_whitney_u_of_scipy() -> None:
    random = np.random.default_rng(0)
    own, other = random.integers(1, 6, 40), random.integers(1, 6, 40)
    u = stats.mannwhitneyu(own, other).statistic
    assert _value(auc(own.tolist(), other.tolist())) == pytest.approx(u / 1600)


def test_auc_of_groups_without_overlap_is_one_in_every_resample() -> None:
    assert auc([5, 4, 5], [1, 2, 3]) == Interval(1, 1, 1, 3)


def test_the_interval_of_auc_is_that_of_the_samples_written_out() -> None:
    own, other = [5, 4, 3, 5, 2, 4], [3, 4, 1, 5, 2, 2]
    result = auc(own, other, seed=2, resamples=200)
    naive = [
        _auc_by_definition([own[c] for c in s], [other[c] for c in s])
        for s in _written_out(6, 200, 2)
    ]
    assert _bounds(result) == pytest.approx(tuple(np.quantile(naive, [0.025, 0.975])))


def test_groups_of_different_size_share_their_questions() -> None:
    result = auc(
        [5, 4],
        [1, 4, 2],
        own_clusters=["q1", "q2"],
        other_clusters=["q1", "q2", "q2"],
        resamples=50,
    )
    assert result.clusters == 2
    assert _value(result) == pytest.approx(5.5 / 6)
    # q1 twice: 5 against 1; q2 twice: 4 against 4 and 2
    assert _bounds(result) == (0.75, 1)


def test_groups_of_different_size_need_labels() -> None:
    with pytest.raises(ValueError, match="differ in length"):
        auc([5], [1, 2])
    with pytest.raises(ValueError, match="both groups"):
        auc([5], [1], own_clusters=["q"])


def test_an_empty_group_has_no_auc() -> None:
    assert auc([], [], own_clusters=[], other_clusters=[]).value is None


# Correlation

Kind = Literal["spearman", "kendall", "pearson"]
KINDS: tuple[Kind, ...] = get_args(Kind)


def _scipy(kind: Kind, x: Array, y: Array) -> float:
    if kind == "spearman":
        return float(stats.spearmanr(x, y).statistic)
    if kind == "kendall":
        return float(stats.kendalltau(x, y).statistic)
    return float(stats.pearsonr(x, y).statistic)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", ["tied", "continuous", "far from zero"])
def test_correlations_are_those_of_scipy(kind: Kind, shape: str) -> None:
    random = np.random.default_rng(11)
    x = random.normal(size=70)
    y = x + random.normal(size=70)
    if shape == "tied":
        x, y = np.round(x), np.round(y)
    if shape == "far from zero":
        x = x + 1e6
    result = correlation(x.tolist(), y.tolist(), kind=kind, resamples=10)
    assert _value(result) == pytest.approx(_scipy(kind, x, y), abs=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_the_interval_of_a_correlation_is_that_of_the_samples_written_out(kind: Kind) -> None:
    random = np.random.default_rng(4)
    x = random.integers(1, 6, 30).astype(np.float64)
    y: Array = np.clip(x + random.integers(-2, 3, 30), 1, 5)
    labels = [f"{i // 2:02}" for i in range(30)]
    result = correlation(x.tolist(), y.tolist(), labels, kind=kind, seed=9, resamples=150)
    naive = []
    for sample in _written_out(15, 150, 9):
        rows = [i for c in sample for i in (2 * c, 2 * c + 1)]
        naive.append(_scipy(kind, x[rows], y[rows]))
    assert _bounds(result) == pytest.approx(tuple(np.quantile(naive, [0.025, 0.975])), abs=1e-9)


def test_kendall_of_more_points_than_fit_as_pairs_is_the_same_statistic() -> None:
    random = np.random.default_rng(8)
    x = random.normal(size=2_200)
    y = x + random.normal(size=2_200)
    result = correlation(x.tolist(), y.tolist(), kind="kendall", resamples=20)
    assert _value(result) == pytest.approx(_scipy("kendall", x, y), abs=1e-12)
    low, high = _bounds(result)
    assert low < _value(result) < high


@pytest.mark.parametrize("kind", KINDS)
def test_a_constant_has_no_correlation(kind: Kind) -> None:
    assert correlation([3, 3, 3], [1, 2, 3], kind=kind).value is None
    assert correlation([1], [1], kind=kind).value is None
    assert correlation([0.1] * 3, [1, 2, 3], kind=kind).value is None


def test_lists_of_different_length_have_no_correlation() -> None:
    with pytest.raises(ValueError, match="2 values of x but 1 of y"):
        correlation([1, 2], [1])


# Slope


def test_the_slope_is_that_of_scipy() -> None:
    random = np.random.default_rng(6)
    x = random.normal(1e4, 1, 50)
    y = 2 * x + random.normal(size=50)
    assert _value(slope(x.tolist(), y.tolist())) == pytest.approx(stats.linregress(x, y).slope)


def test_the_interval_of_the_slope_is_that_of_the_samples_written_out() -> None:
    x, y = [1.0, 2, 4, 8, 5, 3, 6], [2.0, 1, 5, 6, 6, 2, 4]
    result = slope(x, y, seed=5, resamples=100)
    naive = [
        stats.linregress([x[c] for c in s], [y[c] for c in s]).slope
        for s in _written_out(7, 100, 5)
    ]
    assert _bounds(result) == pytest.approx(tuple(np.quantile(naive, [0.025, 0.975])))


def test_a_point_more_per_doubling_is_a_length_slope_of_one() -> None:
    assert _value(length_slope([1, 2, 3, 4], [50, 100, 200, 400])) == pytest.approx(1)


def test_answers_of_one_length_have_no_length_slope() -> None:
    assert length_slope([1, 2, 3], [80, 80, 80]).value is None


def test_an_answer_of_no_length_is_an_error() -> None:
    with pytest.raises(ValueError, match="positive"):
        length_slope([1, 2], [0, 10])


# Cronbach's alpha


def _cronbach(table: Array) -> float:
    """From the covariance matrix: k / (k - 1) (1 - trace / sum), another road than ours."""
    covariance = np.cov(table, rowvar=False)
    k = table.shape[1]
    return float(k / (k - 1) * (1 - np.trace(covariance) / covariance.sum()))


def test_cronbachs_alpha_by_hand() -> None:
    # Items have variance 1 each, their sums 3, 3, 6 have variance 3: 2 / 1 (1 - 2 / 3) = 2 / 3,
    # which is what Spearman and Brown give for two items with r = 1/2: 2 r / (1 + r).
    assert _value(cronbach_alpha([(1, 2), (2, 1), (3, 3)])) == pytest.approx(2 / 3)


def test_items_that_are_the_same_have_an_alpha_of_one() -> None:
    assert _value(cronbach_alpha([(1, 1, 1), (4, 4, 4), (2, 2, 2)])) == pytest.approx(1)


def test_items_that_vary_against_each_other_have_an_alpha_below_zero() -> None:
    # Variances 1 and 7/3; the sums 4, 4, 3 have 1/3: 2 / 1 (1 - 10/3 / (1/3)) = -18.
    assert _value(cronbach_alpha([(1, 3), (2, 2), (3, 0)])) == pytest.approx(-18)


@given(
    st.integers(2, 5).flatmap(
        lambda k: st.lists(
            st.lists(st.integers(1, 5), min_size=k, max_size=k), min_size=3, max_size=20
        )
    )
)
@settings(max_examples=50)
def test_cronbachs_alpha_is_that_of_the_covariance_matrix(items: list[list[int]]) -> None:
    found = cronbach_alpha(items, resamples=1).value
    table = np.array(items, dtype=float)
    if np.cov(table, rowvar=False).sum() < 1e-9:
        assert found is None
    else:
        assert found == pytest.approx(_cronbach(table))


def test_the_interval_of_cronbachs_alpha_is_that_of_the_samples_written_out() -> None:
    random = np.random.default_rng(2)
    level = random.normal(3, 1, 12)
    table = np.column_stack([level + random.normal(0, 0.5, 12) for _ in range(3)])
    clusters = [i // 2 for i in range(12)]
    result = cronbach_alpha(table.tolist(), clusters, seed=4, resamples=200)
    assert result.clusters == 6
    naive = []
    for sample in _written_out(6, 200, 4):
        rows = [i for c in sample for i in (2 * c, 2 * c + 1)]
        naive.append(_cronbach(table[rows]))
    assert _bounds(result) == pytest.approx(tuple(np.quantile(naive, [0.025, 0.975])))


@pytest.mark.parametrize("items", [[], [(1, 2)], [(1,), (2,)], [(1, 3), (3, 1)], [(2, 2)] * 4])
def test_alpha_needs_two_items_two_units_and_sums_that_differ(items: list[tuple[int]]) -> None:
    assert cronbach_alpha(items).value is None


def test_a_unit_that_lacks_an_item_is_an_error() -> None:
    with pytest.raises(ValueError, match="one number per item"):
        cronbach_alpha([(1, 2), (1,)])


# Two groups


def test_a_difference_is_that_of_the_means_and_its_interval_that_of_two_samples() -> None:
    x, y = [4.0, 5, 3, 4, 5, 5, 2, 4], [1.0, 2, 3, 2, 1]
    result = difference(x, y, seed=3)
    assert _value(result) == pytest.approx(4 - 1.8)
    assert result.clusters == 13
    reference = stats.bootstrap(
        (x, y), lambda a, b, axis: np.mean(a, axis=axis) - np.mean(b, axis=axis),
        method="percentile", n_resamples=20_000, random_state=1,
    )  # fmt: skip
    low, high = _bounds(result)
    assert low == pytest.approx(reference.confidence_interval.low, abs=0.06)
    assert high == pytest.approx(reference.confidence_interval.high, abs=0.06)


def test_groups_of_one_size_are_not_drawn_alike() -> None:
    low, high = _bounds(difference([1.0, 2, 3, 4], [1.0, 2, 3, 4]))
    assert low < 0 < high


def test_a_difference_needs_two_values_in_each_group_for_an_interval() -> None:
    assert difference([3.0], [1.0, 2.0]) == Interval(1.5, None, None, 3)
    assert difference([], [1.0]).value is None


# Units measured in several replicates


def test_one_replicate_is_a_plain_mean_over_clusters() -> None:
    row, labels = [1.0, 5, 5, 2], ["a", "b", "b", "c"]
    assert crossed_bootstrap([row], labels, seed=4) == cluster_bootstrap(row, labels, seed=4)
    assert crossed_bootstrap([]) == Interval(None, None, None, 0)


def test_the_interval_covers_what_units_and_replicates_vary_by() -> None:
    # v[s, d] = u[s] + w[d]: the variance of the mean of a resample is that of a mean of 40 draws
    # from u plus that of a mean of 30 draws from w (Owen 2007, section 3, without interaction).
    random = np.random.default_rng(0)
    u, w = random.normal(0, 1, 40), random.normal(0, 2, 30)
    result = crossed_bootstrap((u[:, None] + w[None, :]).tolist(), seed=1)
    spread = math.sqrt(u.var() / 40 + w.var() / 30)
    low, high = _bounds(result)
    assert _value(result) == pytest.approx(u.mean() + w.mean())
    assert (high - low) / 2 == pytest.approx(1.96 * spread, rel=0.05)
    assert result.clusters == 30


def test_replicates_that_agree_add_nothing_to_the_interval() -> None:
    row, labels = np.random.default_rng(5).normal(size=60).tolist(), [n // 2 for n in range(60)]
    one, many = cluster_bootstrap(row, labels), crossed_bootstrap([row] * 4, labels)
    assert _value(one) == pytest.approx(_value(many))
    assert _bounds(many) == pytest.approx(_bounds(one), abs=0.01)


def test_blocks_of_resamples_make_no_difference_to_a_crossed_interval() -> None:
    random = np.random.default_rng(2)
    table = random.normal(size=(3, 900)).tolist()  # 10,000 x 900 resamples take several blocks
    low, high = _bounds(crossed_bootstrap(table))
    assert low < _value(crossed_bootstrap(table)) < high


def test_a_replicate_that_lacks_a_unit_is_an_error() -> None:
    with pytest.raises(ValueError, match="one number per unit"):
        crossed_bootstrap([[1.0, 2.0], [1.0]])
