"""Costs of downloads written one by one, and how they become `Samples`; pairs of them made run by run."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from analysis.measures import speedup
from analysis.measures.columns import Ints, Texts
from analysis.measures.pairs import Pairs, PlannedPairs, Samples, pair, pair_planned
from analysis.measures.rows import SpeedupRow, SplitBy
from core.domain import Comparison, Role


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
    splits: Mapping[SplitBy, str | None] = field(default_factory=dict)
    at_byte: bool = False
    """Whether the byte budget ended it."""
    durations: Mapping[str, float] = field(default_factory=dict)
    quic: bool = False
    client: str | None = None
    starved: bool = False

    @property
    def failed(self) -> bool:
        return math.isinf(self.low)


def texts(values: Sequence[str | None]) -> Texts:
    names = tuple(sorted({value for value in values if value is not None}))
    return Texts(np.array([-1 if v is None else names.index(v) for v in values], dtype=np.int64), names)


def twins_of(comparisons: Iterable[Comparison]) -> dict[str, str]:
    """Configuration -> its partner in a noise floor."""
    floors = [(c.config, c.vs) for c in comparisons if c.role is Role.NOISE_FLOOR]
    return dict(floors) | {vs: config for config, vs in floors}


def table(samples: Iterable[Sample], comparisons: Iterable[Comparison] = ()) -> Samples:
    """The samples as columns; runs are numbered in order of appearance."""
    rows = list(samples)
    domains: dict[Hashable, str] = {}
    for row in rows:
        domains.setdefault(row.run, row.domain)
    numbers = {run: number for number, run in enumerate(domains)}
    names = list(rows[0].larger) if rows else []
    return Samples(
        download=np.arange(len(rows)),
        run=np.array([numbers[row.run] for row in rows], dtype=np.int64),
        domain=texts(list(domains.values())),
        configuration=texts([row.configuration for row in rows]),
        low=np.array([row.low for row in rows], dtype=np.float64),
        high=np.array([row.high for row in rows], dtype=np.float64),
        excluded=texts([row.excluded for row in rows]),
        planned=np.array([row.planned for row in rows], dtype=np.bool_),
        larger={name: texts([row.larger[name] for row in rows]) for name in names},
        at_byte=np.array([row.at_byte for row in rows], dtype=np.bool_),
        splits={by: texts([row.splits[by] for row in rows]) for by in (rows[0].splits if rows else ())},
        twins=twins_of(comparisons),
    )


def speedup_row(samples: Iterable[Sample], comparison: Comparison) -> SpeedupRow:
    """One row without q-values and verdict."""
    made = table(samples)
    pairs = pair(made, comparison.config, comparison.vs)
    planned = pair_planned(made, comparison.config, comparison.vs, pairs)
    return speedup.row_of(pairs, planned, comparison)


def table2(samples: Iterable[Sample], comparisons: Sequence[Comparison]) -> list[SpeedupRow]:
    """All rows, of one group."""
    return speedup.speedup_rows({"": table(samples, comparisons)}, comparisons)


def slow_pair(
    samples: Iterable[Sample],
    config: str,
    vs: str,
    acted: Mapping[Hashable, bool | None] | None = None,
    twins: Mapping[str, str] | None = None,
) -> tuple[Pairs, PlannedPairs]:
    """`pair` as one would write it on paper, run by run.

    Args:
        acted: run -> whether an option took effect; None: the options do not tell.
        twins: configuration -> its partner in a noise floor.
    """
    limited = (twins or {}).get(vs, vs)
    limited = vs if limited == config else limited
    limiters = {one.run: one.splits.get(SplitBy.LIMITER) for one in samples if one.configuration == limited}
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
    pairs = dataclasses.replace(_pairs(found, dict(sorted(excluded.items()))), **_of_treated(found, acted, limiters))
    own = {SplitBy.DOSE, SplitBy.LIMITER} if limited == vs else {SplitBy.DOSE}
    pairs = dataclasses.replace(pairs, limited=limited, described=frozenset(own))
    return pairs, PlannedPairs(
        pairs=_pairs(planned, {}),
        config_failed=np.array([one.failed for one, _ in planned], dtype=np.int64),
        vs_failed=np.array([other.failed for _, other in planned], dtype=np.int64),
    )


def _of_treated(
    found: Sequence[tuple[Sample, Sample]],
    acted: Mapping[Hashable, bool | None] | None,
    limiters: Mapping[Hashable, str | None],
) -> dict[str, Any]:
    splits = {by: texts([vs.splits[by] for _, vs in found]) for by in (found[0][1].splits if found else ())}
    if SplitBy.LIMITER in splits:
        splits[SplitBy.LIMITER] = texts([limiters.get(vs.run) for _, vs in found])
    if found and "vantage" in found[0][0].larger and None not in [config.larger["vantage"] for config, _ in found]:
        splits[SplitBy.VANTAGE] = texts([config.larger["vantage"] for config, _ in found])
    if acted is not None:
        words = {True: "acted", False: "idle", None: None}
        splits[SplitBy.DOSE] = texts([words[acted[config.run]] for config, _ in found])
    durations = {}
    if found and found[0][0].quic != found[0][1].quic:
        with np.errstate(divide="ignore", invalid="ignore"):
            for name in found[0][0].durations:
                sides = [
                    np.array([side.durations[name] for side in each], dtype=np.float32)
                    for each in zip(*found, strict=True)
                ]
                durations[name] = (sides[1] / sides[0]).astype(np.float64)
    waited = sum(one.starved or other.starved for one, other in found if one.client != other.client)
    return {"splits": splits, "durations": durations, "starved": waited}


def _why_not(sample: Sample | None, name: str) -> str | None:
    if sample is None:
        return f"{name} not in the run"
    return f"{name} {sample.excluded}" if sample.excluded else None


def _pairs(found: Sequence[tuple[Sample, Sample]], excluded: Mapping[str, int]) -> Pairs:
    bounds = [ratio(config, vs) for config, vs in found]
    domain, domains = _codes([config.domain for config, _ in found])
    larger = {}
    for name in found[0][0].larger if found else ():
        members = [config.larger[name] for config, _ in found]
        if None not in members:
            larger[name] = _codes(members)[0]
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
    both_cut = math.isinf(config.high) and math.isinf(vs.high)
    if both_cut and config.at_byte and vs.at_byte:
        return ratio(dataclasses.replace(config, high=config.low), dataclasses.replace(vs, high=vs.low))
    config_high = config.low if both_cut and config.at_byte else config.high
    vs_high = vs.low if both_cut and vs.at_byte else vs.high
    low = 0.0 if math.isinf(config_high) else vs.low / config_high
    high = math.inf if config.low == 0.0 or math.isinf(vs_high) else vs_high / config.low
    return low, high


def _codes(keys: Sequence[str | None]) -> tuple[Ints, int]:
    found = texts(keys)
    return found.codes.astype(np.int64), len(found.names)
