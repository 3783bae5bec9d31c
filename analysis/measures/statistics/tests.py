"""Tests of paired speed-ups and their q-values: signed-rank, sign, McNemar; two-sided if nothing else is said. Pure.

Sources: F. Wilcoxon, "Individual comparisons by ranking methods", 1945; zeros as of J. W. Pratt, 1959; S. Datta and
G. A. Satten, "A signed-rank test for clustered data", Biometrics 64, 2008; Q. McNemar, "Note on the sampling error of
the difference between correlated proportions", 1947; Y. Benjamini and Y. Hochberg, "Controlling the false discovery
rate", 1995; Y. Benjamini and D. Yekutieli, "The control of the false discovery rate in multiple testing under
dependency", 2001; W. H. Kruskal and W. A. Wallis, "Use of ranks in one-criterion variance analysis", 1952; B. L. Welch,
"On the comparison of several mean values: an alternative approach", 1951.

Under the null hypothesis the labels of the two configurations are exchangeable in each cluster: its values have
the same distribution with all signs swapped. Whoever knows only bounds of values gets the largest p-value of those
that the bounds allow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from analysis.measures.statistics.intervals import Floats, Ints, order_within

Mask = npt.NDArray[np.bool_]

_DIGITS = 12
"""Values that are the same to so many digits are ties. log(a/b) and log(b/a) differ in their last bits, so a median of
both is not always the 0 that it should be; and a first rank in place of a zero may halve the p-value."""

EXACT_CLUSTERS = 16
"""Up to so many clusters that differ from zero, all 2^(n-1) swaps of signs are computed."""


def signed_rank(low: Floats, high: Floats, clusters: Ints | None = None) -> float:
    """The p-value of the signed-rank test of Datta and Satten; with one value per cluster, Wilcoxon's.

    The statistic is the mean of Wilcoxon's over all ways to draw one value of each cluster, so large clusters count
    no more than small ones. Exact up to `EXACT_CLUSTERS` clusters, from a normal approximation above.

    Args:
        low: lower bounds of the values; where a value is known, `low == high`.
        high: upper bounds.
        clusters: code of the cluster of each value; None: each value is a cluster.
    """
    if len(low) == 0:
        return 1.0
    codes = np.arange(len(low), dtype=np.int64) if clusters is None else clusters
    order = np.argsort(np.abs(low))
    first = cluster_scores(low, codes, order=order)
    others = np.flatnonzero(low != high)
    if not len(others):
        return _p(first)
    last = cluster_scores(high, codes, order=_merged(order, others, np.abs(high)))
    # The statistic grows with each value, so its extremes are those of the bounds.
    return 1.0 if first.sum() <= 0.0 <= last.sum() else max(_p(first), _p(last))


def _merged(order: Ints, changed: Ints, values: Floats) -> Ints:
    """What sorts the values, if `order` did before these were changed: faster than to sort all of them again."""
    kept = np.ones(len(values), dtype=np.bool_)
    kept[changed] = False
    runs = np.concatenate((order[kept[order]], changed[np.argsort(values[changed])]))
    merged: Ints = runs[np.argsort(values[runs], kind="stable")]  # numpy's stable sort merges runs that are sorted
    return merged


def cluster_scores(values: Floats, clusters: Ints, *, order: Ints | None = None) -> Floats:
    """What each cluster adds to the statistic: its mean of sign x expected rank among one value of each other cluster.

    Under the null hypothesis the sign of each is random, and its absolute value fixed.

    Args:
        order: what sorts the absolute values, if it is known.
    """
    sizes, values = np.bincount(clusters), np.round(values, _DIGITS)
    magnitudes = np.abs(values)
    if order is None:
        order = np.argsort(magnitudes)
    of_cluster = (1.0 / sizes)[clusters]
    # For each value the expected number of clusters with a smaller one; equal ones count half.
    ordered, running = magnitudes[order], np.concatenate(([0.0], np.cumsum(of_cluster[order])))
    first, lengths = _ties(ordered[1:] != ordered[:-1])
    ranks = np.empty(len(values))
    ranks[order] = 1.0 + np.repeat((running[first] + running[first + lengths]) / 2, lengths)
    ranks -= 0.5 if len(sizes) == len(values) else _share_below_within(magnitudes, clusters, sizes, order)
    scores = np.bincount(clusters, np.sign(values) * ranks * of_cluster)
    return scores.astype(np.float64, copy=False)


def _ties(differs: Mask) -> tuple[Ints, Ints]:
    """Where each run of equal elements of a sorted array begins, and how long it is.

    Args:
        differs: of each element but the first, whether it is another one than that before it.
    """
    first = np.flatnonzero(np.append(True, differs))
    return first, np.diff(first, append=len(differs) + 1)


def _share_below_within(values: Floats, clusters: Ints, sizes: Ints, order: Ints) -> Floats:
    """For each value the share of its cluster with a smaller one; equal ones, itself included, count half.

    Args:
        order: what sorts the values.
    """
    order = order_within(order, clusters)
    ordered, of = values[order], np.repeat(np.arange(len(sizes)), sizes)
    first, lengths = _ties((ordered[1:] != ordered[:-1]) | (of[1:] != of[:-1]))
    of = of[first]
    shares = np.empty(len(values))
    shares[order] = np.repeat((first - (np.cumsum(sizes) - sizes)[of] + lengths / 2) / sizes[of], lengths)
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
    statistic = float(scores.sum()) if one_sided else abs(float(scores.sum()))
    if len(sizes) > EXACT_CLUSTERS:
        p = float(ndtr(-statistic / np.sqrt(np.square(sizes).sum())))
    else:
        sums = sizes[:1]  # with this sign of the first: with the other one all sums are the same, but negative
        for size in sizes[1:]:
            sums = np.concatenate((sums + size, sums - size))
        # Sums may differ in the last bits of their largest terms, also one that should be 0.
        least = statistic - 1e-12 * sizes.sum()
        p = float(np.mean(sums >= least) + np.mean(-sums >= least)) / 2
    return p if one_sided else min(2 * p, 1.0)


def domains_needed(effect: float, *, noise: float, runs: int, level: float, power: float = 0.9) -> int:
    """How many domains the signed-rank test of their medians needs to find a uniform effect.

    Source: G. E. Noether, "Sample size determination for some common nonparametric tests", 1987.

    Args:
        effect: in log units, above 0.
        noise: standard deviation of the log time of one download.
        runs: measurement runs of each domain.
        level: of the two-sided test.
        power: the chance to find it.
    """
    from scipy.special import ndtr, ndtri

    # The variance of a median of normal values: exact for one and for many, 2 % too small for three.
    spread = noise * math.sqrt(2) * math.sqrt(math.pi / 2 / (runs + math.pi / 2 - 1))
    above = float(ndtr(math.sqrt(2) * effect / spread))
    return math.ceil(float(ndtri(1 - level / 2) + ndtri(power)) ** 2 / (3 * (above - 0.5) ** 2))


def differ(values: Floats, groups: Ints) -> float:
    """The p-value of the hypothesis that values of all groups have the same size: the larger of two tests on ranks,
    Kruskal and Wallis's, which small groups do not mislead, and Welch's, which unequal spreads do not.

    Args:
        values: one per domain and group.
        groups: the group of each value: 0, 1, ...; two or more groups, each with two values or more.
    """
    from scipy.special import fdtrc

    ranks, _ = _ranks(values)
    sizes = np.bincount(groups)
    k = len(sizes)
    means = np.bincount(groups, ranks) / sizes
    # Ranks are whole numbers, so a group of equal ones has the variance of rounding.
    variances = np.maximum(np.bincount(groups, np.square(ranks - means[groups])) / (sizes - 1), 1 / 12)
    weights = sizes / variances
    overall = (weights * means).sum() / weights.sum()
    spread = (np.square(1 - weights / weights.sum()) / (sizes - 1)).sum()
    f = (weights * np.square(means - overall)).sum() / (k - 1) / (1 + 2 * (k - 2) / (k**2 - 1) * spread)
    return max(float(fdtrc(k - 1, (k**2 - 1) / (3 * spread), f)), kruskal_wallis(values, groups))


def kruskal_wallis(values: Floats, groups: Ints) -> float:
    """The p-value of Kruskal and Wallis's test, by its chi-squared approximation; arguments as of `differ`."""
    from scipy.special import chdtrc

    ranks, ties = _ranks(values)
    n, sizes = len(values), np.bincount(groups)
    between = (np.square(np.bincount(groups, ranks) - sizes * (n + 1) / 2) / sizes).sum()
    untied = 1 - float((ties**3 - ties).sum()) / (n**3 - n)
    return float(chdtrc(len(sizes) - 1, 12 * between / (n * (n + 1)) / untied)) if untied > 0 else 1.0


