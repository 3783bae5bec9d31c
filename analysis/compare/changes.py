"""How medians and shares moved between two campaigns, each with an interval, a test and a verdict. Pure.

The unit is a target from a vantage point, the cluster its domain; only those that both campaigns measured are used. Of
each unit's measurement runs the median is taken first, so campaigns with different numbers of iterations compare.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from analysis.measures import costs
from analysis.measures.dataset import Dataset
from analysis.measures.pairs import Metric
from analysis.measures.rows import MINIMUM_DOMAINS
from analysis.measures.selection import Selection
from analysis.measures.statistics.clusters import Floats, Ints, cluster_medians, codes, middle
from analysis.measures.statistics.intervals import median_interval, share_intervals
from analysis.measures.statistics.multiple import benjamini_hochberg
from analysis.measures.statistics.signed_rank import signed_rank
from upshift.domain import Outcome, Role

LEVEL = 0.05
"""False discovery rate at which a row is called."""

Unit = tuple[str, str, str]
"""Vantage point, domain, URL."""
Bounds = tuple[float, float]
"""Of a logarithm; equal where it is known."""
Values = dict[Unit, list[Bounds]]
"""Of all measurement runs of a unit."""


class Quantity(StrEnum):
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
        return self in (Quantity.OK, Quantity.FASTER)


class Verdict(StrEnum):
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
    quantity: Quantity
    gates: bool
    """Whether the exit code depends on it: warm-ups, noise floors and the effects of caches do not count."""
    domains: int
    a: float | None
    """In A: s, Mbit/s, share (0 to 1) or speed-up. None if only bounds are known."""
    b: float | None
    """In B."""
    change: float | None
    """Of times, throughputs and speed-ups the ratio, above 1 if B is better; of shares B - A."""
    low: float | None
    """Lower end of its 95 % interval; None below `MINIMUM_DOMAINS` domains."""
    high: float | None
    """Upper end."""
    p: float
    """Signed-rank test over domains: did nothing move?"""
    q: float = 1.0
    """The same, adjusted for the number of rows (Benjamini-Hochberg)."""
    verdict: Verdict = Verdict.UNDECIDED


def changes(
    a: Dataset, b: Dataset, *, threshold: float, metric: Metric = Metric.TIME, selection: Selection
) -> list[Change]:
    """One row per configuration and quantity, then per comparison and quantity, that both campaigns have.

    Args:
        threshold: what counts as moved: a ratio of 1 + threshold, a difference of shares of threshold.
    """
    one, other = (_Side(data, metric=metric, selection=selection) for data in (a, b))
    quantity = Quantity.TIME if metric is Metric.TIME else Quantity.THROUGHPUT
    found: list[Change] = []
    names = [c.name for c in a.design.configurations]
    warmups = {record.download.configuration for record in a.records if record.is_warmup}
    for name in (name for name in names if name in one.planned and name in other.planned):
        gates = name not in warmups
        found.append(_ratio(name, quantity, one.costs(name), other.costs(name), gates=gates))
        found.append(_share(name, Quantity.OK, one.planned[name], other.planned[name], gates=gates))
    theirs = {(c.config, c.vs) for c in b.design.comparisons}
    for comparison in (c for c in a.design.comparisons if (c.config, c.vs) in theirs):
        before, after = (side.speedups(comparison.config, comparison.vs) for side in (one, other))
        gates = comparison.role is Role.EFFECT
        found.append(_ratio(comparison.name, Quantity.SPEEDUP, before, after, gates=gates))
        found.append(_share(comparison.name, Quantity.FASTER, _faster(before), _faster(after), gates=gates))
    found = [change for change in found if change.domains]
    adjusted = benjamini_hochberg([change.p for change in found]) if found else []
    judged = (dataclasses.replace(change, q=q) for change, q in zip(found, adjusted, strict=True))
    return [dataclasses.replace(change, verdict=_verdict(change, threshold)) for change in judged]


def _faster(speedups: Values) -> dict[Unit, list[bool]]:
    """Whether each run's speed-up is above 1. A bound excludes its own value, so one of exactly 1 decides."""
    return {unit: [low >= 0 and high > 0 for low, high in values] for unit, values in speedups.items()}


class _Side:
    """The costs and outcomes of one campaign."""

    def __init__(self, data: Dataset, *, metric: Metric, selection: Selection) -> None:
        self._costs: dict[str, dict[Unit, dict[Hashable, Bounds]]] = {}
        self.planned: dict[str, dict[Unit, list[bool]]] = {}
        """Configuration -> unit -> whether each download is ok; without those of void runs."""
        samples = costs.samples(data, metric=metric, selection=selection)
        columns = (samples.run, samples.low, samples.high, samples.excluded.codes)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        for record, (run, least, most, excluded) in zip(data.records, rows, strict=True):
            d = record.download
            unit = (d.vantage, d.domain, d.url)
            if d.void_reason is None:
                self.planned.setdefault(d.configuration, {}).setdefault(unit, []).append(d.outcome == Outcome.OK)
            if excluded < 0:
                low = math.log(least) if least > 0 else -math.inf
                runs = self._costs.setdefault(d.configuration, {}).setdefault(unit, {})
                runs[run] = (low, math.log(most))

    def costs(self, configuration: str) -> Values:
        """Logs of the costs of a configuration."""
        return {unit: list(runs.values()) for unit, runs in self._costs.get(configuration, {}).items()}

    def speedups(self, config: str, vs: str) -> Values:
        """Logs of the speed-ups within each measurement run that has both."""
        found: Values = {}
        for unit, references in self._costs.get(vs, {}).items():
            runs = self._costs.get(config, {}).get(unit, {})
            both = [(runs[run], reference) for run, reference in references.items() if run in runs]
            if both:
                found[unit] = [(least - high, most - low) for (low, high), (least, most) in both]
        return found


