"""Pairs of downloads within measurement runs, and their speed-ups. Pure; times in s, rates in Mbit/s.

The speed-up of a configuration over a reference within one measurement run is cost(reference) / cost(configuration),
where the cost is the download time (metric `time`) or the reciprocal of the mean throughput (metric `throughput`, the
ratio of ANRW'23). A censored download costs *more* than measured, so only a bound of its pair is known. All runs are
paired at once, as arrays. See docs/method/comparisons.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from analysis.measures.columns import Codes, Floats, Ints, Mask, Texts, rows_by_code
from analysis.measures.rows import SplitBy
from analysis.measures.statistics.intervals import renumbered


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Samples:
    """The costs of downloads: an element of each array per download, if nothing else is said.

    Pairs are made fastest if downloads are in order of configuration and run, as all is read from front to back then.
    """

    download: Codes
    """Index of the download in the dataset."""
    run: Codes
    """Index of the measurement run, from 0; pairs are made only within it."""
    domain: Texts
    """Per run, the unit of tests and intervals; with sorted names; rows are made fastest if its codes are sorted."""
    configuration: Texts
    """A run has each at most once."""
    low: Floats
    """The cost is `low` if `low == high`, else strictly between both; infinite if the download failed."""
    high: Floats
    excluded: Texts
    """Why a download is left out of speed-ups, e.g. `failed`; empty if it is not."""
    planned: Mask
    """Whether it counts by intention to treat: it failed, or ran as planned, whatever options were on the wire."""
    larger: Mapping[str, Texts] = field(default_factory=dict)
    """Larger clusters that it belongs to, e.g. `AS` -> `64496`, with sorted names; empty: unknown."""
    at_byte: Mask
    """Whether the byte budget ended it, for the metric `time`; `low` is then its cost up to that byte."""
    splits: Mapping[SplitBy, Texts] = field(default_factory=dict)
    """What the runs are split by, of which it is the reference; this and `durations` by index in the dataset."""
    twins: Mapping[str, str] = field(default_factory=dict)
    """Configuration -> its partner in a noise floor, which is the same in all but the name."""
    acted: Mapping[tuple[str, str], Texts] = field(default_factory=dict)
    """(configuration, reference) -> per run whether one of the options in which they differ took effect."""
    durations: Mapping[str, npt.NDArray[np.float32]] = field(default_factory=dict)
    """`handshake` and `transfer` -> how long it took [s]; NaN: unknown."""
    quic: frozenset[str] = frozenset()
    """The configurations over QUIC."""
    without_http3: frozenset[str] = frozenset()
    """Domains at which nothing was planned over QUIC."""
    client: Texts | None = None
    """This and `starved` by index in the dataset."""
    starved: Mask | None = None
    """Whether the client waited for a CPU, see `ceilings.starved`."""
    _rows: dict[str, Codes] = field(default_factory=dict, init=False, repr=False)
    """Results of `rows_of`: rows of Table 2, as treated and as planned, and its parts by dose need the same."""

    def __len__(self) -> int:
        return len(self.run)

    def part(self, rows: Ints) -> Samples:
        """Only these downloads, and their runs."""
        runs, run = np.unique(self.run[rows], return_inverse=True)
        return replace(
            self,
            download=self.download[rows],
            run=run,
            domain=self.domain[runs],
            configuration=self.configuration[rows],
            low=self.low[rows],
            high=self.high[rows],
            excluded=self.excluded[rows],
            planned=self.planned[rows],
            larger={name: clusters[rows] for name, clusters in self.larger.items()},
            at_byte=self.at_byte[rows],
            acted={sides: texts[runs] for sides, texts in self.acted.items()},
        )

    def parts(self, groups: Texts) -> dict[str, Samples]:
        """The downloads of each group that occurs; `groups` has one per download."""
        members = zip(groups.names, rows_by_code(groups.codes, len(groups.names)), strict=True)
        return {name: self.part(rows) for name, rows in members if len(rows)}

    def rows_of(self, configuration: str) -> Codes:
        """Per run, the index of its download of this configuration, -1 without one; not to be written to."""
        known = self._rows.get(configuration)
        if known is not None:
            return known
        of_run = np.full(len(self.domain), -1, dtype=np.int32)
        if configuration in self.configuration.names:
            rows = np.flatnonzero(self.configuration.codes == self.configuration.names.index(configuration))
            of_run[self.run[rows]] = rows
        of_run.flags.writeable = False
        self._rows[configuration] = of_run
        return of_run


def _none() -> Ints:
    return np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pairs:
    """Pairs of one row, as arrays; speed-ups are `low` if `low == high`, else strictly between."""

    low: Floats
    high: Floats
    domain: Ints
    """Index of the domain, in order of name; every one has a pair."""
    domains: int
    config: Codes = field(default_factory=_none)
    """Index of the configuration's download in the samples; no elements for pairs of other origin."""
    vs: Codes = field(default_factory=_none)
    """Index of the reference's download."""
    excluded: Mapping[str, int] = field(default_factory=dict)
    """Reason -> number of measurement runs without a pair because of it."""
    larger: Mapping[str, Ints] = field(default_factory=dict)
    """Larger clusters, e.g. `AS` -> index of each pair's; without those that are unknown for some pair."""
    splits: Mapping[SplitBy, Texts] = field(default_factory=dict)
    """The part of each pair."""
    limited: str | None = None
    """Whose download tells the part by limiter."""
    described: frozenset[SplitBy] = frozenset()
    """Splits by what one of the pair's own downloads met: the luck that slowed it tells its part, too, so they would
    differ without any effect. They are not tested."""
    durations: Mapping[str, Floats] = field(default_factory=dict)
    """`handshake` and `transfer` -> speed-up of each pair, NaN where unknown; only where TCP and QUIC are compared."""
    starved: int = 0
    """Pairs of two different clients of which one waited for a CPU."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlannedPairs:
    """Pairs of one row by intention to treat: all that were planned and measured, also those that failed."""

    pairs: Pairs
    """A failed download is slower than any other: a speed-up of 0 or infinity, and 1 if both failed. The same object as
    the row's pairs where all was as planned, so nothing is computed twice."""
    config_failed: Ints
    """Per pair, 1 if the configuration failed."""
    vs_failed: Ints
    """Per pair, 1 if the reference failed."""