def _ranks(values: Floats) -> tuple[Floats, Floats]:
    """Ranks from 1, equal values with their mean; and how often each value occurs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: Floats = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    return ranks, counts.astype(np.float64)


def sign_test(low: Floats, high: Floats) -> float:
    """The exact p-value of the sign test: as many values above 0 as below? Zeros are left out."""
    from scipy.special import bdtr

    low, high = np.round(low, _DIGITS), np.round(high, _DIGITS)
    plus, minus = int(np.count_nonzero(low > 0)), int(np.count_nonzero(high < 0))
    zeros = int(np.count_nonzero((low == 0) & (high == 0)))
    undecided = len(low) - plus - minus - zeros
    # Undecided ones are given to the smaller side, as far as they reach.
    few, many = sorted((plus, minus))
    few = min(few + undecided, many)
    n = max(len(low) - zeros, 1)
    return min(1.0, float(2 * bdtr(few, n, 0.5))) if few < many else 1.0


def mcnemar(excess: Floats) -> float:
    """The exact p-value of McNemar's test: did one configuration fail more often than the other?

    The unit is the domain, as its runs fail together: a domain counts for the side that failed there more often. With
    one run per domain it is McNemar's test itself.

    Args:
        excess: per domain, the measurement runs in which only the configuration failed, less those in which only the
            reference failed.
    """
    return sign_test(excess, excess)


def benjamini_hochberg(p_values: Sequence[float]) -> list[float]:
    """q-values in the order of the p-values; for independent or positively dependent tests."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p)[::-1]
    ranks = np.arange(len(p), 0, -1)
    q = np.empty(len(p))
    q[order] = np.minimum.accumulate(np.minimum(p[order] * len(p) / ranks, 1.0))
    return [float(value) for value in q]


def benjamini_yekutieli(p_values: Sequence[float]) -> list[float]:
    """q-values in the order of the p-values, for any dependence."""
    factor = sum(1 / rank for rank in range(1, len(p_values) + 1))
    return [min(1.0, q * factor) for q in benjamini_hochberg(np.minimum(p_values, 1.0).tolist())]
