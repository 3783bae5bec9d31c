"""Paired speed-ups: shares of measurement runs by speed-up, with bootstrap intervals. Pure; times in s, rates Mbit/s.

The speed-up of a configuration over a reference within one measurement run is cost(reference) / cost(configuration),
where the cost is the download time (metric `time`) or the reciprocal of the mean throughput (metric `throughput`, the
ratio of ANRW'23). A censored download costs *more* than measured, so only a bound of its pair is known: the pair
counts where the bound decides, is `undecided` elsewhere, and is never dropped. See docs/design/analysis.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from upshift.domain import Comparison

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

BIN_EDGES = (0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.5, 2.0)
"""Edges of the half-open bins [low, high); the first is [0, 0.7), the last [2, infinity)."""

BIN_NAMES = ("<=0.7", "0.7-0.8", "0.8-0.9", "0.9-1.0", "1.0-1.1", "1.1-1.2", "1.2-1.3", "1.3-1.5", "1.5-2", ">2")
"""Names of the bins, as in the paper's Table 2. A speed-up of exactly 0.7 is in `0.7-0.8`, of exactly 2 in `>2`."""

MINIMUM_DOMAINS = 10
"""With fewer clusters, intervals are not reliable: only n is printed."""

MINIMUM_PAIRS = 10
"""With fewer pairs, counts are printed instead of percentages."""

