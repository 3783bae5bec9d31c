"""Simulation with the functions that tables use: coverage of every printed interval, false calls, and power.

`pytest -s` prints the numbers. Why the methods are these: docs/method/statistics.md.
"""

from __future__ import annotations

import math
from collections import Counter
from itertools import product

import numpy as np
import pytest

from analysis.measures.pairs import Pairs
from analysis.measures.rows import BIN_EDGES, BIN_NAMES, PairShare, Size, SpeedupRow, SplitBy, Unit, Verdict
from analysis.measures.speedup import row_of
from analysis.measures.statistics.intervals import Floats, hodges_lehmann
from analysis.measures.statistics.tests import domains_needed, signed_rank
from analysis.measures.verdicts import LEAST_MARGIN, judge, same_units
from core.domain import Comparison
from tests.cells import Repeats, cells
from tests.statistics_simulation import DISTRIBUTIONS, as_pairs, campaign, draw
from tests.unit.samples import Sample, table2

pytestmark = pytest.mark.thorough

AB = Comparison.of("A", "B")
LEAST = 0.93
MOST = 0.98
LARGE = 50
"""From so many domains on, intervals may not be too wide, either."""
MANY = 5.0
"""Share x other share x domains from which on an interval can have a coverage near 0.95. Most campaigns have no pair of
a rarer share, and their interval from 0 always covers it."""
DIRECTED = {Verdict.FASTER, Verdict.SLOWER}
CALLED = {*DIRECTED, Verdict.MIXED}


def truth(name: str, iterations: int) -> tuple[dict[str, float], dict[str, float]]:
    """The median of domains' median speed-ups and that of the means of two domains; and the share of pairs per bin and
    side, and of domains that gain and lose."""
    logs = draw(name, np.random.default_rng(1), 1_000_000, iterations)
    speedups = np.exp(logs).ravel()
    bins = np.bincount(np.searchsorted(BIN_EDGES, speedups, side="right"), minlength=len(BIN_NAMES)) / len(speedups)
    shares = dict(zip(BIN_NAMES, map(float, bins), strict=True))
    shares |= {"faster": float(np.mean(speedups > 1)), "slower": float(np.mean(speedups < 1))}
    of_domains = np.median(logs, axis=1)
    shares |= {"gain": float(np.mean(of_domains >= LEAST_MARGIN)), "lose": float(np.mean(of_domains <= -LEAST_MARGIN))}
    typical = np.median((of_domains[::2] + of_domains[1::2]) / 2)
    return {"median": float(np.exp(np.median(of_domains))), "typical": float(np.exp(typical))}, shares


def contradicts(row: SpeedupRow) -> bool:
    """Whether a row has a direction beside an interval that holds 1, and does not say that this is of its providers."""
    low, high = row.typical.low, row.typical.high
    if row.verdict not in DIRECTED or row.size is Size.THESE_PROVIDERS or low is None or high is None:
        return False
    return low <= 1 <= high


def covers(share: PairShare, value: float) -> bool:
    assert share.low is not None and share.high is not None
    return share.low <= value <= share.high


@cells(
    "name,domains,iterations",
    every=product(DISTRIBUTIONS, (10, 16, 50, 200), (1, 3)),
    quick=[("bimodal", 10, 3), ("heavy", 200, 3), ("normal", 50, 1)],
)
def test_intervals_cover_in_95_percent(name: str, domains: int, iterations: int, repeats: Repeats) -> None:
    centres, shares = truth(name, iterations)
    times = repeats(quick=1000, soak=4000)
    hits: Counter[str] = Counter()
    for seed in range(times):
        logs = draw(name, np.random.default_rng([seed, domains, iterations]), domains, iterations)
        row = row_of(*as_pairs(logs), AB)
        printed = {"faster": row.faster, "slower": row.slower, "gain": row.gain, "lose": row.lose}
        printed |= zip(BIN_NAMES, row.bins, strict=True)
        hits.update(part for part, share in printed.items() if covers(share, shares[part]))
        for part, found in (("median", row.median), ("typical", row.typical)):
            assert found.low is not None and found.high is not None
            hits[part] += found.low <= centres[part] <= found.high
    coverage = {part: hits[part] / times for part in (*centres, *shares)}
    print(f"\n{name}, {domains} domains x {iterations}:", ", ".join(f"{k} {v:.3f}" for k, v in coverage.items()))
    assert min(coverage.values()) >= LEAST, coverage
    if domains >= LARGE:
        common = [part for part, share in shares.items() if share * (1 - share) * domains >= MANY]
        assert len(common) >= 4 and max(coverage[part] for part in (*centres, *common)) <= MOST, coverage