def pair(samples: Samples, config: str, vs: str, *, runs: Mask | None = None) -> Pairs:
    """Pairs the downloads of `config` and `vs` within each measurement run, as they were treated.

    Args:
        runs: which runs to pair; None for all.
    """
    sides = considered(samples, config, vs, runs=runs)
    numbers = np.bincount(sides.why.codes + 1, minlength=len(sides.why.names) + 1)[1:]
    named = sorted(zip(sides.why.names, numbers, strict=True))
    treated = np.flatnonzero(sides.why.codes < 0)
    pairs = _pairs(samples, samples.domain.codes[sides.runs[treated]], sides.config[treated], sides.vs[treated])
    reference, larger = samples.download[pairs.vs], dict(_larger(samples, pairs.config))
    splits = {by: texts[reference] for by, texts in samples.splits.items()}
    twin = samples.twins.get(vs)
    limited = vs if twin is None or twin == config else twin
    if limited != vs and SplitBy.LIMITER in splits:
        splits[SplitBy.LIMITER] = _of_other(samples, limited, sides.runs[treated])
    described = {SplitBy.DOSE} if limited != vs else {SplitBy.DOSE, SplitBy.LIMITER}
    if "vantage" in larger:
        splits[SplitBy.VANTAGE] = samples.larger["vantage"][pairs.config]
    if (config, vs) in samples.acted:
        splits[SplitBy.DOSE] = samples.acted[config, vs][sides.runs[treated]]
    durations = {}
    if (config in samples.quic) != (vs in samples.quic):
        with np.errstate(divide="ignore", invalid="ignore"):
            durations = {
                name: (values[reference] / values[samples.download[pairs.config]]).astype(np.float64)
                for name, values in samples.durations.items()
            }
    return replace(
        pairs,
        excluded={reason: int(number) for reason, number in named if number},
        larger=larger,
        splits=splits,
        limited=limited,
        described=frozenset(described),
        durations=durations,
        starved=_starved(samples, pairs),
    )


def _of_other(samples: Samples, configuration: str, runs: Ints) -> Texts:
    """What limited the download of a configuration in each of these runs; unknown where it has none."""
    texts, rows = samples.splits[SplitBy.LIMITER], samples.rows_of(configuration)[runs]
    return Texts(np.where(rows >= 0, texts.codes[samples.download[rows]], -1), texts.names)


def _starved(samples: Samples, pairs: Pairs) -> int:
    """How many are of different clients of which one waited for a CPU."""
    if samples.client is None or samples.starved is None:
        return 0
    config, vs = (samples.download[side] for side in (pairs.config, pairs.vs))
    do_differ = samples.client.codes[config] != samples.client.codes[vs]
    return int(np.count_nonzero(do_differ & (samples.starved[config] | samples.starved[vs])))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Considered:
    """The measurement runs that have a download of one of two configurations, in their order."""

    runs: Ints
    config: Codes
    """Index of the configuration's download in the samples, -1 without one."""
    vs: Codes
    """The same of the reference."""
    why: Texts
    """Why there is no pair, e.g. `BL failed`; empty if there is one."""


def considered(samples: Samples, config: str, vs: str, *, runs: Mask | None = None) -> Considered:
    """What `pair` pairs, and what it leaves out."""
    sides = [samples.rows_of(name) for name in (config, vs)]
    is_there = (sides[0] >= 0) | (sides[1] >= 0)
    chosen = np.flatnonzero(is_there if runs is None else is_there & runs)
    first, second = (rows[chosen] for rows in sides)
    reasons, why = _why_not(samples, chosen, {config: first, vs: second})
    return Considered(runs=chosen, config=first, vs=second, why=Texts(why - 1, tuple(reasons)))


