"""Confidence sequences: they contain the truth at all looks together, and agree with their definition."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.sequential import (
    ALPHA,
    Interval,
    Quantity,
    SpeedUps,
    all_meet,
    log_capital,
    median_rank,
    share_interval,
)
from tests.cells import Repeats, cells


@given(st.integers(0, 300), st.integers(0, 300), st.floats(0.01, 0.99), st.sampled_from([0.5, 12.0]))
def test_the_capital_is_a_fair_bet(successes: int, failures: int, mean: float, prior: float) -> None:
    """Its expectation after the next step is what it is now, if the mean is true: that is all that Ville needs."""
    steps = successes + failures
    now = log_capital(successes, steps, mean, prior)
    won = log_capital(successes + 1, steps + 1, mean, prior) - now
    lost = log_capital(successes, steps + 1, mean, prior) - now
    assert mean * math.exp(won) + (1 - mean) * math.exp(lost) == pytest.approx(1.0, rel=1e-6)
    assert log_capital(0, 0, mean, prior) == 0.0


@given(st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_share_s_interval_is_what_the_bet_does_not_exclude(counts: tuple[int, int]) -> None:
    successes, steps = counts
    found = share_interval(successes, successes, steps)
    assert 0 <= found.low <= successes / steps <= found.high <= 1
    for end, outside in ((found.low, -1e-6), (found.high, 1e-6)):
        if 1e-6 < end < 1 - 1e-6:
            assert log_capital(successes, steps, end + outside, 0.5) >= -math.log(ALPHA)
            assert log_capital(successes, steps, end - outside, 0.5) < -math.log(ALPHA)


@given(st.integers(1, 3000))
def test_the_median_s_rank_is_the_first_that_the_bet_does_not_exclude(steps: int) -> None:
    rank = median_rank(steps)
    assert log_capital(rank, steps, 0.5, 12.0) < -math.log(ALPHA)
    assert rank == 0 or log_capital(rank - 1, steps, 0.5, 12.0) >= -math.log(ALPHA)
    assert median_rank(steps + 1) >= rank


def test_a_domain_is_one_step() -> None:
    found = SpeedUps()
    found.add("a", (1.0, 1.0), (2.0, 2.0))
    found.add("a", (1.0, 1.0), (9.0, 9.0))
    assert (found.lows, found.highs, found.faster, found.perhaps) == ([2.0], [2.0], 1, 1)


def test_bounds_of_censored_downloads_widen_the_interval() -> None:
    known, bounded = SpeedUps(), SpeedUps()
    for number in range(60):
        vs = 1.0 + number / 100
        known.add(str(number), (1.0, 1.0), (vs, vs))
        bounded.add(str(number), (1.0, 1.0), (vs, math.inf if number % 3 == 0 else vs))
    assert bounded.interval(Quantity.MEDIAN).low == known.interval(Quantity.MEDIAN).low
    assert bounded.interval(Quantity.MEDIAN).high > known.interval(Quantity.MEDIAN).high
    undecided = SpeedUps()
    undecided.add("a", (1.0, math.inf), (2.0, 2.0))  # censored at 1 s, the other needed 2 s: 0 to 2
    undecided.add("b", (2.0, 2.0), (2.0, math.inf))  # 1 to infinity, without 1: faster
    undecided.add("c", (2.0, math.inf), (2.0, 2.0))  # 0 to 1, without 1: slower
    assert (undecided.faster, undecided.perhaps) == (1, 2)


def test_nothing_is_narrow_at_the_start_and_without_a_rule_nothing_stops() -> None:
    found = SpeedUps()
    assert found.interval(Quantity.SHARE) == Interval(0.0, 1.0)
    assert found.interval(Quantity.MEDIAN) == Interval(0.0, math.inf)
    assert not all_meet({Quantity.MEDIAN: 1e9}, [found]) and not all_meet({}, [found])
    for number in range(9):
        found.add(str(number), (1.0, 1.0), (1.0, 1.0))
    assert not all_meet({Quantity.MEDIAN: 1e9}, [found])
    for number in range(9, 30):
        found.add(str(number), (1.0, 1.0), (1.0, 1.0))
    assert found.interval(Quantity.MEDIAN) == Interval(1.0, 1.0) and all_meet({Quantity.MEDIAN: 0.01}, [found])
    assert not all_meet({Quantity.MEDIAN: 0.01}, [found, SpeedUps()]), "all comparisons must meet it"


SHAPES = ("normal", "bimodal", "heavy")


def logs(shape: str, size: tuple[int, int], generator: np.random.Generator) -> npt.NDArray[np.float64]:
    """Logarithms of speed-ups with the median 0.1."""
    if shape == "normal":
        return 0.1 + 0.1 * generator.standard_normal(size)
    if shape == "heavy":
        return 0.1 + 0.1 * generator.standard_t(1.5, size)
    return 0.1 + generator.choice([-0.3, 0.3], size) + 0.05 * generator.standard_normal(size)


def missed(
    values: npt.NDArray[np.float64], rank: npt.NDArray[np.int64], bounds: npt.NDArray[np.int64]
) -> tuple[float, float, float]:
    """Share of campaigns whose interval missed at one look or more: median, share, and a fixed-n interval instead.

    Args:
        rank, bounds: after each step, `median_rank` and `accepted_counts`.
    """
    steps = np.arange(1, len(rank) + 1)
    not_above = np.cumsum(values <= 0.1, axis=1)
    # The k-th smallest is above the truth if fewer than k are not above it, and so on from the other end.
    median = ((not_above < rank) | (steps - not_above < rank)).any(axis=1)
    faster = steps - not_above  # speed-ups above the median: their share is 1/2
    share = ((faster < bounds[:, 0]) | (faster > bounds[:, 1])).any(axis=1)
    wald = (np.abs(faster / steps - 0.5) > 1.96 * 0.5 / np.sqrt(steps))[:, 9:].any(axis=1)
    return float(median.mean()), float(share.mean()), float(wald.mean())


def accepted_counts(steps: int) -> tuple[int, int]:
    """Least and largest count of successes whose `share_interval` contains 1/2, found by bisection."""
    low, high = -1, steps // 2
    while high - low > 1:
        middle = (low + high) // 2
        if share_interval(middle, middle, steps).high >= 0.5:
            high = middle
        else:
            low = middle
    return high, steps - high


@cells(
    "shape,looks,campaigns",
    every=[*((s, 10_000, 2000) for s in SHAPES), ("normal", 500, 1000)],
    quick=[("normal", 500, 1000)],
)
def test_the_error_holds_over_all_looks(shape: str, looks: int, campaigns: int) -> None:
    generator = np.random.default_rng(1)
    rank = np.array([median_rank(step) for step in range(1, looks + 1)])
    bounds = np.array([accepted_counts(step) for step in range(1, looks + 1)])
    found = []
    for start in range(0, campaigns, 200):  # 200 campaigns at a time: 16 MB for each array
        found.append(missed(logs(shape, (min(200, campaigns - start), looks), generator), rank, bounds))
    median, share, wald = np.mean(found, axis=0)
    print(f"{shape}, {looks} looks: median {median:.4f}, share {share:.4f}, fixed number {wald:.4f}")
    assert median <= ALPHA and share <= ALPHA
    assert wald > 3 * ALPHA, "so an interval for a fixed number of domains does not do"


@cells("width", every=[0.05, 0.1, 0.2], quick=[0.1])
def test_the_interval_at_the_stop_contains_the_truth(width: float, repeats: Repeats) -> None:
    """Through the functions that a campaign calls, one domain after the other."""
    generator = np.random.default_rng(2)
    contained, stops = [], []
    for _ in range(repeats(quick=100, soak=1000)):
        found = SpeedUps()
        for number in range(5000):
            vs = math.exp(0.1 + 0.1 * generator.standard_normal())
            found.add(str(number), (1.0, 1.0), (vs, vs))
            if all_meet({Quantity.MEDIAN: width}, [found]):
                break
        assert found.width(Quantity.MEDIAN) <= width
        interval = found.interval(Quantity.MEDIAN)
        contained.append(interval.low <= math.exp(0.1) <= interval.high)
        stops.append(len(found.domains))
    assert np.mean(contained) >= 1 - ALPHA
    # Half of the width is about 1.25 x 0.1 x 3 / sqrt(n), so a rule that never stops, or at once, is noticed.
    expected = (2 * 1.25 * 0.1 * 3 / math.log1p(width)) ** 2
    assert 0.4 * expected < np.median(stops) < 2 * expected