@cells("domains", every=[10, 50, 200], quick=[50])
def test_intervals_cover_where_references_are_censored(domains: int, repeats: Repeats) -> None:
    """The slowest 40 % of the references were stopped at 80 % of their time, which often decides nothing."""
    _, shares = truth("normal", 1)
    missed = 0
    times = repeats(quick=150, soak=2000)
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
    "domains,spread",
    every=product((16, 50, 200), (0.0, 0.02, 0.05, 0.1)),
    quick=[(50, 0.1), (16, 0.0)],
)
def test_the_typical_speedup_covers_also_where_effects_are_the_providers(
    domains: int, spread: float, repeats: Repeats
) -> None:
    """Six providers of unequal size with random effects; intervals over domains alone would cover 0.24 to 0.96."""
    times, hits, used = repeats(quick=100, soak=1000), 0, 0
    called = Counter[str]()
    for seed in range(times):
        rng = np.random.default_rng([seed, domains])
        provider = rng.choice(6, domains, p=rng.dirichlet(np.full(6, 3)))
        logs = rng.normal(0, spread, 6)[provider] + rng.normal(0, 0.1, domains)
        (row,) = judge([row_of(*as_pairs(logs[:, None], {SplitBy.PROVIDER: provider[:, None]}), AB)])
        assert row.typical.low is not None and row.typical.high is not None
        hits += row.typical.low <= 1 <= row.typical.high
        used += row.typical.unit is Unit.PROVIDER
        called[f"{row.verdict}, {row.size}" if row.verdict in DIRECTED else str(row.verdict)] += 1
        assert not contradicts(row)
    print(f"\n{domains} domains, providers {spread}: {hits / times:.3f}, providers are the unit in {used / times:.2f}")
    print({word: count / times for word, count in sorted(called.items())})
    # Where providers differ by less than their domains do, the test that chooses the unit overlooks some.
    assert hits / times >= 0.9


def of_providers(
    rng: np.random.Generator, effects: Floats, domains: int, noise: float, largest: float | None
) -> tuple[SpeedupRow, Floats]:
    """A row of domains of providers with these effects, and the shares of the providers.

    Args:
        noise: standard deviation of a domain's log speed-up.
        largest: share of the first provider; None: shares are random, none is small.
    """
    others = np.full(len(effects) - 1, (1 - (largest or 0.0)) / (len(effects) - 1))
    shares = np.array([largest, *others]) if largest else rng.dirichlet(np.full(len(effects), 3))
    provider = rng.choice(len(effects), domains, p=shares)
    logs = effects[provider] + rng.normal(0, noise, domains)
    (row,) = judge([row_of(*as_pairs(logs[:, None], {SplitBy.PROVIDER: provider[:, None]}), AB)])
    assert not contradicts(row)
    return row, shares


