"""Verdicts on claims: an interval of the ratio or difference of two groups of cells, against the claimed range. Pure.

Means: the delta method with B. L. Welch's degrees of freedom ("The generalization of Student's problem when several
different population variances are involved", 1947), in the form for any sum of means (F. E. Satterthwaite, 1946).
Spreads: a permutation test (E. J. G. Pitman, "Significance tests which may be applied to samples from any populations",
1937) of each value that the interval may have; docs/design/study.md says why not a bootstrap.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from analysis.measures.statistics.intervals import Floats, t_quantile
from analysis.study.flows import CellRow, Flows
from core.files.study import Cell, Claim, pairs

CHANCE = 0.05
"""Chance of one or more wrong verdicts in a study."""
SHUFFLES = 4_000
SPREAD_MARGIN = 0.8
"""Share of the chance of a wrong interval that spreads get: residuals are from medians of the same values, so the test
refuses a little too often (6.3 % of simulated studies in place of 5 %)."""
_FARTHEST = 64.0
"""Steps (10 %, or a typical spread) after which the end of an interval is infinite."""
_HALVINGS = 10
_TINY = 1e-12
"""Least variance, of a typical one, against rounding."""

Weights = Sequence[tuple[float, Floats]]
"""A weight and the values of each cell."""


class ClaimVerdict(StrEnum):
    """What the repetitions say of a claim."""

    HOLDS = "holds"
    """The whole interval is within the claimed range."""
    FAILS = "fails"
    """The whole interval is outside."""
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A claim and its verdict."""

    claim: Claim
    verdict: ClaimVerdict
    value: float | None = None
    """Mean over pairs: of ln(a / b) and then as a ratio, or of a - b."""
    low: float | None = None
    high: float | None = None
    a: float | None = None
    """Mean over pairs of what a's cells have, mean or standard deviation."""
    b: float | None = None
    pairs: int = 0
    agree: int = 0
    """Pairs whose own ratio or difference is within the claimed range."""
    a_timeouts: int | None = None
    """Repetitions of a's cells with a timeout; None if it is unknown."""
    b_timeouts: int | None = None
    note: str = ""
    """Why there is no interval, or that it has not all repetitions yet."""


COLUMNS = (
    *("id", "verdict", "kind", "value", "low", "high", "range_low", "range_high", "a", "b", "pairs", "agree"),
    *("a_timeouts", "b_timeouts", "metric", "of", "text", "source", "note"),
)
"""Columns of claims.csv; `kind` is ratio or difference."""


def record(judged: Judged) -> dict[str, Any]:
    """The row of claims.csv."""
    claim = judged.claim
    own = {name: getattr(judged, name) for name in COLUMNS if hasattr(judged, name)}
    own |= {name: getattr(claim, name) for name in ("id", "metric", "of", "text", "source")}
    low, high = claim.bounds
    return {**own, "kind": "ratio" if claim.ratio else "difference", "range_low": low, "range_high": high}


def judge(flows: Flows) -> list[Judged]:
    """All claims of a study, with intervals of 1 - 0.05 / claims."""
    claims = flows.study.claims
    confidence = 1 - CHANCE / max(len(claims), 1)
    return [
        _judged(claim, flows, confidence, np.random.default_rng([flows.study.seed, at]))
        for at, claim in enumerate(claims)
    ]


