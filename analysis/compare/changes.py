"""How medians and shares moved between two campaigns, each with an interval, a test and a verdict. Pure.

The unit is a target from a vantage point, the cluster its domain; only those that both campaigns measured are used. Of
each unit's measurement runs the median is taken first, and in a share each unit counts once, so campaigns with
different numbers of iterations compare.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from analysis.measures import costs
from analysis.measures.columns import Mask, numbered
from analysis.measures.dataset import Dataset
from analysis.measures.pairs import pair
from analysis.measures.rows import MINIMUM_DOMAINS, Metric
from analysis.measures.selection import Selection
from analysis.measures.statistics.intervals import (
    Floats,
    Ints,
    cluster_medians,
    median_interval,
    middle,
    renumbered,
    share_intervals,
)
from analysis.measures.statistics.tests import benjamini_hochberg, signed_rank
from analysis.measures.verdicts import STARVED_SHARE
from core.domain import Outcome, Role

LEVEL = 0.05
"""False discovery rate at which a row is called."""

Unit = tuple[str, str, str]
"""Vantage point, domain, URL."""


@dataclass(frozen=True, slots=True, eq=False)
class Values:
    """Logarithms, one per measurement run."""

    unit: Ints
    """Index into the units of both campaigns."""
    low: Floats
    high: Floats
    """Equal to `low` where the value is known."""


@dataclass(frozen=True, slots=True, eq=False)
class Members:
    """Which downloads, or pairs, belong to a share."""

    unit: Ints
    """Index into the units of both campaigns."""
    sure: Mask
    possible: Mask
    """With those of which only bounds are known that allow it."""


class ChangedQuantity(StrEnum):
    """What moved; the vocabulary is closed."""

    TIME = "time"
    """Median download time of a configuration [s]."""
    THROUGHPUT = "throughput"
    """Median mean throughput of a configuration [Mbit/s]."""
    OK = "ok"
    """Share of a configuration's downloads that are ok."""
    SPEEDUP = "speed-up"
    """Median speed-up of a comparison."""
    FASTER = "faster"
    """Share of a comparison's pairs with a speed-up above 1."""

    @property
    def is_share(self) -> bool:
        """Whether its change is a difference from -1 to 1; else it is a ratio, above 1 for the better."""
        return self in (ChangedQuantity.OK, ChangedQuantity.FASTER)


class ChangeVerdict(StrEnum):
    """The vocabulary is closed."""

    WORSE = "worse"
    """q < 0.05, and the whole interval is beyond the threshold for the worse."""
    BETTER = "better"
    """The same, for the better."""
    EQUAL = "equal"
    """The whole interval is within the threshold."""
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """How one quantity of a configuration or a comparison moved from A to B."""

    name: str
    """The configuration, or the comparison."""
    quantity: ChangedQuantity
    gates: bool
    """Whether the exit code depends on it: warm-ups, noise floors, the effects of caches, and what a busy host slowed
    (`busy`) do not count."""
    domains: int
    a: float | None = None
    """Its value in A: s, Mbit/s, share (0 to 1) or speed-up. None if only bounds are known."""
    b: float | None = None
    """Its value in B."""
    change: float | None = None
    """For times, throughputs and speed-ups the ratio, above 1 if B is better; for shares B - A."""
    low: float | None = None
    """Lower end of its 95 % interval; None below `MINIMUM_DOMAINS` domains."""
    high: float | None = None
    """Upper end."""
    p: float = 1.0
    """Signed-rank test over domains: did nothing move?"""
    q: float = 1.0
    """The same, adjusted for the number of rows (Benjamini-Hochberg)."""
    verdict: ChangeVerdict = ChangeVerdict.UNDECIDED