@cells("domains,spread", every=product((16, 50, 200), (0.0, 0.02, 0.05, 0.1)), quick=[(50, 0.1)])
def test_beside_one_large_provider_an_interval_covers_what_its_unit_says(
    domains: int, spread: float, repeats: Repeats
) -> None:
    """Of six providers with random effects one has 80 % of the domains: where these are the unit, the row is nearly
    that provider's, whose effect is not the mean of all providers."""
    times, hits = repeats(quick=40, soak=1000), Counter[str]()
    for seed in range(times):
        rng = np.random.default_rng([seed, domains])
        effects = rng.normal(0, spread, 6)
        row, shares = of_providers(rng, effects, domains, 0.1, 0.8)
        targets = effects[rng.choice(6, 2000, p=shares)] + rng.normal(0, 0.1, 2000)
        truth = {Unit.DOMAIN: float(np.exp(hodges_lehmann(targets, targets)[0])), Unit.PROVIDER: 1.0}
        assert row.typical.low is not None and row.typical.high is not None
        covered = {unit: row.typical.low <= value <= row.typical.high for unit, value in truth.items()}
        hits.update({"its unit": covered[row.typical.unit], "providers": covered[Unit.PROVIDER], row.typical.unit: 1})
    print(f"\n{domains} domains, 80 % of one provider, {spread}:", {what: n / times for what, n in hits.items()})
    assert hits["its unit"] >= 0.9 * times


@cells(
    "providers,spread,largest",
    every=product((5, 12, 30), (0.0, 0.005, 0.01, 0.02), (None, 0.8)),
    quick=[(5, 0.005, None)],
)
def test_equivalence_where_effects_are_the_providers(
    providers: int, spread: float, largest: float | None, repeats: Repeats
) -> None:
    """200 domains, 5 % of noise: how often a row is equivalent where the providers' mean is 2 %, and where it is 0.

    It is wrong where what its unit speaks of is not within 2 %: the mean of the providers, or that of the domains.
    """
    times, called = repeats(quick=40, soak=1000), Counter[str]()
    for seed in range(times):
        for mean in (LEAST_MARGIN, 0.0):
            rng = np.random.default_rng([seed, providers])
            effects = rng.normal(mean, spread, providers)
            row, shares = of_providers(rng, effects, 200, 0.05, largest)
            over_providers = row.typical.unit is Unit.PROVIDER
            if row.verdict is not Verdict.EQUIVALENT:
                continue
            called["mean 2 %" if mean else "mean 0"] += 1
            called[f"of these, over {'providers' if over_providers else 'domains'}, {'2 %' if mean else '0'}"] += 1
            truth = mean if over_providers else float(shares @ effects)
            called["wrong"] += mean > 0 and truth >= LEAST_MARGIN
    print(f"\n{providers} providers, {spread}, largest {largest}:", {what: n / times for what, n in called.items()})
    assert called["wrong"] <= 0.05 * times
    if spread <= 0.005:
        assert called["mean 0"] >= 0.4 * times


@cells(
    "domains,iterations,noise,lossy",
    every=[
        *[(10, 1, 0.1, 1.0), (16, 3, 0.3, 1.0), (48, 1, 0.1, 1.0), (48, 3, 0.1, 1.0), (200, 1, 0.1, 1.0)],
        *[(16, 3, 0.05, 6.0), (48, 1, 0.05, 6.0), (200, 1, 0.05, 6.0)],
    ],
    quick=[(10, 1, 0.1, 1.0)],
)
def test_campaigns_without_any_effect_call_nothing(
    domains: int, iterations: int, noise: float, lossy: float, repeats: Repeats
) -> None:
    called, times = Counter[str](), repeats(quick=100, soak=1000)
    for seed in range(times):
        rng = np.random.default_rng([seed, domains, iterations])
        rows = campaign(rng, domains, iterations, noise=noise, lossy=lossy)
        directed, mixed = any(row.verdict in DIRECTED for row in rows), any(row.split for row in rows)
        called.update({"direction": directed, "mixed": mixed, "any": directed or mixed})
        assert not any(map(contradicts, rows))
    print(f"\nA/A, {domains} x {iterations}, {noise}, lossy {lossy}:", {k: n / times for k, n in called.items()})
    assert called["any"] <= 0.05 * times


