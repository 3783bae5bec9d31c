"""Medians within clusters (the runs of a domain), and intervals (95 %) whose units are clusters. Pure.

The intervals are of shares, medians and typical values.

Sources: for shares, E. B. Wilson, "Probable inference, the law of succession, and statistical inference", 1927, with
the effective sample size and the t quantile of E. L. Korn and B. I. Graubard, 1998, and near 0 and 1 as modified by
L. D. Brown, T. T. Cai and A. DasGupta, "Interval estimation for a binomial proportion", 2001; for the median, its order
statistics (H. A. David, "Order Statistics"), interpolated as by T. P. Hettmansperger and S. J. Sheather, 1986; for the
typical value, J. L. Hodges and E. L. Lehmann, "Estimates of location based on rank tests", 1963, with a variance as of
P. K. Sen, "On some convergence properties of U-statistics", 1960; for few large clusters, R. Ibragimov and U. K.
Müller, "t-statistic based correlation and heterogeneity robust inference", 2010.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def order_within(order: Ints, clusters: Ints) -> Ints:
    """The order by cluster, and within each as before: `numpy.lexsort` with a faster sort.

    Args:
        order: positions of the pairs in the order of their values.
        clusters: code of the cluster of each pair.
    """
    for shift in range(0, max(int(clusters.max(initial=0)).bit_length(), 1), 16):
        digit = (clusters[order] >> shift).astype(np.uint16)  # numpy sorts these by radix, in linear time
        order = order[np.argsort(digit, kind="stable")]
    return order


def cluster_medians(values: Floats, clusters: Ints, count: int) -> Floats:
    """The median of each cluster; of an even number of values, the mean of the middle two (of opposite infinities, 0).

    Args:
        values: one per pair, infinite ones allowed.
        clusters: code of the cluster of each pair; fastest if they are sorted.
        count: number of clusters.
    """
    if not len(values):
        return np.zeros(count)
    if (clusters[1:] < clusters[:-1]).any():
        values = values[order_within(np.arange(len(values)), clusters)]
    medians = np.empty(count)
    for members, places in blocks(np.bincount(clusters, minlength=count)):
        size = places.shape[1]
        block = values[places]
        block.sort(axis=1)
        with np.errstate(invalid="ignore"):
            medians[members] = (block[:, (size - 1) // 2] + block[:, size // 2]) / 2
    medians[np.isnan(medians)] = 0.0
    return medians


def blocks(sizes: Ints) -> Iterator[tuple[Ints, Ints]]:
    """Clusters of the same size as the rows of a matrix, so that all of them are sorted at once.

    Args:
        sizes: the number of values of each cluster; values are in the order of clusters.

    Yields:
        Codes of clusters, and the positions of their values, clusters x size.
    """
    starts = np.cumsum(sizes) - sizes
    by_size = np.argsort(sizes, kind="stable")
    for members in np.split(by_size, np.flatnonzero(np.diff(sizes[by_size])) + 1):
        yield members, starts[members][:, None] + np.arange(int(sizes[members[0]]))


def renumbered(codes: npt.NDArray[Any]) -> tuple[Ints, int]:
    """The codes that occur, numbered anew in their order; and how many there are."""
    present = np.bincount(codes) > 0
    return (np.cumsum(present) - 1)[codes], int(np.count_nonzero(present))


def middle(values: Floats) -> float:
    """The median of all values (one or more), as of one cluster."""
    return float(cluster_medians(values, np.zeros(len(values), dtype=np.int64), 1)[0])


CONFIDENCE = 0.95
EQUIVALENCE_CONFIDENCE = 0.90
"""Two one-sided tests at 5 % are an interval of 90 %."""
PRIOR_CLUSTERS = 2.0
"""Weight of the assumption that all runs of a cluster agree."""
RARE = 3.5
"""Shares of fewer effective pairs have ends from the Poisson distribution, where Wilson's leave out too much."""
LEAST_CLUSTERS = 3
LEAST_VALUES = 6
"""With fewer values Hodges and Lehmann's interval has no ends: all may be on one side by chance in 1 of 16 or more."""
EXACT_RANKS = 50
"""Up to so many values the ranks of Hodges and Lehmann's interval are exact, from a normal approximation above."""
FEW_VALUES = 200
"""Up to so many values the means of all their pairs are made, which takes a third of the time of the bisection."""
INTERPOLATED_FROM = 50
"""From so many clusters on, the interval of the median is interpolated between order statistics."""


def t_quantile(confidence: float, df: float) -> float:
    """How many standard errors a two-sided t interval reaches to each side."""
    from scipy.special import stdtrit

    return float(stdtrit(df, (1 + confidence) / 2))


