"""Pairs of downloads within measurement runs, and their speed-ups. Pure; times in s, rates in Mbit/s.

The speed-up of a configuration over a reference within one measurement run is cost(reference) / cost(configuration),
where the cost is the download time (metric `time`) or the reciprocal of the mean throughput (metric `throughput`, the
ratio of ANRW'23). A censored download costs *more* than measured, so only a bound of its pair is known. See
docs/design/analysis.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from analysis.measures.statistics.clusters import Floats, Ints, codes


class Metric(StrEnum):
    """The quantity of which a speed-up is a ratio."""

    TIME = "time"
    """Time from the start of connecting to the last body byte."""
    THROUGHPUT = "throughput"
    """Mean throughput [Mbit/s] as in the paper: IP bytes over time, so retransmitted bytes count as speed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The cost of one download."""

    run: Hashable
    """The measurement run; pairs are made only within it."""
    domain: str
    """The unit of all tests and intervals."""
    configuration: str
    low: float = 0.0
    """The cost is `low` if `low == high`, else strictly between both; infinite if the download failed."""
    high: float = math.inf
    excluded: str | None = None
    """Why this download is left out of speed-ups, e.g. `failed`; None if it is not."""
    planned: bool = True
    """Whether it counts by intention to treat: it failed, or ran as planned, whatever options were on the wire."""
    group: str = ""
    larger: Mapping[str, str | None] = field(default_factory=dict)
    """Larger clusters that it belongs to, e.g. `AS` -> `64496`; None: unknown."""

    @property
    def failed(self) -> bool:
        return math.isinf(self.low)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Pairs of one row, as arrays; speed-ups are `low` if `low == high`, else strictly between."""

    low: Floats
    high: Floats
    domain: Ints
    """Index of the domain, in order of name."""
    domains: int
    excluded: Mapping[str, int] = field(default_factory=dict)
    """Reason -> number of measurement runs without a pair because of it."""
    larger: Mapping[str, Ints] = field(default_factory=dict)
    """Larger clusters, e.g. `AS` -> index of each pair's; without those that are unknown for some pair."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPairs:
    """Pairs of one row by intention to treat: all that were planned and measured, also those that failed."""

    pairs: Pairs
    """A failed download is slower than any other: a speed-up of 0 or infinity, and 1 if both failed. The same object as
    the row's pairs where all was as planned, so nothing is computed twice."""
    config_failed: Ints
    """Per pair, 1 if the configuration failed."""
    vs_failed: Ints
    """Per pair, 1 if the reference failed."""


def pair(samples: Iterable[Sample], config: str, vs: str) -> tuple[Pairs, PlannedPairs]:
    """Pairs the downloads of `config` and `vs` within each measurement run: as treated, and as planned."""
    runs: dict[Hashable, dict[str, Sample]] = {}
    for sample in samples:
        if sample.configuration in (config, vs):
            runs.setdefault(sample.run, {})[sample.configuration] = sample
    excluded: Counter[str] = Counter()
    found: list[tuple[Sample, Sample]] = []
    planned: list[tuple[Sample, Sample]] = []
    for sides in runs.values():
        if len(sides) == 2 and all(side.planned for side in sides.values()):
            planned.append((sides[config], sides[vs]))
        reason = next((r for name in (config, vs) if (r := _why_not(sides.get(name), name))), None)
        if reason:
            excluded[reason] += 1
        else:
            found.append((sides[config], sides[vs]))
    pairs = _pairs(found, dict(sorted(excluded.items())))
    return pairs, PlannedPairs(
        pairs=pairs if planned == found else _pairs(planned, {}),
        config_failed=np.array([one.failed for one, _ in planned], dtype=np.int64),
        vs_failed=np.array([other.failed for _, other in planned], dtype=np.int64),
    )


def _why_not(sample: Sample | None, name: str) -> str | None:
    if sample is None:
        return f"{name} not in the run"
    return f"{name} {sample.excluded}" if sample.excluded else None


def _pairs(found: Sequence[tuple[Sample, Sample]], excluded: Mapping[str, int]) -> Pairs:
    bounds = [ratio(config, vs) for config, vs in found]
    domain, domains = codes([config.domain for config, _ in found])
    larger = {}
    for name in found[0][0].larger if found else ():
        members = [config.larger[name] for config, _ in found]
        if None not in members:
            larger[name] = codes(members)[0]
    return Pairs(
        low=np.array([low for low, _ in bounds], dtype=np.float64),
        high=np.array([high for _, high in bounds], dtype=np.float64),
        domain=domain,
        domains=domains,
        excluded=excluded,
        larger=larger,
    )


def ratio(config: Sample, vs: Sample) -> tuple[float, float]:
    """Bounds of the speed-up cost(vs) / cost(config); equal where both costs are known, or one failed."""
    if config.failed or vs.failed:
        value = 1.0 if config.failed and vs.failed else 0.0 if config.failed else math.inf
        return value, value
    if config.low == config.high and vs.low == vs.high:
        value = vs.low / config.low
        # Two different floats may have the quotient 1.0; the comparison must still be right.
        if vs.low < config.low and value >= 1.0:
            value = math.nextafter(1.0, 0.0)
        elif vs.low > config.low and value <= 1.0:
            value = math.nextafter(1.0, 2.0)
        return value, value
    low = 0.0 if math.isinf(config.high) else vs.low / config.high
    high = math.inf if config.low == 0.0 or math.isinf(vs.high) else vs.high / config.low
    return low, high
