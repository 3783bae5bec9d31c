"""Simulation with the functions that tables use: coverage of every printed interval, false calls, and power.

`pytest -s` prints the numbers. Why the methods are these: docs/method/statistics.md.
"""

from __future__ import annotations

from collections import Counter
from itertools import product

import numpy as np
import pytest

from analysis.measures.pairs import Pairs
from analysis.measures.rows import BIN_EDGES, BIN_NAMES, PairShare, Verdict
from analysis.measures.speedup import row_of
from analysis.measures.verdicts import SIGNIFICANCE
from core.domain import Comparison
from tests.cells import Repeats, cells
from tests.statistics_simulation import DISTRIBUTIONS, as_pairs, campaign, draw

pytestmark = pytest.mark.thorough

AB = Comparison.of("A", "B")
LEAST = 0.93
MOST = 0.98
LARGE = 50
"""From so many domains on, intervals may not be too wide, either."""
MANY = 5.0
"""Share x other share x domains from which on an interval can have a coverage near 0.95. Most campaigns have no pair of
a rarer share, and their interval from 0 always covers it."""
CALLED = {Verdict.FASTER, Verdict.SLOWER}


def truth(name: str, iterations: int) -> tuple[float, dict[str, float]]:
    """The median of domains' median speed-ups, and the share of pairs per bin, and of those that are faster."""
    logs = draw(name, np.random.default_rng(1), 1_000_000, iterations)
    speedups = np.exp(logs).ravel()
    bins = np.bincount(np.searchsorted(BIN_EDGES, speedups, side="right"), minlength=len(BIN_NAMES)) / len(speedups)
    shares = dict(zip(BIN_NAMES, map(float, bins), strict=True))
    shares |= {"faster": float(np.mean(speedups > 1)), "slower": float(np.mean(speedups < 1))}
    return float(np.exp(np.median(np.median(logs, axis=1)))), shares


def covers(share: PairShare, value: float) -> bool:
    assert share.low is not None and share.high is not None
    return share.low <= value <= share.high


@cells(
    "name,domains,iterations",
    every=product(DISTRIBUTIONS, (10, 16, 50, 200), (1, 3)),
    quick=[("bimodal", 10, 3), ("heavy", 200, 3), ("normal", 50, 1)],
)
def test_intervals_cover_in_95_percent(name: str, domains: int, iterations: int, repeats: Repeats) -> None:
    median, shares = truth(name, iterations)
    times = repeats(quick=1000, soak=4000)
    hits: Counter[str] = Counter()
    for seed in range(times):
        logs = draw(name, np.random.default_rng([seed, domains, iterations]), domains, iterations)
        row = row_of(*as_pairs(logs), AB)
        printed = {"faster": row.faster, "slower": row.slower, **dict(zip(BIN_NAMES, row.bins, strict=True))}
        hits.update(part for part, share in printed.items() if covers(share, shares[part]))
        assert row.median.low is not None and row.median.high is not None
        hits["median"] += row.median.low <= median <= row.median.high
    coverage = {part: hits[part] / times for part in ("median", *shares)}
    print(f"\n{name}, {domains} domains x {iterations}:", ", ".join(f"{k} {v:.3f}" for k, v in coverage.items()))
    assert min(coverage.values()) >= LEAST, coverage
    if domains >= LARGE:
        common = [part for part, share in shares.items() if share * (1 - share) * domains >= MANY]
        assert len(common) >= 4 and max(coverage[part] for part in ("median", *common)) <= MOST, coverage


@cells("domains", every=[10, 50, 200], quick=[50])
def test_intervals_cover_where_references_are_censored(domains: int, repeats: Repeats) -> None:
    """The slowest 40 % of the references were stopped at 80 % of their time, which often decides nothing."""
    _, shares = truth("normal", 1)
    missed = 0
    times = repeats(quick=300, soak=2000)
    for seed in range(times):
        rng = np.random.default_rng([seed, domains])
        pairs, planned = as_pairs(draw("normal", rng, domains, 1))
        censored = pairs.low >= np.quantile(pairs.low, 0.6)
        low, high = np.where(censored, 0.8 * pairs.low, pairs.low), np.where(censored, np.inf, pairs.high)
        bounds = Pairs(low=low, high=high, domain=pairs.domain, domains=domains)
        row = row_of(bounds, planned, AB)
        missed += not covers(row.faster, shares["faster"]) or not covers(row.slower, shares["slower"])
    print(f"\n40 % censored, {domains} domains: {1 - missed / times:.3f}")
    assert missed / times <= 1 - LEAST


@cells(
    "domains,iterations,noise",
    every=[(10, 1, 0.1), (16, 3, 0.3), (48, 1, 0.1), (48, 3, 0.1), (200, 1, 0.1)],
    quick=[(10, 1, 0.1)],
)
def test_campaigns_without_any_effect_call_nothing(
    domains: int, iterations: int, noise: float, repeats: Repeats
) -> None:
    called = significant = 0
    times = repeats(quick=200, soak=1000)
    for seed in range(times):
        rows = campaign(np.random.default_rng([seed, domains, iterations]), domains, iterations, noise=noise)
        called += any(row.verdict in CALLED for row in rows)
        significant += any(row.q_bh is not None and row.q_bh < SIGNIFICANCE for row in rows)
    print(f"\nA/A, {domains} x {iterations}, noise {noise}: called {called / times}, any q {significant / times}")
    assert called <= 0.05 * times
    # What the margin holds back must not hide a test that is wrong; three standard errors for chance.
    assert significant / times <= 0.05 + 3 * (0.05 * 0.95 / times) ** 0.5


@pytest.mark.parametrize(
    ("iterations", "noise", "least_significant", "least_called"),
    [(3, 0.1, 0.99, 0.90), (1, 0.1 / 2**0.5, 0.99, 0.88), (1, 0.1, 0.95, 0.5)],
)
def test_five_percent_are_found_with_200_domains(
    iterations: int, noise: float, least_significant: float, least_called: float, repeats: Repeats
) -> None:
    """With 10 % noise of each download, and of each pair. One iteration and 10 % of each download are too little to be
    sure of more than 2 %, see analysis.md."""
    found: Counter[str] = Counter()
    times = repeats(quick=60, soak=1000)
    for seed in range(times):
        rows = campaign(np.random.default_rng([seed, iterations]), 200, iterations, noise=noise, faster={"WS": 1.05})
        row = next(row for row in rows if row.comparison.name == "WS vs BL")
        found["significant"] += row.q_bh is not None and row.q_bh < SIGNIFICANCE
        found["called"] += row.verdict is Verdict.FASTER
        found["wrong"] += any("WS" not in other.comparison.name and other.verdict in CALLED for other in rows)
    print(f"\npower, 200 x {iterations}, noise {noise:.3f}:", {name: count / times for name, count in found.items()})
    assert found["significant"] >= least_significant * times
    assert found["called"] >= least_called * times
    assert found["wrong"] <= 0.05 * times