def share_intervals(counts: Ints | Floats, sizes: Ints | Floats) -> tuple[Floats, Floats]:
    """Wilson's intervals of shares, with effective n from the design effect of clusters, and a t quantile.

    Args:
        counts: how many pairs of each cluster are of each kind, clusters x kinds.
        sizes: the number of pairs of each cluster, at least 1; two or more clusters.

    Returns:
        The lower and the upper ends, one per kind, from 0 to 1; they contain the share.
    """
    clusters, n = len(sizes), float(sizes.sum())
    share = counts.sum(axis=0) / n
    effective = n / _design_effects(counts, sizes, share)
    t = t_quantile(CONFIDENCE, clusters - 1)
    centre = (share + t**2 / (2 * effective)) / (1 + t**2 / effective)
    half = t / (1 + t**2 / effective) * np.sqrt(share * (1 - share) / effective + t**2 / (4 * effective**2))
    low = np.minimum(centre - half, _rare(share, effective))
    high = np.maximum(centre + half, 1 - _rare(1 - share, effective))
    return np.clip(np.minimum(low, share), 0, 1), np.clip(np.maximum(high, share), 0, 1)


def _design_effects(counts: Ints | Floats, sizes: Ints | Floats, share: Floats) -> Floats:
    """By how much the clusters make the variance of each share larger: 1 to the (weighted) mean size of clusters.

    An estimate from few clusters would often be too small, and there is none from none. So it is drawn towards the
    largest, at which all runs of a cluster count as one: that has the weight of `PRIOR_CLUSTERS` clusters.
    """
    clusters, n = len(sizes), float(sizes.sum())
    largest = float(np.square(sizes, dtype=np.float64).sum()) / n
    residuals = counts - share * sizes[:, None]
    variance = clusters / (clusters - 1) * np.square(residuals).sum(axis=0) / n**2
    between = (share > 0) & (share < 1)
    seen = np.full(len(share), largest)
    seen[between] = np.maximum(variance[between] * n / (share[between] * (1 - share[between])), 1.0)
    informed = np.minimum(np.count_nonzero(counts, axis=0), np.count_nonzero(counts < sizes[:, None], axis=0))
    effects: Floats = (informed * seen + PRIOR_CLUSTERS * largest) / (informed + PRIOR_CLUSTERS)
    return effects


def _rare(share: Floats, effective: Floats) -> Floats:
    """Lower ends of shares of few domains, from the Poisson distribution (Brown, Cai and DasGupta 2001); 1 for others.

    Without this, one domain in 50 excludes shares below 0.35 %, although it occurs with 0.3 % in one sample of seven.
    """
    from scipy.special import gammaincinv

    count = share * effective
    few = (count > 0) & (count < RARE)
    ends = np.ones(len(share))
    ends[few] = gammaincinv(count[few], 1 - CONFIDENCE) / effective[few]
    return ends