@cells(
    "domains,iterations,noise,luck",
    every=[(16, 3, 0.02, (0.4, 1.15)), (48, 3, 0.1, (0.3, 1.2)), (200, 1, 0.1, (0.3, 1.2))],
    quick=[(48, 3, 0.1, (0.3, 1.2))],
)
def test_luck_that_names_a_limiter_calls_nothing(
    domains: int, iterations: int, noise: float, luck: tuple[float, float], repeats: Repeats
) -> None:
    """A loss slows a download and makes congestion its limiter. Runs split by that of the reference itself were called
    mixed in every campaign without any effect."""
    called, times = 0, repeats(quick=60, soak=1000)
    for seed in range(times):
        rows = campaign(
            np.random.default_rng([seed, domains, iterations, 7]), domains, iterations, noise=noise, luck=luck
        )
        called += any(row.verdict in DIRECTED or row.split for row in rows)
    print(f"\nA/A with luck {luck}, {domains} x {iterations}, {noise}: {called / times:.3f}")
    assert called <= 0.05 * times + 2 * (0.05 * times) ** 0.5


@cells("share,gain,noise", every=[(0.3, 1.3, 0.03), (0.4, 1.5, 0.05)], quick=[(0.4, 1.5, 0.05)])
def test_both_units_estimate_the_same(share: float, gain: float, noise: float, repeats: Repeats) -> None:
    """Six providers that are alike, and an option that helps some domains: the unit is then chosen by chance. The mean
    of the providers' medians was another quantity, which the interval of domains did not hold, nor its own that one."""
    times, held = repeats(quick=60, soak=1000), {Unit.DOMAIN: [0, 0], Unit.PROVIDER: [0, 0]}

    def drawn(rng: np.random.Generator, domains: int) -> Floats:
        logs: Floats = np.log(gain) * (rng.random(domains) < share) + noise * rng.normal(size=domains)
        return logs

    many = drawn(np.random.default_rng(5), 20_000)
    truth = np.exp(hodges_lehmann(many, many)[0])
    for seed in range(times):
        rng = np.random.default_rng([seed, 11])
        pairs = as_pairs(drawn(rng, 200)[:, None], {SplitBy.PROVIDER: rng.choice(6, 200)[:, None]})
        (row,) = same_units([row_of(*pairs, AB)])
        typical = row.typical
        assert typical.low is not None and typical.high is not None
        held[typical.unit][0] += 1
        held[typical.unit][1] += typical.low <= truth <= typical.high
    print(f"\n{share} gain {gain}, truth {truth:.3f}:", {unit.value: counts for unit, counts in held.items()})
    for n, inside in held.values():
        assert n and inside >= 0.92 * n - 3 * (0.08 * n) ** 0.5


@cells(
    "iterations,noise,least,least_sure",
    every=[(3, 0.1, 0.99, 0.8), (1, 0.1 / 2**0.5, 0.98, 0.7), (1, 0.1, 0.9, 0.5)],
    quick=[(1, 0.1, 0.9, 0.5)],
)
def test_five_percent_are_found_with_200_domains(
    iterations: int, noise: float, least: float, least_sure: float, repeats: Repeats
) -> None:
    """Direction with 10 % noise of each download, or of a pair; that it is at least 2 % needs more data."""
    found, times = Counter[str](), repeats(quick=20, soak=1000)
    for seed in range(times):
        rows = campaign(np.random.default_rng([seed, iterations]), 200, iterations, noise=noise, faster={"WS": 1.05})
        row = next(row for row in rows if row.comparison.name == "WS vs BL")
        found.update({str(row.verdict): 1, **{size: row.size is size for size in Size}})
        assert not any(map(contradicts, rows))
        found["others"] += any("WS" not in r.comparison.name and r.verdict in CALLED for r in rows)
    print(f"\npower, 200 x {iterations}, noise {noise:.3f}:", {name: count / times for name, count in found.items()})
    assert found["faster"] >= least * times and found[Size.AT_LEAST] >= least_sure * times
    assert found["slower"] <= 0.001 * times
    assert found["others"] <= 0.15 * times, "beside a true effect, 5 % of the calls may be false"