def pair_planned(samples: Samples, config: str, vs: str, treated: Pairs) -> PlannedPairs:
    """Pairs the downloads of `config` and `vs` within each measurement run, as they were planned.

    Args:
        treated: the same as they were treated.
    """
    sides = [samples.rows_of(name) for name in (config, vs)]
    both = np.flatnonzero((sides[0] >= 0) & (sides[1] >= 0))
    runs = both[samples.planned[sides[0][both]] & samples.planned[sides[1][both]]]
    first, second = (rows[runs] for rows in sides)
    pairs = treated
    if not (np.array_equal(first, treated.config) and np.array_equal(second, treated.vs)):
        pairs = _pairs(samples, samples.domain.codes[runs], first, second)
    return PlannedPairs(
        pairs=pairs,
        config_failed=np.isinf(samples.low[pairs.config]).astype(np.int64),
        vs_failed=np.isinf(samples.low[pairs.vs]).astype(np.int64),
    )


ABSENT = ("not in the run", "not planned, known to be without HTTP/3")
"""Why there is no download; the other reasons are those of the samples."""


def _why_not(samples: Samples, runs: Ints, sides: Mapping[str, Codes]) -> tuple[list[str], Codes]:
    """Reasons, and for each run with one of the two the number of the first that holds, from 1; 0 for none."""
    domains = samples.domain
    is_apart = np.array([name in samples.without_http3 for name in domains.names], dtype=np.bool_)[domains.codes[runs]]
    reasons: list[str] = []
    why: Codes = np.zeros(len(next(iter(sides.values()))), dtype=np.int32)
    for name, rows in sides.items():
        numbers = samples.excluded.codes[rows].astype(np.int32) + len(ABSENT) + 1
        numbers[numbers == len(ABSENT)] = 0
        numbers[rows < 0] = 1
        if name in samples.quic:
            numbers[(rows < 0) & is_apart] = 2
        new = (why == 0) & (numbers > 0)
        why[new] = numbers[new] + len(reasons)
        reasons += [f"{name} {reason}" for reason in (*ABSENT, *samples.excluded.names)]
    return reasons, why


def _pairs(samples: Samples, domain: Codes, config: Codes, vs: Codes) -> Pairs:
    low, high = ratios(*cost_bounds(samples, config, vs))
    code, domains = renumbered(domain)
    return Pairs(low=low, high=high, domain=code, domains=domains, config=config, vs=vs)


def cost_bounds(samples: Samples, *sides: Codes) -> list[tuple[Floats, Floats]]:
    """Lower and upper bounds of the costs of downloads that are compared, an element of each side per run."""
    costs = [(samples.low[rows], samples.high[rows]) for rows in sides]
    if not samples.at_byte.any():
        return costs
    # All were cut: at the same byte, as all clients count exactly, or some at their time budgets, before they had so
    # many bytes.
    cut = np.all([low < high for low, high in costs], axis=0)
    return [
        (low, np.where(cut & samples.at_byte[rows], low, high)) for (low, high), rows in zip(costs, sides, strict=True)
    ]


def _larger(samples: Samples, config: Codes) -> Iterator[tuple[str, Ints]]:
    for name, clusters in samples.larger.items() if len(config) else ():
        codes = clusters.codes[config]
        if codes.min() >= 0:
            yield name, renumbered(codes)[0]


def ratios(config: tuple[Floats, Floats], vs: tuple[Floats, Floats]) -> tuple[Floats, Floats]:
    """Bounds of the speed-ups cost(vs) / cost(config); equal where both costs are known, or one failed.

    Args:
        config, vs: lower and upper bounds of the costs.
    """
    (config_low, config_high), (vs_low, vs_high) = config, vs
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        low = vs_low / config_low
    # Two different floats may have the quotient 1.0; the comparison must still be right.
    even = np.flatnonzero(low == 1.0)
    difference = vs_low[even] - config_low[even]
    low[even] = np.select([difference < 0, difference > 0], [np.nextafter(1.0, 0.0), np.nextafter(1.0, 2.0)], 1.0)
    high = low.copy()
    is_known = (config_low == config_high) & (config_low < np.inf) & (vs_low == vs_high) & (vs_low < np.inf)
    others = np.flatnonzero(~is_known)
    low[others], high[others] = _open_ratios(*(side[others] for side in (config_low, config_high, vs_low, vs_high)))
    return low, high


def _open_ratios(config_low: Floats, config_high: Floats, vs_low: Floats, vs_high: Floats) -> tuple[Floats, Floats]:
    """`ratios` of pairs with a bound, or a failed download."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        low = np.where(np.isinf(config_high), 0.0, vs_low / config_high)
        high = np.where((config_low == 0.0) | np.isinf(vs_high), np.inf, vs_high / config_low)
    config_failed, vs_failed = np.isinf(config_low), np.isinf(vs_low)
    either = config_failed | vs_failed
    failed = np.where(config_failed, np.where(vs_failed, 1.0, 0.0), np.inf)
    return np.where(either, failed, low), np.where(either, failed, high)