def median_interval(low: Floats, high: Floats, *, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The interval of the median of independent values (medians of domains), from their order statistics.

    Its coverage depends on the number of values, not on their distribution: below `INTERPOLATED_FROM` values it is at
    least `confidence`; from there on the ends are interpolated, and it is between those of the two order statistics.

    Args:
        low: lower bounds of the values; where a value is known, `low == high`.
        high: upper bounds.

    Returns:
        The lower and the upper end; infinite with too few values (for 95 %: below 6).
    """
    from scipy.special import bdtr

    n = len(low)
    positions = np.arange(n // 2 + 1)
    coverages = 1 - 2 * bdtr(positions - 1, n, 0.5)
    coverages[0] = 1.0
    place = int(np.flatnonzero(coverages >= confidence)[-1])
    if place == 0:
        return -math.inf, math.inf
    lows, highs = np.sort(low), np.sort(high)[::-1]
    if n < INTERPOLATED_FROM or place + 1 >= len(coverages):
        return float(lows[place - 1]), float(highs[place - 1])
    excess = (coverages[place] - confidence) / (coverages[place] - coverages[place + 1])
    inward = float((n - place) * excess / (place + (n - 2 * place) * excess))
    return _between(lows[place - 1], lows[place], inward), _between(highs[place - 1], highs[place], inward)


def _between(outer: float, inner: float, inward: float) -> float:
    """The point at this part of the way from `outer` to `inner`; an infinite end stays as it is."""
    return float(outer + (inner - outer) * inward) if math.isfinite(outer) and math.isfinite(inner) else float(outer)


def hodges_lehmann(low: Floats, high: Floats, *, confidence: float = CONFIDENCE) -> tuple[float, float, float, float]:
    """The Hodges-Lehmann estimate, the median of the means of all pairs of values (each with itself, too), and its
    interval: that of the signed-rank test, but as wide as the values, not the test's null hypothesis, let expect.

    The test assumes a symmetric distribution; where some domains gain and others do not, its own interval would hold
    in 91 to 95 % only.

    Args:
        low: lower bounds of the values, one or more; where a value is known, `low == high`.
        high: upper bounds.

    Returns:
        The least and the largest estimate that the bounds allow, equal if all values are known; the lower and the upper
        end: of 6 or 7 values the outermost
        whatever the confidence, of fewer infinite.
    """
    lows, mirrored = np.sort(low), np.sort(-high)
    n = len(lows)
    means = n * (n + 1) // 2
    least, most = _middle_mean(lows), -_middle_mean(mirrored)
    rank = _outer_rank(n, confidence)
    if rank:
        width = max(_relative_width(lows, least), _relative_width(mirrored, -most))
        rank = max(math.floor(means / 2 - (means / 2 - rank) * width), 1)
    ends = (_pair_mean(lows, rank), -_pair_mean(mirrored, rank)) if rank else (-math.inf, math.inf)
    return (least, max(least, most), min(ends[0], least), max(ends[1], most))


def _middle_mean(ordered: Floats) -> float:
    """The median of the means of all pairs."""
    n = len(ordered)
    means = n * (n + 1) // 2
    below = _pair_mean(ordered, (means + 1) // 2)
    above = below if means % 2 else _pair_mean(ordered, means // 2 + 1)
    return (below + above) / 2 if math.isfinite(above) else below


def _pair_mean(ordered: Floats, rank: int) -> float:
    """The mean with this rank, from 1, among those of all pairs of sorted values; of opposite infinities, the lower.

    Those of few values are all made. Of many it is found by bisection: how many means are below a number is known
    without making them all, and 100,000 domains have five billion.
    """
    finite = ordered[np.isfinite(ordered)]
    if len(finite) == len(ordered) <= FEW_VALUES:
        first, second = _all_pairs(len(ordered))
        return float(np.partition(ordered[first] + ordered[second], rank - 1)[rank - 1] / 2)
    if not len(finite) or _means_up_to(ordered, float(finite[0]) - 1.0) >= rank:
        return -math.inf if len(ordered) and ordered[0] < math.inf else math.inf
    below, above = float(finite[0]) - 1.0, float(finite[-1])
    counts = [_means_up_to(ordered, below), _means_up_to(ordered, above)]
    if counts[1] < rank:
        return math.inf
    while above - below > 1e-9:
        # Interpolated, but never near an end: the number of means grows almost evenly in the middle.
        share = (rank - 0.5 - counts[0]) / (counts[1] - counts[0])
        at = below + (above - below) * min(max(share, 0.02), 0.98)
        count = _means_up_to(ordered, at)
        if count >= rank:
            above, counts[1] = at, count
        else:
            below, counts[0] = at, count
    partner = np.searchsorted(finite, 2 * above - finite, side="right") - 1
    return float((finite + finite[partner])[partner >= 0].max() / 2)


@functools.cache
def _all_pairs(n: int) -> tuple[Ints, Ints]:
    """The places of both values of each pair of n values."""
    return np.triu_indices(n)


def _means_up_to(ordered: Floats, limit: float) -> int:
    pairs = int(np.searchsorted(ordered, 2 * limit - ordered, side="right").sum())
    return (pairs + int(np.searchsorted(ordered, limit, side="right"))) // 2


def _relative_width(ordered: Floats, estimate: float) -> float:
    """How much wider than the signed-rank test's the interval has to be: by the spread of the share of partners with
    whom a value's mean is above the estimate (uniform, so 1/12, if the distribution is symmetric)."""
    if not math.isfinite(estimate):
        return 1.0
    partners = 2 * estimate - ordered
    both = np.searchsorted(ordered, partners, side="left") + np.searchsorted(ordered, partners, side="right")
    return float(both.std() / (2 * len(ordered)) * math.sqrt(12))


@functools.cache
def _outer_rank(n: int, confidence: float) -> int:
    """The rank, from 1, of the pairs' mean at which the signed-rank test's interval begins; 0: there is none."""
    from scipy.special import ndtri

    outside = (1 - confidence) / 2
    if n > EXACT_RANKS:
        return int(n * (n + 1) / 4 + ndtri(outside) * math.sqrt(n * (n + 1) * (2 * n + 1) / 24))
    chances = np.ones(1)
    for rank in range(1, n + 1):
        chances = (np.pad(chances, (0, rank)) + np.pad(chances, (rank, 0))) / 2
    return max(int(np.searchsorted(np.cumsum(chances), outside, side="right")), int(n >= LEAST_VALUES))


def few_clusters_interval(medians: Floats) -> tuple[float, float] | None:
    """The t interval of the mean of what each large cluster (AS, vantage point) shows alone.

    None below `LEAST_CLUSTERS`, and where an estimate is infinite.

    Valid for few and unequal clusters, whatever the dependence within them (Ibragimov and Müller 2010).

    Args:
        medians: one finite estimate per cluster.
    """
    count = len(medians)
    if count < LEAST_CLUSTERS or not np.isfinite(medians).all():
        return None
    half = t_quantile(CONFIDENCE, count - 1) * float(medians.std(ddof=1)) / math.sqrt(count)
    mean = float(medians.mean())
    return mean - half, mean + half