@cells("share,gain,others", every=[(0, 1.3, 1.0), (1, 1.5, 1.0), (0, 1.3, 0.99)], quick=[(0, 1.3, 1.0)])
def test_a_mixture_is_mixed_by_the_right_split(share: int, gain: float, others: float, repeats: Repeats) -> None:
    """30 % of the domains gain 30 %, or 40 % gain 50 %; the others nothing, or lose 1 %."""
    found, times = Counter[str](), repeats(quick=20, soak=1000)
    for seed in range(times):
        rng = np.random.default_rng([seed, share])
        rows = campaign(rng, 200, 3, noise=0.1, faster={"WS": gain}, only=share, others=others)
        row = next(row for row in rows if row.comparison.name == "WS vs BL")
        found[str(row.verdict) if row.split is None else f"mixed by {row.split.by}"] += 1
        assert not any(map(contradicts, rows))
    print(f"\nmixture of {gain} and {others}:", {name: count / times for name, count in found.items()})
    assert found["mixed by limiter"] >= 0.8 * times
    assert not found["equivalent"] and found["slower"] <= 0.001 * times


@cells("at_byte", every=[True, False], quick=[True, False])
def test_a_byte_budget_costs_no_power(at_byte: bool, repeats: Repeats) -> None:
    """A fifth of 48 domains has files above `max_bytes`, and one configuration is 1.3 times as fast: the times to the
    same byte are known. Where only bounds were used, as for a time budget, the median would be one, too."""
    times, found = repeats(quick=20, soak=1000), Counter[str]()
    for seed in range(times):
        rng = np.random.default_rng([seed, 48])
        samples = []
        for number in range(48):
            run, is_cut = f"d{number}/0", number % 5 == 0
            for name, speed in (("A", 1.3), ("B", 1.0)):
                took = float(rng.lognormal(0, 0.2)) / speed
                high = math.inf if is_cut else took
                samples.append(
                    Sample(run=run, domain=run, configuration=name, low=took, high=high, at_byte=is_cut and at_byte)
                )
        (row,) = table2(samples, [AB])
        found.update({str(row.verdict): 1, "sure": row.size is Size.AT_LEAST, "known": row.median.value is not None})
    print(f"\nbyte budgets, at_byte {at_byte}:", {name: count / times for name, count in found.items()})
    if at_byte:
        assert found["faster"] == found["known"] == times and found["sure"] >= 0.99 * times
    else:
        assert found["known"] < 0.5 * times


@cells("domains,runs", every=[(40, 1), (165, 1), (80, 3)], quick=[(165, 1)])
def test_the_number_of_targets_that_plan_prints_is_enough(domains: int, runs: int, repeats: Repeats) -> None:
    effect, level, times = np.log(1.05), 0.004, repeats(quick=100, soak=1000)
    tried = np.arange(0.3, 0.01, -0.001).tolist()
    noise = next(x for x in tried if domains_needed(effect, noise=x, runs=runs, level=level) <= domains)
    found = 0
    for seed in range(times):
        logs = np.random.default_rng([seed, domains]).normal(effect, noise * 2**0.5, (domains, runs))
        medians = np.median(logs, axis=1)
        found += signed_rank(medians, medians) < level
    print(f"\n{domains} domains x {runs}, noise {noise:.3f}: power {found / times:.3f}")
    # The formula takes the variance without an effect. One that 40 domains show is large: 32 have a power of 0.92.
    assert 0.85 <= found / times <= (0.99 if domains < 80 else 0.96)
