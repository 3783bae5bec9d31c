"""Rows of Table 2: shares of measurement runs by speed-up, median, tests, intervals and verdict. Pure.

The unit of every test and interval is the domain, as runs of one domain are not independent. A pair of which only a
bound is known counts where the bound decides, is `undecided` elsewhere, and is never dropped. See
docs/design/analysis.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from analysis.measures.arrays import on_all_cores
from analysis.measures.judgement import judge
from analysis.measures.pairs import Pairs, PlannedPairs, Samples, pair
from analysis.measures.rows import (
    BIN_EDGES,
    BIN_NAMES,
    MINIMUM_DOMAINS,
    Failures,
    Intention,
    LargerClusters,
    Median,
    Share,
    SpeedupRow,
)
from analysis.measures.statistics.clusters import Floats, Ints, cluster_medians, middle
from analysis.measures.statistics.failures import mcnemar
from analysis.measures.statistics.intervals import (
    EQUIVALENCE_CONFIDENCE,
    few_clusters_interval,
    median_interval,
    share_intervals,
)
from analysis.measures.statistics.signed_rank import equivalence, sign_test, signed_rank
from analysis.measures.statistics.verdict import LEAST_MARGIN
from upshift.domain import Comparison


def row_of(pairs: Pairs, planned: PlannedPairs, comparison: Comparison, *, group: str = "") -> SpeedupRow:
    """One row, from its pairs as arrays; without q-values and verdict: see `judge`."""
    n = len(pairs.low)
    exact, faster, slower, tie = sides(pairs)
    undecided = ~(faster | slower | tie)
    edges = np.array(BIN_EDGES)
    first = np.searchsorted(edges, pairs.low, side="right")
    last = np.where(exact, first, np.searchsorted(edges, pairs.high, side="left"))
    bins = [(first == index) & (last == index) for index in range(len(BIN_NAMES))]
    spread = first != last
    maybe = [(first <= index) & (index <= last) for index in range(len(BIN_NAMES))] if spread.any() else bins
    sure = [faster, slower, tie, undecided, *bins, spread]
    possible = [faster | undecided, slower | undecided, tie, undecided, *maybe, spread]
    shares = _shares(sure, possible, pairs)
    logs = _Logs.of(pairs)
    low, high = logs.medians(pairs.domain, pairs.domains)
    median, p_wilcoxon = _median(low, high), signed_rank(low, high)
    same = Intention(
        n=n, domains=pairs.domains, faster=shares[0], slower=shares[1], median=median, p_wilcoxon=p_wilcoxon
    )
    return SpeedupRow(
        comparison=comparison,
        group=group,
        n=n,
        domains=pairs.domains,
        faster=shares[0],
        slower=shares[1],
        tie=shares[2],
        undecided=shares[3],
        bins=tuple(shares[4:-1]),
        bin_undecided=shares[-1],
        bounds=int(np.count_nonzero(~exact)),
        median=median,
        p_wilcoxon=p_wilcoxon if n else None,
        p_clusters=signed_rank(logs.low, logs.high, pairs.domain, orders=(logs.low_order, logs.high_order))
        if n
        else None,
        p_sign=sign_test(low, high) if n else None,
        p_equivalence=equivalence(low, high, LEAST_MARGIN) if n else None,
        larger={name: _larger(pairs, clusters, logs, (low, high)) for name, clusters in pairs.larger.items()},
        intention=same if planned.pairs is pairs else _intention(planned.pairs),
        failures=_failures(planned),
        excluded=pairs.excluded,
    )


def sides(pairs: Pairs) -> tuple[npt.NDArray[np.bool_], ...]:
    """For each pair whether its speed-up is known exactly, and whether it is faster, slower, a tie."""
    exact = pairs.low == pairs.high
    tie = exact & (pairs.low == 1.0)
    # A bound excludes its own value, so a bound of exactly 1 decides.
    return exact, (pairs.low >= 1.0) & ~tie, (pairs.high <= 1.0) & ~tie, tie


@dataclass(frozen=True, slots=True, eq=False)
class _Logs:
    """Log speed-ups with their orders, as sorting is most of the work of a large table."""

    low: Floats
    high: Floats
    """The same object as `low` where all are known."""
    low_order: Ints
    high_order: Ints

    @classmethod
    def of(cls, pairs: Pairs) -> _Logs:
        with np.errstate(divide="ignore"):
            low = np.log(pairs.low)
            order = np.argsort(low)
            if np.array_equal(pairs.low, pairs.high):
                return cls(low, low, order, order)
            high = np.log(pairs.high)
        return cls(low, high, order, np.argsort(high))

    def medians(self, clusters: Ints, count: int) -> tuple[Floats, Floats]:
        """Lower and upper bounds of the median of each cluster; the same object where all are known."""
        low = cluster_medians(self.low, clusters, count, order=self.low_order)
        if self.low is self.high:
            return low, low
        return low, cluster_medians(self.high, clusters, count, order=self.high_order)


def _shares(
    sure: Sequence[npt.NDArray[np.bool_]], possible: Sequence[npt.NDArray[np.bool_]], pairs: Pairs
) -> list[Share]:
    n = len(pairs.low)
    counts = [int(np.count_nonzero(part)) for part in sure]
    most = [int(np.count_nonzero(part)) for part in possible]
    if pairs.domains < MINIMUM_DOMAINS:
        return [Share(count=c, n=n, possible=m) for c, m in zip(counts, most, strict=True)]
    sizes = np.bincount(pairs.domain, minlength=pairs.domains)
    lows, highs = share_intervals(_per_domain(sure, pairs), sizes)
    if counts != most:
        highs = share_intervals(_per_domain(possible, pairs), sizes)[1]
    return [
        Share(count=c, n=n, possible=m, low=float(low), high=float(high))
        for c, m, low, high in zip(counts, most, lows, highs, strict=True)
    ]


def _per_domain(parts: Sequence[npt.NDArray[np.bool_]], pairs: Pairs) -> Ints:
    """Number of pairs of each kind, domains x kinds."""
    counts = [np.bincount(pairs.domain[part], minlength=pairs.domains) for part in parts]
    return np.stack(counts, axis=1).astype(np.int64, copy=False)


def _median(low: Floats, high: Floats) -> Median:
    if len(low) == 0:
        return Median(value=None, least=None, most=None)
    least, most = math.exp(middle(low)), math.exp(middle(high))
    value = least if least == most else None
    if len(low) < MINIMUM_DOMAINS:
        return Median(value=value, least=least, most=most)
    outer = median_interval(low, high)
    inner = median_interval(low, high, confidence=EQUIVALENCE_CONFIDENCE)
    return Median(
        value=value,
        least=least,
        most=most,
        low=math.exp(outer[0]),
        high=math.exp(outer[1]),
        low90=math.exp(inner[0]),
        high90=math.exp(inner[1]),
    )


def _larger(pairs: Pairs, clusters: Ints, logs: _Logs, of_domains: tuple[Floats, Floats]) -> LargerClusters:
    """The row with these clusters as the unit, from the medians of domains.

    The parts of each domain in each cluster are medians first, so a domain with many runs counts no more.
    """
    count = int(clusters.max()) + 1 if len(clusters) else 0
    cluster = np.zeros(pairs.domains, dtype=np.int64)
    cluster[pairs.domain] = clusters
    low, high = of_domains
    if not np.array_equal(cluster[pairs.domain], clusters):  # a domain in several of them
        parts, part = np.unique(pairs.domain * count + clusters, return_inverse=True)
        low, high = logs.medians(part.astype(np.int64, copy=False), len(parts))
        cluster = parts % count
    # Bounds have no mean.
    alone = few_clusters_interval(cluster_medians(low, cluster, count)) if np.array_equal(low, high) else None
    return LargerClusters(
        clusters=count,
        p=signed_rank(low, high, cluster),
        low=None if alone is None else math.exp(alone[0]),
        high=None if alone is None else math.exp(alone[1]),
    )


def _intention(pairs: Pairs) -> Intention:
    _, faster, slower, tie = sides(pairs)
    undecided = ~(faster | slower | tie)
    shares = _shares([faster, slower], [faster | undecided, slower | undecided], pairs)
    low, high = _Logs.of(pairs).medians(pairs.domain, pairs.domains)
    return Intention(
        n=len(pairs.low),
        domains=pairs.domains,
        faster=shares[0],
        slower=shares[1],
        median=_median(low, high),
        p_wilcoxon=signed_rank(low, high),
    )


def _failures(planned: PlannedPairs) -> Failures:
    config, vs, domains = planned.config_failed, planned.vs_failed, planned.pairs.domains
    both = int(np.count_nonzero(config & vs))
    excess = np.bincount(planned.pairs.domain, config - vs, minlength=domains).astype(np.float64, copy=False)
    return Failures(config_only=int(config.sum()) - both, vs_only=int(vs.sum()) - both, both=both, p=mcnemar(excess))


def table2(
    groups: Mapping[str, Samples], comparisons: Sequence[Comparison], *, only_present: bool = False
) -> list[SpeedupRow]:
    """One row per group and comparison. q-values count all effects of the table, those of all groups together.

    Args:
        groups: name -> its samples; a table without groups is one group with an empty name.
        only_present: leave out comparisons of which a group does not have both sides.
    """
    asked = [
        (name, samples, comparison)
        for name, samples in groups.items()
        for comparison in comparisons
        if not only_present or samples.configuration.present() >= {comparison.config, comparison.vs}
    ]
    return judge(on_all_cores(_row, asked))


def _row(asked: tuple[str, Samples, Comparison]) -> SpeedupRow:
    group, samples, comparison = asked
    return row_of(*pair(samples, comparison.config, comparison.vs), comparison, group=group)