def changes(
    a: Dataset, b: Dataset, *, threshold: float, metric: Metric = Metric.TIME, selection: Selection
) -> list[Change]:
    """One row per configuration and quantity, then per comparison and quantity, that both campaigns have.

    Args:
        threshold: what counts as moved: a ratio of 1 + threshold, a difference of shares of threshold.
    """
    tables = [units(data) for data in (a, b)]
    known = sorted({unit for table, _ in tables for unit in table})
    one, other = (
        _Side(data, known, table, metric=metric, selection=selection)
        for data, table in zip((a, b), tables, strict=True)
    )
    domains = np.unique([domain for _, domain, _ in known], return_inverse=True)[1]
    quantity = ChangedQuantity.TIME if metric is Metric.TIME else ChangedQuantity.THROUGHPUT
    rows: list[Change] = []
    names = [c.name for c in a.design.configurations]
    warmups = a.downloads.configuration[a.downloads.is_warmup].present()
    common = one.configurations & other.configurations
    not_judged = {*warmups, *busy(a), *busy(b)}
    for name in (name for name in names if name in common):
        gates = name not in not_judged
        rows.append(_ratio(name, quantity, one.costs(name), other.costs(name), domains, gates=gates))
        rows.append(_share(name, ChangedQuantity.OK, one.planned(name), other.planned(name), domains, gates=gates))
    theirs = {(c.config, c.vs) for c in b.design.comparisons}
    for comparison in (c for c in a.design.comparisons if (c.config, c.vs) in theirs):
        before, after = (side.speedups(comparison.config, comparison.vs) for side in (one, other))
        gates = comparison.role is Role.EFFECT and not_judged.isdisjoint({comparison.config, comparison.vs})
        rows.append(_ratio(comparison.name, ChangedQuantity.SPEEDUP, before, after, domains, gates=gates))
        rows.append(
            _share(comparison.name, ChangedQuantity.FASTER, _faster(before), _faster(after), domains, gates=gates)
        )
    rows = [change for change in rows if change.domains]
    adjusted = benjamini_hochberg([change.p for change in rows]) if rows else []
    judged = (dataclasses.replace(change, q=q) for change, q in zip(rows, adjusted, strict=True))
    return [dataclasses.replace(change, verdict=_verdict(change, threshold)) for change in judged]


def busy(data: Dataset) -> set[str]:
    """Configurations of which more than a tenth of the downloads had a client that waited for a CPU: their times are
    the host's. Void and disturbed runs, whose times are in no row, do not count."""
    d = data.downloads
    is_used = ~d.is_disturbed
    counts = [
        np.bincount(d.configuration.codes[is_used & are], minlength=len(d.configuration.names))
        for are in (d.starved == 1, d.starved >= 0)
    ]
    return {
        name for name, waited, of in zip(d.configuration.names, *counts, strict=True) if waited > STARVED_SHARE * of
    }


def _faster(speedups: Values) -> Members:
    """Whether each run's speed-up is above 1. A bound excludes its own value, so one of exactly 1 decides."""
    possible = speedups.high > 0
    return Members(speedups.unit, (speedups.low >= 0) & possible, possible)


def units(data: Dataset) -> tuple[list[Unit], Ints]:
    """The units of a campaign, and the number of each measurement run's."""
    runs = data.downloads.runs
    columns = (runs.vantage, runs.domain, runs.url)
    number = numbered([column.codes for column in columns])
    first = np.unique(number, return_index=True)[1].tolist()
    vantage, domain, url = ([column.names[column.codes[run]] for run in first] for column in columns)
    return list(zip(vantage, domain, url, strict=True)), number


