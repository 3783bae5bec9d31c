"""The rows of Table 2 as values. `analysis.measures.speedup` makes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from core.domain import Comparison

BIN_EDGES = (0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.5, 2.0)
"""Edges of the half-open bins [low, high); the first is [0, 0.7), the last [2, infinity)."""

BIN_NAMES = ("<=0.7", "0.7-0.8", "0.8-0.9", "0.9-1.0", "1.0-1.1", "1.1-1.2", "1.2-1.3", "1.3-1.5", "1.5-2", ">2")
"""Names of the bins, as in the paper's Table 2. A speed-up of exactly 0.7 is in `0.7-0.8`, of exactly 2 in `>2`."""

MINIMUM_DOMAINS = 10
"""With fewer domains, intervals are not reliable: there is none, and a direction has no size."""

MINIMUM_PAIRS = 10
"""With fewer pairs, counts are printed instead of percentages."""

LEAST_PART = 6
"""A part of the runs takes part in tests with so many domains: all of fewer may be on one side by chance."""

LARGER_CLUSTERS = ("AS", "vantage")
"""Larger clusters than domains; how far intervals change with them is a check of sensitivity."""


class Metric(StrEnum):
    """The quantity of which a speed-up is a ratio."""

    TIME = "time"
    """Time from the start of connecting to the last body byte."""
    THROUGHPUT = "throughput"
    """Mean throughput [Mbit/s] as in the paper: IP bytes over time, so retransmitted bytes count as speed."""


class Grouping(StrEnum):
    """What Table 2 is split by."""

    VANTAGE = "vantage"
    PROVIDER = "provider"
    ITERATION = "iteration"


class Verdict(StrEnum):
    """What the data say about a comparison: the first that holds. The vocabulary is closed."""

    HOST_BUSY = "host too busy"
    """The clients differ, and in more than a tenth of the pairs one of them waited for a CPU: a busy host slows QUIC,
    which is in the client, more than TCP, which is in the kernel. Two equal clients wait alike: their noise floor
    tells."""
    MIXED = "mixed"
    """Some targets gain (or lose) at least the margin, and others do not: a split of the runs tells them apart."""
    EQUIVALENT = "equivalent"
    """Two one-sided tests reject that the speed-up is 2 % or more away from 1, as ranks and as medians."""
    FASTER = "faster"
    """q is below 0.05, and the typical speed-up above 1; `Size` tells how much."""
    SLOWER = "slower"
    """q is below 0.05, and the typical speed-up below 1."""
    UNDECIDED = "undecided"
    """None of these: more data may tell."""


class Size(StrEnum):
    """How large an effect surely is, for `faster` and `slower` with an interval. The vocabulary is closed."""

    AT_LEAST = "at_least_margin"
    """The interval of the typical speed-up lies beyond the margin."""
    PERHAPS_LESS = "perhaps_less"
    """The interval reaches into the margin."""
    THESE_PROVIDERS = "these_providers"
    """The interval counts each provider once and holds 1: so it is for the domains of these providers, others are
    open."""


class SplitBy(StrEnum):
    """What the runs of a comparison are split by, to tell who gains. The vocabulary is closed."""

    LIMITER = "limiter"
    """What limited the download (`Limiter`) of the reference's twin, its partner in a noise floor, in the same run."""
    DOSE = "dose"
    """Whether one of the options took effect; described and not tested."""
    PROVIDER = "provider"
    VANTAGE = "vantage"


