"""SplitParts of a row of Table 2: by what tells who gains, by provider, by larger clusters. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from analysis.measures.columns import Texts
from analysis.measures.pairs import Pairs
from analysis.measures.rows import LEAST_PART, Median, Split, SplitBy, SplitPart
from analysis.measures.statistics.intervals import Floats, Ints, cluster_medians, hodges_lehmann
from analysis.measures.statistics.tests import differ
from analysis.measures.verdicts import SIGNIFICANCE

SURE = 0.99
"""Confidence of the intervals of parts: several parts of several splits of several rows are looked at."""


@dataclass(frozen=True, slots=True, eq=False)
class LogSpeedups:
    """Bounds of log speed-ups."""

    low: Floats
    high: Floats
    """The same object as `low` where all are known."""

    @classmethod
    def of(cls, pairs: Pairs) -> LogSpeedups:
        bounds = np.flatnonzero(pairs.low != pairs.high)
        with np.errstate(divide="ignore"):
            low = np.log(pairs.low)
            if not len(bounds):
                return cls(low, low)
            high = low.copy()
            high[bounds] = np.log(pairs.high[bounds])
        return cls(low, high)

    def medians(self, clusters: Ints, count: int) -> tuple[Floats, Floats]:
        """Lower and upper bounds of the median of each cluster; the same object where all are known."""
        low = cluster_medians(self.low, clusters, count)
        return low, low if self.low is self.high else cluster_medians(self.high, clusters, count)


def by_cluster(
    pairs: Pairs, clusters: Ints, logs: LogSpeedups, of_domains: tuple[Floats, Floats]
) -> tuple[Floats, Floats, Ints]:
    """Lower and upper bounds of the median of each domain's pairs in each cluster, and the cluster."""
    cluster = np.zeros(pairs.domains, dtype=np.int64)
    cluster[pairs.domain] = clusters
    if np.array_equal(cluster[pairs.domain], clusters):
        return *of_domains, cluster
    count = int(clusters.max()) + 1  # a domain is in several of them
    key = pairs.domain * count + clusters
    is_present = np.bincount(key, minlength=pairs.domains * count) > 0
    parts = np.flatnonzero(is_present)
    return *logs.medians((np.cumsum(is_present) - 1)[key], len(parts)), parts % count


def typical_of_clusters(low: Floats, high: Floats, clusters: Ints, count: int) -> tuple[Floats, Floats]:
    """Lower and upper bounds of the Hodges-Lehmann estimate of each cluster, from those of its domains' medians."""
    order = np.argsort(clusters, kind="stable")
    ends = np.cumsum(np.bincount(clusters, minlength=count))[:-1]
    members = np.split(order, ends)
    bounds = np.array([hodges_lehmann(low[own], high[own])[:2] for own in members]).reshape(count, 2)
    return bounds[:, 0], bounds[:, 1]


@dataclass(frozen=True, slots=True, eq=False)
class SplitParts:
    """A row split into parts: the medians of the domains in each."""

    names: tuple[str, ...]
    runs: Ints
    """Per part."""
    low: Floats
    high: Floats
    part: Ints
    """Index into `names` for each median."""

    @classmethod
    def of(cls, pairs: Pairs, texts: Texts, logs: LogSpeedups, of_domains: tuple[Floats, Floats]) -> SplitParts:
        present = np.bincount(texts.codes + 1, minlength=len(texts.names) + 1)
        kept = np.array(sorted(np.flatnonzero(present[1:]), key=texts.names.__getitem__), dtype=np.int64)
        number = np.zeros(len(present), dtype=np.int64)  # 0 for pairs of which it is unknown
        number[kept + 1] = np.arange(1, len(kept) + 1)
        low, high, part = by_cluster(pairs, number[texts.codes + 1], logs, of_domains)
        if present[0]:
            low, high, part = low[part > 0], high[part > 0], part[part > 0]
        return cls(tuple(texts.names[code] for code in kept), present[kept + 1], low, high, part - 1)

    @property
    def medians(self) -> tuple[Floats, Floats]:
        """Lower and upper bounds of the median of each part."""
        low, high = (cluster_medians(side, self.part, len(self.names)) for side in (self.low, self.high))
        return low, high

    def of_parts(self, least: int) -> tuple[Floats, Ints]:
        """The medians of the parts with at least so many domains, and the numbers of these parts.

        Of a median of which only bounds are known the one nearest to no effect.
        """
        is_large = np.bincount(self.part, minlength=len(self.names)) >= least
        chosen = np.flatnonzero(is_large[self.part])
        number = np.cumsum(is_large) - 1
        return np.clip(0.0, self.low[chosen], self.high[chosen]), number[self.part[chosen]]

    @property
    def typical(self) -> tuple[Floats, Floats]:
        """Lower and upper bounds of the typical value of each part."""
        return typical_of_clusters(self.low, self.high, self.part, len(self.names))

    def split(self, by: SplitBy, p: float | None, *, sure: bool) -> Split:
        """The parts, the one with most runs first.

        Args:
            sure: with their intervals.
        """
        sizes, (least, most) = np.bincount(self.part, minlength=len(self.names)), self.medians
        parts = []
        for at in np.argsort(-self.runs, kind="stable").tolist():
            ends = None
            if sure and sizes[at] >= LEAST_PART:
                own = self.part == at
                ends = hodges_lehmann(self.low[own], self.high[own], confidence=SURE)[2:]
            low, high = math.exp(least[at]), math.exp(most[at])
            parts.append(
                SplitPart(
                    name=self.names[at],
                    n=int(self.runs[at]),
                    domains=int(sizes[at]),
                    median=Median(value=low if low == high else None, least=low, most=high),
                    sure=None if ends is None else (math.exp(ends[0]), math.exp(ends[1])),
                )
            )
        return Split(by=by, p=p, parts=tuple(parts))


def splits_of(cells: Mapping[SplitBy, SplitParts], *, described: Collection[SplitBy] = ()) -> tuple[Split, ...]:
    """The splits of a row. SplitParts have intervals only where the splits, taken together, speak for a difference.

    Args:
        described: not tested.
    """
    tested = {}
    for by, one in cells.items():
        values, groups = one.of_parts(LEAST_PART)
        tested[by] = differ(values, groups) if by not in described and groups.max(initial=0) > 0 else None
    tests = sum(p is not None for p in tested.values())
    return tuple(
        one.split(by, p, sure=p is not None and p * tests < SIGNIFICANCE)
        for (by, one), p in zip(cells.items(), tested.values(), strict=True)
    )
