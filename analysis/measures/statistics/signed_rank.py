"""Wilcoxon's signed-rank test, for clusters as of Datta and Satten, and the sign test. Pure; two-sided p-values.

Sources: F. Wilcoxon, "Individual comparisons by ranking methods", 1945; zeros as of J. W. Pratt, 1959; S. Datta and
G. A. Satten, "A signed-rank test for clustered data", Biometrics 64, 2008.

Under the null hypothesis the labels of the two configurations are exchangeable in each cluster: its values have
the same distribution with all signs swapped. Whoever knows only bounds of values gets the largest p-value of those
that the bounds allow.
"""

from __future__ import annotations

import numpy as np

from analysis.measures.statistics.clusters import Floats, Ints, order_within

EXACT_CLUSTERS = 16
"""Up to so many clusters that differ from zero, all 2^(n-1) swaps of signs are computed."""


def signed_rank(
    low: Floats, high: Floats, clusters: Ints | None = None, *, orders: tuple[Ints, Ints] | None = None
) -> float:
    """The p-value of the signed-rank test of Datta and Satten; with one value per cluster, Wilcoxon's.

    The statistic is the mean of Wilcoxon's over all ways to draw one value of each cluster, so large clusters count
    no more than small ones. Exact up to `EXACT_CLUSTERS` clusters, from a normal approximation above.

    Args:
        low: lower bounds of the values; where a value is known, `low == high`.
        high: upper bounds.
        clusters: code of the cluster of each value; None: each value is a cluster.
        orders: what sorts `low`, and `high`, if it is known.
    """
    if len(low) == 0:
        return 1.0
    codes = np.arange(len(low), dtype=np.int64) if clusters is None else clusters
    of_low, of_high = orders or (None, None)
    first = cluster_scores(low, codes, order=of_low)
    if np.array_equal(low, high):
        return _p(first)
    last = cluster_scores(high, codes, order=of_high)
    # The statistic grows with each value, so its extremes are those of the bounds.
    return 1.0 if first.sum() <= 0.0 <= last.sum() else max(_p(first), _p(last))


def cluster_scores(values: Floats, clusters: Ints, *, order: Ints | None = None) -> Floats:
    """What each cluster adds to the statistic: its mean of sign x expected rank among one value of each other cluster.

    Under the null hypothesis the sign of each is random, and its absolute value fixed.

    Args:
        order: what sorts the values, if it is known.
    """
    sizes = np.bincount(clusters)
    weights = 1.0 / sizes[clusters]
    magnitudes = np.abs(values)
    # Absolute values of sorted ones fall, then rise: a stable sort merges the two runs.
    before = np.arange(len(values)) if order is None else order
    order = before[np.argsort(magnitudes[before], kind="stable")]
    ordered = magnitudes[order]
    # For each value the expected number of clusters with a smaller one; equal ones count half.
    running = np.concatenate(([0.0], np.cumsum(weights[order])))
    left, right = _tie_bounds(ordered)
    below = np.empty(len(values))
    below[order] = (running[left] + running[right]) / 2
    alone = len(sizes) == len(values)
    own = 0.5 if alone else _share_below_within(magnitudes, order, clusters, sizes)
    scores = np.bincount(clusters, np.sign(values) * (1.0 + below - own) * weights)
    return scores.astype(np.float64, copy=False)


def _tie_bounds(ordered: Floats) -> tuple[Ints, Ints]:
    """For each element of a sorted array, the number of smaller ones, and of those that are not larger."""
    changes = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
    starts = np.concatenate(([0], changes))
    ends = np.concatenate((changes, [len(ordered)]))
    lengths = ends - starts
    return np.repeat(starts, lengths), np.repeat(ends, lengths)


def _share_below_within(magnitudes: Floats, order: Ints, clusters: Ints, sizes: Ints) -> Floats:
    """For each value the share of its own cluster with a smaller one; equal ones, itself included, count half."""
    order = order_within(order, clusters)
    ordered, code = magnitudes[order], clusters[order]
    changes = np.flatnonzero((ordered[1:] != ordered[:-1]) | (code[1:] != code[:-1])) + 1
    starts = np.concatenate(([0], changes))
    ends = np.concatenate((changes, [len(ordered)]))
    middle = np.repeat((starts + ends) / 2, ends - starts) - (np.cumsum(sizes) - sizes)[code]
    shares = np.empty(len(magnitudes))
    shares[order] = middle / sizes[code]
    return shares


def equivalence(low: Floats, high: Floats, margin: float) -> float:
    """The p-value of two one-sided signed-rank tests (D. J. Schuirmann, 1987): above -margin, and below +margin?

    A few large values are evidence against it, although the median is the same with them.

    Args:
        low: lower bounds of the values, one per cluster; where a value is known, `low == high`.
        high: upper bounds.
        margin: above 0.
    """
    if len(low) == 0:
        return 1.0
    codes = np.arange(len(low), dtype=np.int64)
    return max(_p(cluster_scores(inner + margin, codes), one_sided=True) for inner in (low, -high))


def _p(scores: Floats, *, one_sided: bool = False) -> float:
    """The p-value: two-sided, or (`one_sided`) that of a sum as large as this."""
    from scipy.special import ndtr

    sizes = np.abs(scores[scores != 0.0])
    if len(sizes) == 0:
        return 1.0
    statistic = float(scores.sum())
    if one_sided and statistic <= 0.0:
        return 1.0  # at least 0.5; which it is does not matter
    statistic = abs(statistic)
    sides = 1 if one_sided else 2
    if len(sizes) > EXACT_CLUSTERS:
        return float(sides * ndtr(-statistic / np.sqrt(np.square(sizes).sum())))
    sums = np.zeros(1)
    for size in sizes[1:]:
        sums = np.concatenate((sums + size, sums - size))
    # The first sign is fixed, as swapping all of them changes no absolute value. Sums may differ in their last bits.
    # Both sides are equally likely, as are the signs of zeros: half of the two-sided p-value is the one-sided one.
    return float(np.mean(np.abs(sums + sizes[0]) >= statistic * (1 - 1e-12))) * sides / 2


def sign_test(low: Floats, high: Floats) -> float:
    """The exact p-value of the sign test: as many values above 0 as below? Zeros are left out."""
    from scipy.special import bdtr

    plus, minus = int(np.count_nonzero(low > 0)), int(np.count_nonzero(high < 0))
    zeros = int(np.count_nonzero((low == 0) & (high == 0)))
    undecided = len(low) - plus - minus - zeros
    # Undecided ones are given to the smaller side, as far as they reach.
    few, many = sorted((plus, minus))
    few = min(few + undecided, many)
    n = max(len(low) - zeros, 1)
    return min(1.0, float(2 * bdtr(few, n, 0.5))) if few < many else 1.0