def _judged(claim: Claim, flows: Flows, confidence: float, random: np.random.Generator) -> Judged:
    couples = pairs(claim, flows.study.cells_of(claim.metric))
    rows = {cell.key: flows.rows[claim.metric, cell.key] for couple in couples for cell in couple}
    sizes = {key: (row.sd if claim.of == "sd" else row.mean) or 0.0 for key, row in rows.items()}
    if note := _fault(claim, rows.values(), sizes.values(), [sizes[other.key] for _, other in couples]):
        return Judged(claim=claim, verdict=ClaimVerdict.UNDECIDED, pairs=len(couples), note=note)
    keys = [(one.key, other.key) for one, other in couples]
    weights = dict.fromkeys(rows, 0.0)
    for one, other in keys:
        weights[one] += 1 / len(keys)
        weights[other] -= 1 / len(keys)
    g: Callable[[float], float] = math.log if claim.ratio else float
    own = [g(sizes[one]) - g(sizes[other]) for one, other in keys]
    value = math.fsum(own) / len(own)
    weighted = [(weights[key], flows.values(claim.metric, row.cell)) for key, row in rows.items()]
    if claim.of == "sd":
        groups = connected(keys)
        spread = Spread(weighted, [groups[key] for key in rows], random, logarithms=claim.ratio is not None)
        low, high = spread.interval(confidence)
    else:
        half = mean_half_width(weighted, confidence, logarithms=claim.ratio is not None)
        low, high = value - half, value + half
    back: Callable[[float], float] = _exp if claim.ratio else float
    incomplete = sum(row.open > 0 for row in rows.values())
    return Judged(
        claim=claim,
        verdict=verdict(back(low), back(high), claim.bounds),
        value=back(value),
        low=back(low),
        high=back(high),
        a=math.fsum(sizes[one] for one, _ in keys) / len(keys),
        b=math.fsum(sizes[other] for _, other in keys) / len(keys),
        pairs=len(keys),
        agree=sum(claim.bounds[0] <= back(one) <= claim.bounds[1] for one in own),
        a_timeouts=_timeouts(flows, claim, (one for one, _ in couples)),
        b_timeouts=_timeouts(flows, claim, (other for _, other in couples)),
        note=f"{incomplete} of {len(rows)} cells are not complete yet" if incomplete else "",
    )


def _exp(log: float) -> float:
    # Beside a gain of almost nothing the end of a ratio is larger than any float.
    return math.exp(log) if log < 700 else math.inf


def _fault(claim: Claim, rows: Collection[CellRow], sizes: Iterable[float], others: Iterable[float]) -> str:
    """Why there can be no interval, as a clause; empty if there can."""
    if not rows:
        return "no cells in the quick form"
    if censored := sum(row.censored > 0 for row in rows):
        return f"{censored} of {len(rows)} cells with censored repetitions"
    if few := sum(row.n < 2 for row in rows):
        return f"{few} of {len(rows)} cells with fewer than two repetitions"
    if claim.ratio and min(sizes) <= 0:
        return f"a {'spread' if claim.of == 'sd' else 'mean'} of 0 has no ratio"
    if claim.of == "sd" and not any(others):
        return "b has no spread, so a's residuals cannot be scaled to it"
    return ""


def _timeouts(flows: Flows, claim: Claim, cells: Iterable[Cell]) -> int | None:
    sources = {source.key: source for cell in cells for source in flows.sources(claim.metric, cell)}
    return flows.timeouts(sources.values())


def verdict(low: float, high: float, bounds: tuple[float, float]) -> ClaimVerdict:
    """Where an interval lies; the claimed range has its ends."""
    least, most = bounds
    if least <= low and high <= most:
        return ClaimVerdict.HOLDS
    return ClaimVerdict.FAILS if high < least or most < low else ClaimVerdict.UNDECIDED


def mean_half_width(weighted: Weights, confidence: float, *, logarithms: bool) -> float:
    """Half the width of the interval of a weighted sum of means, or of their logarithms.

    Args:
        weighted: the cells, each with two or more values; with logarithms, their means are positive.
    """
    parts = [
        (weight**2 * float(own.var(ddof=1)) / len(own) / (float(own.mean()) ** 2 if logarithms else 1), len(own) - 1)
        for weight, own in weighted
    ]
    variance = math.fsum(part for part, _ in parts)
    if variance <= 0:
        return 0.0
    df = variance**2 / math.fsum(part**2 / own for part, own in parts)
    return t_quantile(confidence, df) * math.sqrt(variance)