class _Side:
    """The costs and outcomes of one campaign."""

    def __init__(
        self,
        data: Dataset,
        known: Sequence[Unit],
        own: tuple[list[Unit], Ints],
        *,
        metric: Metric,
        selection: Selection,
    ) -> None:
        place = {unit: index for index, unit in enumerate(known)}
        self._data = data
        self._unit_of_run = np.array([place[unit] for unit in own[0]], dtype=np.int64)[own[1]]
        self._samples = costs.samples(data, metric=metric, selection=selection)
        self._counted = ~data.downloads.is_void
        self.configurations = data.downloads.configuration[self._counted].present()
        """Those with downloads that are not of void runs."""

    def planned(self, configuration: str) -> Members:
        """Whether each download is ok; without those of void runs."""
        rows = np.flatnonzero(self._data.downloads.configuration.are(configuration) & self._counted)
        unit = self._unit_of_run[self._data.downloads.run[rows]]
        ok = self._data.downloads.outcome[rows].are(Outcome.OK)
        return Members(unit, ok, ok)

    def costs(self, configuration: str) -> Values:
        """Logs of the costs of a configuration."""
        at = np.flatnonzero(self._samples.configuration.are(configuration) & (self._samples.excluded.codes < 0))
        unit = self._unit_of_run[self._data.downloads.run[self._samples.download[at]]]
        with np.errstate(divide="ignore"):
            return Values(unit, np.log(self._samples.low[at]), np.log(self._samples.high[at]))

    def speedups(self, config: str, vs: str) -> Values:
        """Logs of the speed-ups within each measurement run that has both."""
        pairs = pair(self._samples, config, vs)
        unit = self._unit_of_run[self._data.downloads.run[self._samples.download[pairs.config]]]
        with np.errstate(divide="ignore"):
            return Values(unit, np.log(pairs.low), np.log(pairs.high))


def _both(a: Ints, b: Ints, domains: Ints) -> tuple[tuple[Ints, Ints], Ints, int]:
    """For units that occur in both, their new numbers on each side (-1: it is not one of these); the domain of each of
    them, and how many domains there are."""
    sides = [np.bincount(side, minlength=len(domains)) > 0 for side in (a, b)]
    chosen = sides[0] & sides[1]
    number = np.where(chosen, np.cumsum(chosen) - 1, -1)
    return (number[a], number[b]), *renumbered(domains[chosen])


def _ratio(name: str, quantity: ChangedQuantity, a: Values, b: Values, domains: Ints, *, gates: bool) -> Change:
    """The change of a cost (A / B, as less is better) or of a speed-up (B / A)."""
    numbers, of_domain, count = _both(a.unit, b.unit, domains)
    if not count:
        return Change(name=name, quantity=quantity, gates=gates, domains=0)
    of_a, of_b = (_medians(side, unit, len(of_domain)) for side, unit in zip((a, b), numbers, strict=True))
    better, worse = (of_b, of_a) if quantity is ChangedQuantity.SPEEDUP else (of_a, of_b)
    with np.errstate(invalid="ignore"):
        moved = np.nan_to_num(better - worse[:, ::-1], nan=0.0, posinf=math.inf, neginf=-math.inf)
    low, high = (cluster_medians(moved[:, side], of_domain, count) for side in (0, 1))
    interval = median_interval(low, high) if count >= MINIMUM_DOMAINS else None
    levels = [_level(side, of_domain, count) for side in (of_a, of_b)]
    if quantity is ChangedQuantity.THROUGHPUT:
        levels = [None if level is None else 1 / level for level in levels]
    return Change(
        name=name,
        quantity=quantity,
        gates=gates,
        domains=count,
        a=levels[0],
        b=levels[1],
        change=_level(moved, of_domain, count),
        low=None if interval is None else math.exp(interval[0]),
        high=None if interval is None else math.exp(interval[1]),
        p=signed_rank(low, high),
    )


def _medians(values: Values, unit: Ints, count: int) -> Floats:
    """Lower and upper bound of the median of each unit: units x 2."""
    rows = unit >= 0
    return np.stack([cluster_medians(side[rows], unit[rows], count) for side in (values.low, values.high)], axis=1)


def _level(bounds: Floats, of_domain: Ints, count: int) -> float | None:
    """The median of the medians of the domains; None if only its bounds are known."""
    low, high = (middle(cluster_medians(bounds[:, side], of_domain, count)) for side in (0, 1))
    return math.exp(low) if low == high else None


