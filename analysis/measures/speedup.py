"""Rows of Table 2: shares of measurement runs by speed-up, median, tests, intervals and verdict. Pure.

The unit of every test and interval is the domain, as runs of one domain are not independent. A pair of which only a
bound is known counts where the bound decides, is `undecided` elsewhere, and is never dropped. See
docs/method/statistics.md.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.measures.columns import Codes, on_all_cores
from analysis.measures.pairs import Pairs, PlannedPairs, Samples, pair, pair_planned
from analysis.measures.rows import (
    BIN_EDGES,
    BIN_NAMES,
    MINIMUM_DOMAINS,
    Failures,
    Intention,
    LargerClusters,
    Median,
    PairShare,
    SpeedupRow,
    SpeedupSummary,
    SplitBy,
    Typical,
    Unit,
)
from analysis.measures.splits import LogSpeedups, SplitParts, by_cluster, splits_of, typical_of_clusters
from analysis.measures.statistics.intervals import (
    EQUIVALENCE_CONFIDENCE,
    LEAST_CLUSTERS,
    Floats,
    Ints,
    cluster_medians,
    few_clusters_interval,
    hodges_lehmann,
    median_interval,
    middle,
    renumbered,
    share_intervals,
)
from analysis.measures.statistics.tests import equivalence, kruskal_wallis, mcnemar, sign_test, signed_rank
from analysis.measures.verdicts import LEAST_MARGIN, judge
from core.domain import Comparison

SIDES = ("faster", "slower", "tie", "undecided")


def summary_of(pairs: Pairs, comparison: Comparison) -> SpeedupSummary:
    """The row without tests, from its pairs as arrays."""
    medians = LogSpeedups.of(pairs).medians(pairs.domain, pairs.domains)
    return SpeedupSummary(**_summary(pairs, medians, comparison, ""), typical=_typical(*medians))


def row_of(pairs: Pairs, planned: PlannedPairs, comparison: Comparison, *, group: str = "") -> SpeedupRow:
    """One row, from its pairs as arrays; without q-values and verdict: see `judge`."""
    n = len(pairs.low)
    logs = LogSpeedups.of(pairs)
    low, high = logs.medians(pairs.domain, pairs.domains)
    summary = _summary(pairs, (low, high), comparison, group)
    p_wilcoxon = signed_rank(low, high)
    same = {name: summary[name] for name in ("n", "domains", "faster", "slower", "median")}
    known = {by: texts for by, texts in pairs.splits.items() if (texts.codes >= 0).any()}
    cells = {by: SplitParts.of(pairs, texts, logs, (low, high)) for by, texts in known.items()}
    vantages = cells.get(SplitBy.VANTAGE)
    typical, over_providers = _typical_of_units(low, high, cells.get(SplitBy.PROVIDER))
    return SpeedupRow(
        **summary,
        typical=typical,
        over_providers=over_providers,
        splits=tuple(
            dataclasses.replace(split, of=pairs.limited) if split.by is SplitBy.LIMITER else split
            for split in splits_of(cells, described=pairs.described)
        ),
        p_wilcoxon=p_wilcoxon if n else None,
        p_clusters=signed_rank(logs.low, logs.high, pairs.domain) if n else None,
        p_sign=sign_test(low, high) if n else None,
        p_equivalence=equivalence(low, high, LEAST_MARGIN) if n else None,
        larger={
            name: _larger(
                (vantages.low, vantages.high, vantages.part)
                if name == "vantage" and vantages
                else by_cluster(pairs, clusters, logs, (low, high))
            )
            for name, clusters in pairs.larger.items()
        },
        intention=Intention(**same, p_wilcoxon=p_wilcoxon) if planned.pairs is pairs else _intention(planned.pairs),
        failures=_failures(planned),
        handshake=median_of_domains(pairs.durations.get("handshake", np.zeros(0)), pairs),
        transfer=median_of_domains(pairs.durations.get("transfer", np.zeros(0)), pairs),
        starved=pairs.starved,
    )


def median_of_domains(speedups: Floats, pairs: Pairs) -> float | None:
    """The median of the domains' medians, as of whole downloads, of the speed-up of one part of each pair's downloads;
    None where it is unknown."""
    known = np.flatnonzero((speedups > 0) & (speedups < math.inf))
    medians = cluster_medians(np.log(speedups[known]), *renumbered(pairs.domain[known]))
    return math.exp(middle(medians)) if len(known) else None


def _summary(pairs: Pairs, medians: tuple[Floats, Floats], comparison: Comparison, group: str) -> dict[str, Any]:
    """The fields of `SpeedupSummary`, with the lower and upper bounds of the medians of domains."""
    shares = _shares(_sides_of_domains(pairs), _bins_of_domains(pairs))
    low, high = medians
    sure = np.stack([low >= LEAST_MARGIN, high <= -LEAST_MARGIN], axis=1).astype(np.int64)
    possible = np.stack([high >= LEAST_MARGIN, low <= -LEAST_MARGIN], axis=1).astype(np.int64)
    gain, lose = _shares(_Counts(sure, possible), sizes=np.ones(len(low), dtype=np.int64))
    return {
        "comparison": comparison,
        "group": group,
        "n": len(pairs.low),
        "domains": pairs.domains,
        **dict(zip(SIDES, shares, strict=False)),
        "bins": tuple(shares[len(SIDES) : -1]),
        "bin_undecided": shares[-1],
        "bounds": int(np.count_nonzero(pairs.low != pairs.high)),
        "median": _median(*medians),
        "gain": gain,
        "lose": lose,
        "excluded": pairs.excluded,
    }


def sides(pairs: Pairs) -> Codes:
    """The index into `SIDES` of each pair."""
    side = np.full(len(pairs.low), SIDES.index("undecided"), dtype=np.int8)
    # A bound excludes its own value, so a bound of exactly 1 decides.
    side[pairs.low >= 1.0] = SIDES.index("faster")
    side[pairs.high <= 1.0] = SIDES.index("slower")
    side[(pairs.low == 1.0) & (pairs.high == 1.0)] = SIDES.index("tie")
    return side


@dataclass(frozen=True, slots=True, eq=False)
class _Counts:
    """Numbers of pairs, domains x kinds."""

    sure: Ints
    possible: Ints
    """With those of which only a bound is known."""


def _counted(pairs: Pairs, kinds: Codes, number: int) -> Ints:
    """How many pairs of each domain are of each kind, domains x kinds."""
    cells = np.bincount(pairs.domain * number + kinds, minlength=pairs.domains * number)
    return cells.reshape(pairs.domains, number)


def _sides_of_domains(pairs: Pairs) -> _Counts:
    """The pairs of each domain on each of `SIDES`."""
    sure = _counted(pairs, sides(pairs), len(SIDES))
    possible = sure.copy()
    for side in ("faster", "slower"):
        possible[:, SIDES.index(side)] += sure[:, SIDES.index("undecided")]
    return _Counts(sure, possible)


def _bins_of_domains(pairs: Pairs) -> _Counts:
    """The pairs of each domain in each bin; the last kind are those that may be in several."""
    edges, several = np.array(BIN_EDGES), len(BIN_NAMES)
    first = np.searchsorted(edges, pairs.low, side="right")
    bounds = np.flatnonzero(pairs.low != pairs.high)
    last = np.searchsorted(edges, pairs.high[bounds], side="left")
    spread = bounds[last != first[bounds]]
    from_bin, to_bin = first[spread], last[last != first[bounds]]
    first[spread] = several
    sure = _counted(pairs, first, several + 1)
    possible = sure.copy()
    for index in range(several):
        maybe = spread[(from_bin <= index) & (index <= to_bin)]
        possible[:, index] += np.bincount(pairs.domain[maybe], minlength=pairs.domains)
    return _Counts(sure, possible)


def _shares(*parts: _Counts, sizes: Ints | None = None) -> list[PairShare]:
    """The shares of all kinds, from the counts of one or more ways to divide the pairs.

    Args:
        sizes: what each domain counts; None: the number of its pairs.
    """
    sizes = parts[0].sure.sum(axis=1) if sizes is None else sizes
    sure, possible = (
        np.concatenate(kinds, axis=1) for kinds in zip(*((p.sure, p.possible) for p in parts), strict=True)
    )
    n, counts, most = int(sizes.sum()), sure.sum(axis=0).tolist(), possible.sum(axis=0).tolist()
    if len(sizes) < MINIMUM_DOMAINS:
        return [PairShare(count=c, n=n, possible=m) for c, m in zip(counts, most, strict=True)]
    lows, highs = share_intervals(sure, sizes)
    if counts != most:
        highs = share_intervals(possible, sizes)[1]
    return [
        PairShare(count=c, n=n, possible=m, low=float(low), high=float(high))
        for c, m, low, high in zip(counts, most, lows, highs, strict=True)
    ]


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


def _typical(low: Floats, high: Floats) -> Typical:
    """With domains as the unit."""
    if not len(low):
        return Typical(least=None, most=None)
    least, most, *ends = map(math.exp, hodges_lehmann(low, high))
    first, last = ends if len(low) >= MINIMUM_DOMAINS else (None, None)
    return Typical(least=least, most=most, low=first, high=last, units=len(low))


def _typical_of_units(low: Floats, high: Floats, providers: SplitParts | None) -> tuple[Typical, Typical | None]:
    """With domains as the unit; and with providers, where that is possible. `verdicts.same_units` chooses."""
    of_domains = _typical(low, high)
    if providers is None or len(low) < MINIMUM_DOMAINS:
        return of_domains, None
    values, groups = providers.of_parts(2)
    clusters = int(groups.max(initial=-1)) + 1
    if clusters < 2:
        return of_domains, None
    p = kruskal_wallis(values, groups)
    of_domains = dataclasses.replace(of_domains, p_providers=p)
    interval = _mean_of_clusters(*providers.typical) if clusters >= LEAST_CLUSTERS else None
    if interval is None:
        return of_domains, None
    least, most, first, last = map(math.exp, interval)
    ends = [end for end in (of_domains.least, of_domains.most) if end and math.isfinite(end)]
    of_providers = Typical(
        least=least,
        most=most,
        low=first,
        high=last,
        unit=Unit.PROVIDER,
        units=len(providers.names),
        over_domains=math.sqrt(ends[0] * ends[1]) if len(ends) == 2 else None,
        p_providers=p,
    )
    return of_domains, of_providers


def _mean_of_clusters(low: Floats, high: Floats) -> tuple[float, float, float, float] | None:
    """The mean of what is typical in each cluster, least and most by its bounds, and the ends of its interval; None
    where one has no bound on a side.

    It is what `_typical` estimates over domains, so that both speak of the same: the mean of medians would be another
    quantity where some domains gain and others do not.
    """
    least, most = few_clusters_interval(low), few_clusters_interval(high)
    if least is None or most is None:
        return None
    return sum(least) / 2, sum(most) / 2, min(least[0], most[0]), max(least[1], most[1])


def _larger(medians: tuple[Floats, Floats, Ints]) -> LargerClusters:
    """The row with larger clusters as the unit, from `by_cluster`.

    The parts of each domain in each cluster are medians first, so a domain with many runs counts no more.
    """
    low, high, cluster = medians
    count = int(cluster.max()) + 1 if len(cluster) else 0
    alone = _mean_of_clusters(*typical_of_clusters(low, high, cluster, count))
    return LargerClusters(
        clusters=count,
        p=signed_rank(low, high, cluster),
        low=None if alone is None else math.exp(alone[2]),
        high=None if alone is None else math.exp(alone[3]),
    )


def _intention(pairs: Pairs) -> Intention:
    shares = _shares(_sides_of_domains(pairs))
    low, high = LogSpeedups.of(pairs).medians(pairs.domain, pairs.domains)
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


def speedup_rows(
    groups: Mapping[str, Samples], comparisons: Sequence[Comparison], *, only_present: bool = False
) -> list[SpeedupRow]:
    """One row per group and comparison. q-values count all effects of the table, those of all groups together.

    Args:
        groups: name -> its samples; a table without groups is one group with an empty name.
        only_present: leave out comparisons of which a group does not have both sides.
    """
    jobs = [
        (name, samples, comparison)
        for name, samples in groups.items()
        for comparison in comparisons
        if not only_present or samples.configuration.present() >= {comparison.config, comparison.vs}
    ]
    return judge(on_all_cores(_row, jobs))


def _row(job: tuple[str, Samples, Comparison]) -> SpeedupRow:
    group, samples, comparison = job
    pairs = pair(samples, comparison.config, comparison.vs)
    planned = pair_planned(samples, comparison.config, comparison.vs, pairs)
    return row_of(pairs, planned, comparison, group=group)