def _ratio(name: str, quantity: Quantity, a: Values, b: Values, *, gates: bool) -> Change:
    """The change of a cost (A / B, as less is better) or of a speed-up (B / A)."""
    units = sorted(a.keys() & b.keys())
    of_domain, count = codes([domain for _, domain, _ in units])
    if not count:
        return _nothing(name, quantity, gates=gates)
    of_a, of_b = (_medians(side, units) for side in (a, b))
    better, worse = (of_b, of_a) if quantity is Quantity.SPEEDUP else (of_a, of_b)
    with np.errstate(invalid="ignore"):
        moved = np.nan_to_num(better - worse[:, ::-1], nan=0.0, posinf=math.inf, neginf=-math.inf)
    low, high = (cluster_medians(moved[:, side], of_domain, count) for side in (0, 1))
    interval = median_interval(low, high) if count >= MINIMUM_DOMAINS else None
    levels = [_level(side, of_domain, count) for side in (of_a, of_b)]
    if quantity is Quantity.THROUGHPUT:
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


def _medians(values: Values, units: Sequence[Unit]) -> Floats:
    """Lower and upper bound of the median of each unit: units x 2."""
    return np.array([[np.median([pair[side] for pair in values[unit]]) for side in (0, 1)] for unit in units])


def _level(bounds: Floats, of_domain: Ints, count: int) -> float | None:
    """The median of the medians of the domains; None if only its bounds are known."""
    low, high = (middle(cluster_medians(bounds[:, side], of_domain, count)) for side in (0, 1))
    return math.exp(low) if low == high else None


def _share(
    name: str, quantity: Quantity, a: Mapping[Unit, list[bool]], b: Mapping[Unit, list[bool]], *, gates: bool
) -> Change:
    """The difference of two paired shares; its interval from those of the two and the correlation of domains.

    R. G. Newcombe, "Improved confidence intervals for the difference between binomial proportions based on paired
    data", Statistics in Medicine 17, 1998, method 10.
    """
    units = sorted(a.keys() & b.keys())
    of_domain, count = codes([domain for _, domain, _ in units])
    if not count:
        return _nothing(name, quantity, gates=gates)
    shares, ends, of_domains = [], [], []
    for side in (a, b):
        sizes = np.bincount(of_domain, [len(side[unit]) for unit in units]).astype(np.int64)
        counts = np.bincount(of_domain, [sum(side[unit]) for unit in units])
        shares.append(float(counts.sum() / sizes.sum()))
        of_domains.append(counts / sizes)
        if count >= MINIMUM_DOMAINS:
            lows, highs = share_intervals(counts[:, None], sizes)
            ends.append((float(lows[0]), float(highs[0])))
    moved = shares[1] - shares[0]
    low = high = None
    if ends:
        phi = _correlation(*of_domains)
        low = moved - _distance(shares[1] - ends[1][0], ends[0][1] - shares[0], phi)
        high = moved + _distance(ends[1][1] - shares[1], shares[0] - ends[0][0], phi)
    difference = of_domains[1] - of_domains[0]
    return Change(
        name=name,
        quantity=quantity,
        gates=gates,
        domains=count,
        a=shares[0],
        b=shares[1],
        change=moved,
        low=low,
        high=high,
        p=signed_rank(difference, difference),
    )


def _correlation(a: Floats, b: Floats) -> float:
    """Of the domains' shares; 0 where it is negative or not defined."""
    if a.std() == 0 or b.std() == 0:
        return 0.0
    return max(0.0, float(np.corrcoef(a, b)[0, 1]))


def _distance(one: float, other: float, phi: float) -> float:
    return math.sqrt(max(0.0, one**2 - 2 * phi * one * other + other**2))


def _nothing(name: str, quantity: Quantity, *, gates: bool) -> Change:
    """No unit is in both."""
    return Change(
        name=name, quantity=quantity, gates=gates, domains=0, a=None, b=None, change=None, low=None, high=None, p=1.0
    )


def _verdict(change: Change, threshold: float) -> Verdict:
    if change.low is None or change.high is None:
        return Verdict.UNDECIDED
    least, most = (-threshold, threshold) if change.quantity.is_share else (1 / (1 + threshold), 1 + threshold)
    if change.q < LEVEL and change.high < least:
        return Verdict.WORSE
    if change.q < LEVEL and change.low > most:
        return Verdict.BETTER
    return Verdict.EQUAL if least < change.low and change.high < most else Verdict.UNDECIDED
