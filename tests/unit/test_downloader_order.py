"""Williams squares: every position and every predecessor equally often, for any number of configurations and runs."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise, permutations

from hypothesis import given, settings
from hypothesis import strategies as st

from downloader.campaign.plan import assign, square

names = st.integers(1, 17).map(lambda size: [f"c{number}" for number in range(size)])
seeds = st.integers(0, 2**32)


@settings(deadline=None)
@given(names, seeds)
def test_a_square_is_exactly_balanced(labels: list[str], seed: int) -> None:
    size = len(labels)
    found = square(labels, random.Random(seed))
    times = 1 + size % 2
    assert len(found) == size * times
    assert all(sorted(sequence) == sorted(labels) for sequence in found)
    places = Counter((name, place) for sequence in found for place, name in enumerate(sequence))
    assert places == {(name, place): times for name in labels for place in range(size)}
    after = Counter(pair for sequence in found for pair in pairwise(sequence))
    assert after == dict.fromkeys(permutations(labels, 2), times)


@settings(deadline=None)
@given(names, seeds, st.integers(1, 120))
def test_any_number_of_runs_is_balanced_within_one(labels: list[str], seed: int, runs: int) -> None:
    size = len(labels)
    orders = assign(labels, [("group", number) for number in range(runs)], random.Random(seed))
    after = dict.fromkeys(permutations(labels, 2), 0) | Counter(pair for order in orders for pair in pairwise(order))
    # Half of a square of odd size cannot be within one (`downloader/campaign/plan.py`).
    allowed = 2 if size % 2 and runs % (2 * size) == size else 1
    assert max(after.values(), default=0) - min(after.values(), default=0) <= allowed
    places = {(name, place): 0 for name in labels for place in range(size)}
    places |= Counter((name, place) for order in orders for place, name in enumerate(order))
    assert max(places.values()) - min(places.values()) <= 1 + size % 2


@settings(deadline=None)
@given(names, seeds, st.integers(1, 60))
def test_a_linear_drift_cancels_after_every_pair_of_runs(labels: list[str], seed: int, pairs: int) -> None:
    orders = assign(labels, [("group", number) for number in range(2 * pairs)], random.Random(seed))
    for name in labels:
        assert sum(order.index(name) for order in orders) == pairs * (len(labels) - 1)


@given(names.filter(lambda labels: len(labels) > 8), seeds)
def test_the_seed_decides(labels: list[str], seed: int) -> None:
    assert square(labels, random.Random(seed)) == square(labels, random.Random(seed))
    assert square(labels, random.Random(seed)) != square(labels, random.Random(seed + 1))


def test_no_half_of_an_odd_square_is_within_one() -> None:
    """The exception above is not a weakness of our order: all 252 halves of the square of five are tried."""
    from itertools import combinations

    sequences = square(list("abcde"), random.Random(1))
    worst = []
    for half in combinations(sequences, 5):
        after = dict.fromkeys(permutations("abcde", 2), 0) | Counter(p for order in half for p in pairwise(order))
        worst.append(max(after.values()) - min(after.values()))
    assert min(worst) == 2