class Unit(StrEnum):
    """What counts once in an interval of the typical speed-up. The vocabulary is closed."""

    DOMAIN = "domain"
    PROVIDER = "provider"
    """Where effects may differ more between providers than between the domains of one: `verdicts.same_units`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairShare:
    """A part of n pairs, with its 95 % interval (None below `MINIMUM_DOMAINS` domains)."""

    count: int
    """Pairs that are surely part of it."""
    n: int
    possible: int | None = None
    """Pairs that may be part of it: `count` and those of which only a bound is known; None: the same as `count`."""
    low: float | None = None
    """Lower end of the interval of `count` pairs."""
    high: float | None = None
    """Upper end of the interval of `possible` pairs."""

    @property
    def is_least(self) -> bool:
        """Whether others may be part of it, too."""
        return self.possible not in (None, self.count)

    @property
    def share(self) -> float | None:
        """0 to 1; None without pairs."""
        return self.count / self.n if self.n else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Median:
    """The median speed-up of domains, each of which counts once, with the median of its measurement runs.

    Medians are the middle on a log scale, so that swapping the two sides inverts them. With censored downloads only
    bounds may be known: then `value` is None, and it lies between `least` and `most`.
    """

    value: float | None
    least: float | None
    most: float | None
    low: float | None = None
    """The 95 % interval, None below `MINIMUM_DOMAINS` domains."""
    high: float | None = None
    low90: float | None = None
    """The 90 % interval: within 2 % of 1, the median shows equivalence."""
    high90: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Typical:
    """The typical speed-up: Hodges and Lehmann's estimate, which belongs to the signed-rank test, from the medians of
    domains; where providers are the unit, the mean of the estimates of each (log scale).
    """

    least: float | None
    """`least` and `most` are equal if no bound is in the way; None without pairs."""
    most: float | None
    low: float | None = None
    """The 95 % interval, None below `MINIMUM_DOMAINS` domains."""
    high: float | None = None
    unit: Unit = Unit.DOMAIN
    units: int = 0
    """Number of domains, or of providers."""
    over_domains: float | None = None
    """Where providers are the unit: the estimate over domains, whose direction is tested (of bounds, the middle);
    None where it has no upper or lower end."""
    p_providers: float | None = None
    """Kruskal and Wallis's test: do the effects of providers differ? None for parts, and with fewer than two of them
    that have two domains."""

    @property
    def value(self) -> float | None:
        """None if only bounds are known."""
        return self.least if self.least == self.most else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitPart:
    """Some of a row's runs."""

    name: str
    n: int
    domains: int
    median: Median
    """Without intervals."""
    sure: tuple[float, float] | None = None
    """The 99 % interval of its typical speed-up; None where nothing speaks for a difference between the parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A row's runs, split."""

    by: SplitBy
    p: float | None
    """Do the effects differ between the parts? None with fewer than two parts of `LEAST_PART` domains, and where a
    download of the pair itself tells the part: its luck, which is in the pair, would look like an effect."""
    parts: tuple[SplitPart, ...]
    """The one with most runs first."""
    of: str | None = None
    """By limiter: whose download was limited, the reference's twin, or without one the reference (not tested then)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LargerClusters:
    """The same row with larger clusters than domains (AS, vantage point) as the unit: a check of sensitivity."""

    clusters: int
    p: float
    """Signed-rank test with these clusters (Datta and Satten)."""
    low: float | None
    """95 % interval of the mean of the clusters' typical speed-ups (log scale); None with fewer than three clusters,
    and where one has no bound on a side."""
    high: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """Planned measurement runs in which one side failed, or both."""

    config_only: int
    vs_only: int
    both: int
    p: float
    """McNemar's test, with domains as the unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Intention:
    """The row by intention to treat: as planned, whatever options were on the wire, failures as slowest."""

    n: int
    domains: int
    faster: PairShare
    slower: PairShare
    median: Median
    p_wilcoxon: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedupSummary:
    """What the speed-ups of some measurement runs were, with intervals and without tests."""

    comparison: Comparison
    group: str
    n: int
    """Pairs: measurement runs in which both downloads are ok or censored, with the requested treatment."""
    domains: int
    faster: PairShare
    """Speed-up above 1. `faster`, `slower`, `tie` and `undecided` sum to 1."""
    slower: PairShare
    """Speed-up below 1."""
    tie: PairShare
    """Exactly equal costs; a tie is also in the bin `1.0-1.1`."""
    undecided: PairShare
    """Only a bound is known, and it does not decide which one was faster."""
    bins: tuple[PairShare, ...]
    """One per `BIN_NAMES`. With `bin_undecided` they sum to 1."""
    bin_undecided: PairShare
    """Only a bound is known, and it does not decide the bin."""
    bounds: int
    """Pairs of which only a bound is known, decided or not."""
    median: Median
    typical: Typical
    gain: PairShare
    """Domains whose median speed-up is at least 1.02; its `n` are the domains."""
    lose: PairShare
    """Domains whose median speed-up is at most 1 / 1.02."""
    excluded: Mapping[str, int]
    """Reason -> number of measurement runs without a pair because of it."""
    differs_in: str = ""
    """What the two configurations differ in: client, transport, HTTP version, options. Empty: nothing, or unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedupRow(SpeedupSummary):
    """One row of Table 2."""

    p_wilcoxon: float | None
    """Wilcoxon's signed-rank test of the medians of domains; None without pairs. All tests are two-sided."""
    p_clusters: float | None
    """The signed-rank test of all pairs with domains as clusters (Datta and Satten)."""
    p_sign: float | None
    """The sign test of the medians of domains."""
    p_equivalence: float | None
    """Two one-sided signed-rank tests of the medians of domains: is the speed-up within 2 % of 1?"""
    larger: Mapping[str, LargerClusters]
    """One of `LARGER_CLUSTERS` -> the row with them as the unit, where they are known."""
    intention: Intention
    failures: Failures
    over_providers: Typical | None = None
    """The typical speed-up with providers as the unit, where that is possible: see `verdicts.same_units`."""
    splits: tuple[Split, ...] = ()
    """Its runs by each of `SplitBy` that is known."""
    handshake: float | None = None
    """Median speed-up of the handshake; known where TCP and QUIC are compared."""
    transfer: float | None = None
    """Median speed-up from the answer's first packet to the last body byte."""
    starved: int = 0
    """Pairs of two different clients of which one waited for a CPU."""
    q_bh: float | None = None
    """q-value of `p_wilcoxon` (at least 5 % where the interval over domains holds 1) among all tests of the table
    (Benjamini and Hochberg, weighted); None for other roles."""
    q_by: float | None = None
    """The same for any dependence (Benjamini and Yekutieli)."""
    margin: float | None = None
    """What the interval has to leave for `Size.AT_LEAST`: 1.02, or the noise floor's if that is larger."""
    verdict: Verdict | None = None
    """None for other roles than effects."""
    size: Size | None = None
    """None for other verdicts than faster and slower, and without an interval."""
    split: Split | None = None
    """What explains a mixed row best."""
    q_parts: float | None = None
    """q-value of that split; 1 where none explains; None without parts that could be tested."""

    @property
    def q(self) -> float | None:
        """The q-value that belongs to the verdict: of the split where the row is mixed, else of the direction."""
        return self.q_bh if self.split is None else self.q_parts