RESAMPLES = 2000
DEFAULT_SEED = 1
_BLOCK_ELEMENTS = 4_000_000
"""Elements of the largest temporary array of the bootstrap of the median (32 MB each)."""


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
    """The cluster of the bootstrap."""
    configuration: str
    low: float = 0.0
    """The cost is `low` if `low == high`, else strictly between `low` and `high`."""
    high: float = math.inf
    excluded: str | None = None
    """Why this download is left out of speed-ups, e.g. `failed`; None if it is not."""
    group: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A part of n pairs, with its 95 % interval (None below `MINIMUM_DOMAINS` domains)."""

    count: int
    n: int
    low: float | None = None
    high: float | None = None

    @property
    def share(self) -> float | None:
        """0 to 1; None without pairs."""
        return self.count / self.n if self.n else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Median:
    """The median speed-up: the middle value on a log scale, so that swapping the two sides inverts it.

    With censored downloads only bounds may be known: then `value` is None, and it lies between `least` and `most`.
    """

    value: float | None
    least: float | None
    most: float | None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedupRow:
    """One row of Table 2."""

    comparison: Comparison
    group: str
    n: int
    """Pairs: measurement runs in which both downloads are ok or censored, with the requested treatment."""
    domains: int
    faster: Share
    """Speed-up above 1. `faster`, `slower`, `tie` and `undecided` sum to 1."""
    slower: Share
    """Speed-up below 1."""
    tie: Share
    """Exactly equal costs; a tie is also in the bin `1.0-1.1`."""
    undecided: Share
    """Only a bound is known, and it does not decide which one was faster."""
    bins: tuple[Share, ...]
    """One per `BIN_NAMES`. With `bin_undecided` they sum to 1."""
    bin_undecided: Share
    """Only a bound is known, and it does not decide the bin."""
    bounds: int
    """Pairs of which only a bound is known, decided or not."""
    median: Median
    excluded: Mapping[str, int]
    """Reason -> number of measurement runs without a pair because of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Pairs of one row, as arrays; speed-ups are `low` if `low == high`, else strictly between."""

    low: Floats
    high: Floats
    domain: Ints
    """Index of the domain, in order of name."""
    domains: int
    excluded: Mapping[str, int]


def pair(samples: Iterable[Sample], config: str, vs: str) -> Pairs:
    """Pairs the downloads of `config` and `vs` within each measurement run."""
    runs: dict[Hashable, dict[str, Sample]] = {}
    for sample in samples:
        if sample.configuration in (config, vs):
            runs.setdefault(sample.run, {})[sample.configuration] = sample
    excluded: Counter[str] = Counter()
    found: list[tuple[str, float, float]] = []
    for sides in runs.values():
        reason = next((r for name in (config, vs) if (r := _why_not(sides.get(name), name))), None)
        if reason:
            excluded[reason] += 1
        else:
            found.append((sides[config].domain, *ratio(sides[config], sides[vs])))
    names = {name: index for index, name in enumerate(sorted({domain for domain, _, _ in found}))}
    return Pairs(
        low=np.array([low for _, low, _ in found], dtype=np.float64),
        high=np.array([high for _, _, high in found], dtype=np.float64),
        domain=np.array([names[domain] for domain, _, _ in found], dtype=np.int64),
        domains=len(names),
        excluded=dict(sorted(excluded.items())),
    )


def _why_not(sample: Sample | None, name: str) -> str | None:
    if sample is None:
        return f"{name} not in the run"
    return f"{name} {sample.excluded}" if sample.excluded else None


def ratio(config: Sample, vs: Sample) -> tuple[float, float]:
    """Bounds of the speed-up cost(vs) / cost(config); equal where both costs are known."""
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


def speedup_row(
    samples: Iterable[Sample], comparison: Comparison, *, group: str = "", seed: int = DEFAULT_SEED
) -> SpeedupRow:
    """One row: shares, bins and median of the speed-ups of `comparison.config` over `comparison.vs`."""
    pairs = pair(samples, comparison.config, comparison.vs)
    n = len(pairs.low)
    exact = pairs.low == pairs.high
    tie = exact & (pairs.low == 1.0)
    # A bound excludes its own value, so a bound of exactly 1 decides.
    faster = (pairs.low >= 1.0) & ~tie
    slower = (pairs.high <= 1.0) & ~tie
    edges = np.array(BIN_EDGES)
    first = np.searchsorted(edges, pairs.low, side="right")
    last = np.where(exact, first, np.searchsorted(edges, pairs.high, side="left"))
    columns = [faster, slower, tie, ~(faster | slower | tie)]
    columns += [(first == last) & (first == index) for index in range(len(BIN_NAMES))]
    columns += [first != last]
    shares = _shares(np.stack(columns, axis=1), pairs, seed)
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
        median=_median(pairs, seed),
        excluded=pairs.excluded,
    )


@lru_cache(maxsize=8)
def _weights(domains: int, seed: int) -> npt.NDArray[np.int16]:
    """How often each domain is drawn in each resample (RESAMPLES x domains)."""
    generator = np.random.default_rng(seed)
    weights = np.empty((RESAMPLES, domains), dtype=np.int16)
    block = 100  # numpy draws 64-bit integers: not all resamples at once
    for start in range(0, RESAMPLES, block):
        weights[start : start + block] = generator.multinomial(domains, np.full(domains, 1 / domains), size=block)
    return weights


def _shares(categories: npt.NDArray[np.bool_], pairs: Pairs, seed: int) -> list[Share]:
    n, kinds = categories.shape
    counts = [int(c) for c in categories.sum(axis=0)]
    if n == 0:
        return [Share(count=0, n=0) for _ in counts]
    if pairs.domains < MINIMUM_DOMAINS:
        return [Share(count=c, n=n) for c in counts]
    per_domain = np.zeros((pairs.domains, kinds))
    np.add.at(per_domain, pairs.domain, categories)
    sizes = np.bincount(pairs.domain, minlength=pairs.domains).astype(np.float64)
    weights = _weights(pairs.domains, seed).astype(np.float64)
    drawn = (weights @ per_domain) / (weights @ sizes)[:, None]
    lows, highs = np.percentile(drawn, (2.5, 97.5), axis=0)
    return [
        # The percentile interval of a ratio may not contain the estimate if cluster sizes differ much: widened.
        Share(count=c, n=n, low=min(float(low), c / n), high=max(float(high), c / n))
        for c, low, high in zip(counts, lows, highs, strict=True)
    ]


def _median(pairs: Pairs, seed: int) -> Median:
    if len(pairs.low) == 0:
        return Median(value=None, least=None, most=None)
    with np.errstate(divide="ignore"):
        low_logs, high_logs = np.log(pairs.low), np.log(pairs.high)
    least = math.exp(_middle(low_logs))
    most = math.exp(_middle(high_logs))
    value = least if least == most else None
    if pairs.domains < MINIMUM_DOMAINS:
        return Median(value=value, least=least, most=most)
    lows = _drawn_medians(low_logs, pairs, seed)
    highs = lows if np.array_equal(low_logs, high_logs) else _drawn_medians(high_logs, pairs, seed)
    # `lower` and `higher` do not interpolate, so infinite medians stay infinite.
    low = math.exp(float(np.percentile(lows, 2.5, method="lower")))
    high = math.exp(float(np.percentile(highs, 97.5, method="higher")))
    return Median(value=value, least=least, most=most, low=min(low, least), high=max(high, most))


def _middle(logs: Floats) -> float:
    ordered = np.sort(logs)
    return float((ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2)


def _drawn_medians(logs: Floats, pairs: Pairs, seed: int) -> Floats:
    """The median of each resample, in which each pair counts as often as its domain was drawn."""
    order = np.argsort(logs, kind="stable")
    ordered, domain = logs[order], pairs.domain[order]
    weights = _weights(pairs.domains, seed)
    medians = np.empty(RESAMPLES)
    block = max(1, _BLOCK_ELEMENTS // len(logs))
    for start in range(0, RESAMPLES, block):
        running = np.cumsum(weights[start : start + block, domain], axis=1, dtype=np.int64)
        total = running[:, -1:]
        left = (running <= (total - 1) // 2).sum(axis=1)
        right = (running <= total // 2).sum(axis=1)
        medians[start : start + block] = (ordered[left] + ordered[right]) / 2
    return medians


def table2(
    samples: Sequence[Sample],
    comparisons: Sequence[Comparison],
    *,
    seed: int = DEFAULT_SEED,
    groups: Sequence[str] | None = None,
) -> list[SpeedupRow]:
    """One row per comparison; with `groups`, one per group and comparison of which the group has both sides."""
    if groups is None:
        return [speedup_row(samples, comparison, seed=seed) for comparison in comparisons]
    rows: list[SpeedupRow] = []
    for group in groups:
        members = [sample for sample in samples if sample.group == group]
        present = {sample.configuration for sample in members}
        rows += [
            speedup_row(members, comparison, group=group, seed=seed)
            for comparison in comparisons
            if present.issuperset((comparison.config, comparison.vs))
        ]
    return rows