class Spread:
    """The weighted sum of the standard deviations of cells, or of their logarithms, and what it may be in truth.

    A value is possible if a permutation test does not refuse it: the residuals of a's cells (distances from the median)
    are scaled so that the value would make all cells of a group alike, then shuffled among them. So how often a timeout
    occurs is estimated from both sides, and a side without one is no proof that it never has one.

    Args:
        weighted: the cells, each with two or more values; the weights of a are positive, and those of each group add
            up to 0.
        groups: a number for each cell; the cells of a pair have the same.
    """

    def __init__(
        self, weighted: Weights, groups: Sequence[int], random: np.random.Generator, *, logarithms: bool
    ) -> None:
        sizes = [float(own.std(ddof=1)) for _, own in weighted]
        self._weights = [weight for weight, _ in weighted]
        self._logarithms = logarithms
        self._typical = math.fsum(
            -weight * size for weight, size in zip(self._weights, sizes, strict=True) if weight < 0
        )
        self.value = math.fsum(
            weight * (math.log(size) if logarithms else size) for weight, size in zip(self._weights, sizes, strict=True)
        )
        self._moments: list[Floats] = [np.array([])] * len(weighted)
        for group in dict.fromkeys(groups):
            members = [at for at, own in enumerate(groups) if own == group]
            self._shuffle(members, [weighted[at] for at in members], random)

    def _shuffle(self, members: Sequence[int], cells: Weights, random: np.random.Generator) -> None:
        """For each cell of a group and each shuffle: mean and mean square of what it got from a, and from b."""
        residuals = np.concatenate([own - np.median(own) for _, own in cells])
        from_a = np.concatenate([np.full(len(own), weight > 0) for weight, own in cells])
        parts = np.column_stack(
            (residuals * from_a, residuals**2 * from_a, residuals * ~from_a, residuals**2 * ~from_a)
        )
        order = random.permutation(SHUFFLES)
        for at, counts in zip(members, _shuffles(tuple(len(own) for _, own in cells)), strict=True):
            self._moments[at] = (counts @ parts)[order].T / counts[0].sum()

    def chance(self, truth: float) -> float:
        """The p-value of a true value: how often a shuffle is as far from it as the cells are."""
        factor = math.exp(truth) if self._logarithms else 1 + truth / self._typical
        if factor <= 0:
            return 0.0
        total = np.zeros(SHUFFLES)
        for weight, (a, a2, b, b2) in zip(self._weights, self._moments, strict=True):
            variance = (a2 / factor**2 + b2) - (a / factor + b) ** 2
            spreads = np.sqrt(np.maximum(variance, _TINY * self._typical**2)) * (factor if weight > 0 else 1.0)
            total += weight * (np.log(spreads) if self._logarithms else spreads)
        as_far = np.count_nonzero(np.abs(total - truth) >= abs(self.value - truth) * (1 - 1e-9))
        return float(1 + as_far) / (1 + SHUFFLES)

    def interval(self, confidence: float) -> tuple[float, float]:
        """The values that the test does not refuse; infinite ends with too few repetitions."""
        refused = SPREAD_MARGIN * (1 - confidence)
        return self._end(-1.0, refused), self._end(1.0, refused)

    def _end(self, sign: float, refused: float) -> float:
        unit = sign * (0.1 if self._logarithms else self._typical)
        inner, outer = 0.0, 1.0
        while self.chance(self.value + unit * outer) > refused:
            inner, outer = outer, 2 * outer
            if outer > _FARTHEST:
                return sign * math.inf
        for _ in range(_HALVINGS):
            middle = (inner + outer) / 2
            inner, outer = (middle, outer) if self.chance(self.value + unit * middle) > refused else (inner, middle)
        return self.value + unit * outer


@functools.lru_cache(maxsize=8)
def _shuffles(sizes: tuple[int, ...]) -> list[Floats]:
    """For each cell of these sizes: which of all values it gets in each of `SHUFFLES` shuffles, as 0 and 1."""
    total = sum(sizes)
    random = np.random.default_rng(total)
    cells = np.repeat(np.arange(len(sizes)), sizes)
    owners = random.permuted(np.broadcast_to(cells, (SHUFFLES, total)), axis=1)
    return [(owners == at).astype(np.float64) for at in range(len(sizes))]


def connected(keys: Sequence[tuple[tuple[str, ...], tuple[str, ...]]]) -> dict[tuple[str, ...], int]:
    """Key of a cell -> number of its group: cells of a pair are in one group, also across pairs."""
    groups: dict[tuple[str, ...], int] = {}
    for at, (one, other) in enumerate(keys):
        joined = {groups.get(one, at), groups.get(other, at)}
        groups |= {key: at for key, group in groups.items() if group in joined} | {one: at, other: at}
    return groups