def _share(name: str, quantity: ChangedQuantity, a: Members, b: Members, domains: Ints, *, gates: bool) -> Change:
    """The difference of two paired shares, with the lowest and highest ends that the bounds of either allow."""
    numbers, of_domain, count = _both(a.unit, b.unit, domains)
    if not count:
        return Change(name=name, quantity=quantity, gates=gates, domains=0)
    (least_a, most_a), (least_b, most_b) = (
        [_Counts.of(are[unit >= 0], unit[unit >= 0], of_domain, count) for are in (side.sure, side.possible)]
        for side, unit in zip((a, b), numbers, strict=True)
    )
    sides = ((least_a, most_a), (least_b, most_b))
    known = [least.share if least.share == most.share else None for least, most in sides]
    enough = count >= MINIMUM_DOMAINS
    return Change(
        name=name,
        quantity=quantity,
        gates=gates,
        domains=count,
        a=known[0],
        b=known[1],
        change=None if known[0] is None or known[1] is None else known[1] - known[0],
        low=_difference(most_a, least_b)[0] if enough else None,
        high=_difference(least_a, most_b)[1] if enough else None,
        p=signed_rank(least_b.of_domains - most_a.of_domains, most_b.of_domains - least_a.of_domains),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Counts:
    """How many of each domain's downloads, or pairs, belong to a share, if all units had as many as they have on
    average: where a campaign stopped within an iteration, its first units would count more."""

    counts: Floats
    sizes: Floats

    @classmethod
    def of(cls, are: Mask, unit: Ints, of_domain: Ints, count: int) -> _Counts:
        """From whether each download belongs to it, the number of its unit (each has some), and the domain of each
        unit."""
        runs = np.bincount(unit, minlength=len(of_domain))
        shares = np.bincount(unit[are], minlength=len(of_domain)) / runs
        each = runs.mean()
        return cls(
            each * np.bincount(of_domain, shares, minlength=count), each * np.bincount(of_domain, minlength=count)
        )

    @property
    def share(self) -> float:
        return float(self.counts.sum() / self.sizes.sum())

    @property
    def of_domains(self) -> Floats:
        # Rounded, as sums of equal shares in another order are no change.
        return np.round(self.counts / self.sizes, 12)


def _difference(a: _Counts, b: _Counts) -> tuple[float, float]:
    """The interval of b's share minus a's, from the intervals of the two and the correlation of domains.

    R. G. Newcombe, "Improved confidence intervals for the difference between binomial proportions based on paired
    data", Statistics in Medicine 17, 1998, method 10.
    """
    moved, phi = b.share - a.share, _correlation(a.of_domains, b.of_domains)
    (a_low, a_high), (b_low, b_high) = (
        (float(end[0]) for end in share_intervals(side.counts[:, None], side.sizes)) for side in (a, b)
    )
    return (
        moved - _distance(b.share - b_low, a_high - a.share, phi),
        moved + _distance(b_high - b.share, a.share - a_low, phi),
    )


def _correlation(a: Floats, b: Floats) -> float:
    """Correlation of the domains' shares; 0 where it is negative or not defined."""
    if a.std() == 0 or b.std() == 0:
        return 0.0
    return max(0.0, float(np.corrcoef(a, b)[0, 1]))


def _distance(one: float, other: float, phi: float) -> float:
    return math.sqrt(max(0.0, one**2 - 2 * phi * one * other + other**2))


def _verdict(change: Change, threshold: float) -> ChangeVerdict:
    if change.low is None or change.high is None:
        return ChangeVerdict.UNDECIDED
    least, most = (-threshold, threshold) if change.quantity.is_share else (1 / (1 + threshold), 1 + threshold)
    if change.q < LEVEL and change.high < least:
        return ChangeVerdict.WORSE
    if change.q < LEVEL and change.low > most:
        return ChangeVerdict.BETTER
    return ChangeVerdict.EQUAL if least < change.low and change.high < most else ChangeVerdict.UNDECIDED
