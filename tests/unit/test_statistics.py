"""Tests and intervals against SciPy, and against the definitions written out slowly."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from analysis.measures.rows import Median, Size, Split, SplitBy, SplitPart, Unit, Verdict
from analysis.measures.statistics import tests
from analysis.measures.statistics.intervals import (
    EQUIVALENCE_CONFIDENCE,
    Floats,
    Ints,
    cluster_medians,
    few_clusters_interval,
    hodges_lehmann,
    median_interval,
    renumbered,
    share_intervals,
)
from analysis.measures.statistics.tests import (
    EXACT_CLUSTERS,
    cluster_scores,
    differ,
    equivalence,
    kruskal_wallis,
    mcnemar,
    sign_test,
    signed_rank,
)
from analysis.measures.verdicts import LEAST_MARGIN, explains, verdict
from tests.cells import examples

UNHURRIED = settings(deadline=None, max_examples=examples(12))

# To nine digits: the tests of ranks take what differs by less than 1e-12 for the same.
values = st.one_of(st.floats(-3, 3).map(lambda value: round(value, 9)), st.sampled_from([0.0, 0.5, -0.5, 1.0, -1.0]))


@st.composite
def clustered(draw: st.DrawFn, *, most: int = 8) -> tuple[Floats, Ints]:
    """Values of up to `most` clusters, each with one value at least."""
    count = draw(st.integers(1, most))
    found = [(draw(values), cluster) for cluster in [*range(count), *draw(st.lists(st.integers(0, count - 1)))]]
    draw(st.randoms(use_true_random=False)).shuffle(found)
    return np.array([v for v, _ in found]), np.array([c for _, c in found], dtype=np.int64)


def known(sample: Floats, **more: Any) -> float:
    return signed_rank(sample, sample, **more)


@UNHURRIED
@given(clustered())
def test_medians_of_clusters(data: tuple[Floats, Ints]) -> None:
    sample, clusters = data
    count = int(clusters.max()) + 1
    expected = [float(np.median(sample[clusters == one])) for one in range(count)]
    assert cluster_medians(sample, clusters, count) == pytest.approx(expected)


def test_codes_that_occur_are_numbered_in_their_order() -> None:
    found, count = renumbered(np.array([5, 2, 5, 7]))
    assert (found.tolist(), count) == ([1, 0, 1, 2], 3)
    assert renumbered(np.zeros(0, dtype=np.int64))[1] == 0


@UNHURRIED
@given(clustered(most=5))
def test_datta_and_satten_is_the_mean_over_draws_of_one_per_cluster(data: tuple[Floats, Ints]) -> None:
    """The definition: Wilcoxon's statistic of every possible draw, zeros ranked (Pratt), and its mean."""
    sample, clusters = data
    members = [sample[clusters == one] for one in range(int(clusters.max()) + 1)]
    if math.prod(map(len, members)) > 3000:
        return
    drawn = [
        float((np.sign(draw) * stats.rankdata(np.abs(draw))).sum())
        for draw in map(np.array, itertools.product(*members))
    ]
    scores = cluster_scores(sample, clusters)
    assert scores.sum() == pytest.approx(np.mean(drawn), abs=1e-9)
    flips = [abs(float(np.dot(signs, scores))) for signs in itertools.product((1, -1), repeat=len(scores))]
    expected = np.mean([flip >= abs(float(scores.sum())) - 1e-9 for flip in flips])
    assert known(sample, clusters=clusters) == pytest.approx(float(expected))


def test_a_statistic_of_zero_shows_nothing_whatever_its_last_bits() -> None:
    sample, clusters = np.array([-1.0, 1.0, 0.5, 0.5, -1.0]), np.array([0, 1, 2, 2, 2])
    assert 0 < abs(cluster_scores(sample, clusters).sum()) < 1e-15
    assert known(sample, clusters=clusters) == known(-sample, clusters=clusters) == 1


@pytest.mark.parametrize("n", [3, 9, EXACT_CLUSTERS, EXACT_CLUSTERS + 1, 80, 500])
def test_one_value_per_cluster_is_wilcoxons_test(n: int) -> None:
    for seed in range(10):
        sample = np.random.default_rng(seed).normal(0.2, 1, n)
        method = "exact" if n <= EXACT_CLUSTERS else "approx"
        expected = stats.wilcoxon(sample, method=method).pvalue
        assert known(sample) == pytest.approx(expected, rel=1e-9)
        assert known(-sample) == pytest.approx(known(sample))
        if n > 2 * EXACT_CLUSTERS:  # so many even without zeros
            tied = np.round(sample, 1)
            expected = stats.wilcoxon(tied, method="approx", zero_method="pratt").pvalue
            assert known(tied) == pytest.approx(expected, rel=1e-9)


def test_a_large_cluster_counts_no_more_than_a_small_one() -> None:
    """One domain with 100 runs at +1 against nine with one run each at random: the test may not call that."""
    sample = np.concatenate((np.full(100, 1.0), [0.3, -0.2, 0.5, -0.7, 0.9, -0.4, 0.1, -0.6, 0.8]))
    clusters = np.concatenate((np.zeros(100, dtype=np.int64), np.arange(1, 10)))
    assert known(sample) < 1e-10
    assert known(sample, clusters=clusters) > 0.3


@pytest.mark.parametrize("test", [signed_rank, sign_test])
@pytest.mark.parametrize("ratio", [1.1, 1.3])
def test_a_median_of_reciprocals_is_a_zero(ratio: float, test: Callable[[Floats, Floats], float]) -> None:
    rounded = (math.log(ratio) + math.log(1 / ratio)) / 2
    assert rounded != 0.0
    for other in ([0.5], [0.5, 0.7, -0.2], [0.5, -0.5]):
        values, exact = np.array([rounded, *other]), np.array([0.0, *other])
        assert test(values, values) == test(exact, exact)


def test_nothing_and_zeros_show_nothing() -> None:
    for sample in (np.array([]), np.zeros(30)):
        assert known(sample) == sign_test(sample, sample) == 1.0


@UNHURRIED
@given(st.lists(st.tuples(values, values), min_size=1, max_size=9))
def test_bounds_give_the_largest_p_value_they_allow(bounds: list[tuple[float, float]]) -> None:
    low = np.array([min(pair) for pair in bounds])
    high = np.array([max(pair) for pair in bounds])
    for part in (0.0, 0.3, 1.0):
        sample = low + part * (high - low)
        assert sign_test(low, high) >= sign_test(sample, sample) - 1e-12 or 0.0 in sample
    if not np.array_equal(low, high):
        assert signed_rank(low, high) >= max(known(low), known(high)) - 1e-12


def test_a_bound_that_reaches_both_sides_is_not_evidence() -> None:
    low, high = np.full(20, 0.1), np.full(20, 0.1)
    assert signed_rank(low, high) < 0.001
    low[:12], high[:12] = -np.inf, np.inf
    assert signed_rank(low, high) == sign_test(low, high) == 1.0


@pytest.mark.parametrize("plus,minus", [(0, 1), (3, 9), (10, 10), (180, 120)])
def test_sign_test_is_the_binomial_test(plus: int, minus: int) -> None:
    sample = np.array([0.1] * plus + [-0.3] * minus + [0.0] * 4)
    assert sign_test(sample, sample) == pytest.approx(stats.binomtest(plus, plus + minus).pvalue)


def test_mcnemar_is_exact_and_counts_domains_not_runs() -> None:
    excess = np.array([1.0] * 8 + [-1.0] * 2 + [0.0])
    assert mcnemar(excess) == pytest.approx(stats.binomtest(8, 10).pvalue)
    assert mcnemar(10 * excess) == mcnemar(excess)
    assert mcnemar(np.array([100.0])) == 1.0


def test_a_share_of_single_runs_has_wilsons_interval() -> None:
    counts = np.zeros((4000, 3))
    counts[:1000, 0], counts[:30, 1] = 1, 1
    low, high = share_intervals(counts, np.ones(4000, dtype=np.int64))
    for kind, count in enumerate((1000, 30, 0)):
        expected = stats.binomtest(count, 4000).proportion_ci(method="wilson")
        assert (low[kind], high[kind]) == pytest.approx((expected.low, expected.high), abs=1e-4)


def test_runs_of_one_domain_that_agree_count_as_one() -> None:
    one = np.array([[1.0]] * 6 + [[0.0]] * 14)
    few = share_intervals(one, np.ones(20, dtype=np.int64))
    assert np.ravel(share_intervals(5 * one, np.full(20, 5))) == pytest.approx(np.ravel(few))
    none = share_intervals(np.zeros((20, 1)), np.full(20, 5))
    assert none[0][0] == 0.0 and 0.15 < none[1][0] < 0.25, "0 of 20 domains, not of 100 runs"


def test_the_medians_interval_is_that_of_order_statistics() -> None:
    for n in range(6, 50):
        sample = np.random.default_rng(n).normal(size=n)
        expected = stats.quantile_test(sample, q=0, p=0.5).confidence_interval(0.95)
        assert median_interval(sample, sample) == pytest.approx((expected.low, expected.high))
    assert median_interval(sample[:5], sample[:5]) == (-math.inf, math.inf)


@pytest.mark.parametrize("n", [50, 51, 120, 1000])
def test_a_bootstrap_of_domains_ends_at_the_same_order_statistics(n: int) -> None:
    """Why there is none: the percentiles of its medians are these positions, give or take one."""
    rng = np.random.default_rng(n)
    ranks = np.arange(n, dtype=np.float64)
    medians = np.median(rng.integers(0, n, (20_000, n), dtype=np.int16), axis=1)
    expected = np.percentile(medians, (2.5, 97.5))
    assert median_interval(ranks, ranks) == pytest.approx(tuple(expected), abs=1)


def test_the_median_of_bounds_is_as_wide_as_they_allow() -> None:
    sample = np.linspace(-1, 1, 60)
    low, high = sample.copy(), sample.copy()
    low[::10], high[::10] = -np.inf, np.inf
    wide, narrow = median_interval(low, high), median_interval(sample, sample)
    assert -1 < wide[0] < narrow[0] < narrow[1] < wide[1] < 1
    low[:], high[:] = -np.inf, np.inf
    assert median_interval(low, high) == (-math.inf, math.inf)


def test_few_clusters_have_a_t_interval() -> None:
    medians = np.array([0.1, 0.3, 0.2, 0.5])
    expected = stats.t.interval(0.95, 3, medians.mean(), stats.sem(medians))
    assert few_clusters_interval(medians) == pytest.approx(expected)
    assert few_clusters_interval(medians[:2]) is None
    assert few_clusters_interval(np.array([0.1, 0.2, np.inf])) is None


@UNHURRIED
@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_q_values_are_scipys(p_values: list[float]) -> None:
    hochberg = stats.false_discovery_control(p_values, method="bh")
    yekutieli = stats.false_discovery_control(p_values, method="by")
    assert tests.benjamini_hochberg(p_values) == pytest.approx(list(hochberg))
    assert tests.benjamini_yekutieli(p_values) == pytest.approx(list(yekutieli))


def test_no_test_has_no_q_value() -> None:
    assert tests.benjamini_hochberg([]) == tests.benjamini_yekutieli([]) == []


SURELY, PERHAPS = Size.AT_LEAST, Size.PERHAPS_LESS


@pytest.mark.parametrize(
    ("q", "interval", "inner", "expected"),
    [
        (0.01, (0.03, 0.05), (0.03, 0.05), (Verdict.FASTER, SURELY)),
        (0.01, (-0.05, -0.03), (-0.05, -0.03), (Verdict.SLOWER, SURELY)),
        (0.05, (0.03, 0.05), (0.03, 0.05), (Verdict.UNDECIDED, None)),
        (0.01, (0.01, 0.05), (0.03, 0.05), (Verdict.FASTER, PERHAPS)),
        (0.01, (-0.05, -0.01), (-0.05, -0.03), (Verdict.SLOWER, PERHAPS)),
        (0.01, (0.005, 0.01), (0.005, 0.01), (Verdict.EQUIVALENT, None)),
        (1.0, (-0.03, 0.01), (-0.019, 0.01), (Verdict.EQUIVALENT, None)),
        (1.0, (-0.03, 0.01), (-0.021, 0.01), (Verdict.UNDECIDED, None)),
        (0.01, None, None, (Verdict.FASTER, None)),
    ],
)
def test_direction_and_size_are_two_statements(
    q: float,
    interval: tuple[float, float] | None,
    inner: tuple[float, float] | None,
    expected: tuple[Verdict, Size | None],
) -> None:
    typical = 0.04 if interval is None else sum(interval) / 2

    def found(p_equivalence: float) -> tuple[Verdict, Size | None]:
        return verdict(
            q=q, typical=typical, interval=interval, inner=inner, p_equivalence=p_equivalence, margin=LEAST_MARGIN
        )

    assert found(0.04) == expected
    assert (found(0.05)[0] is Verdict.EQUIVALENT) is False, "both tests have to show it"


def test_a_large_noise_floor_leaves_the_size_open_and_does_not_make_them_equal() -> None:
    interval = (0.03, 0.05)
    found = verdict(q=0.01, typical=0.04, interval=interval, inner=interval, p_equivalence=1.0, margin=0.1)
    assert found == (Verdict.FASTER, PERHAPS)


@pytest.mark.parametrize(
    ("interval", "size"),
    [((-0.03, 0.1), Size.THESE_PROVIDERS), ((0.001, 0.1), PERHAPS), ((0.03, 0.1), SURELY)],
)
def test_a_direction_beside_an_interval_of_providers_that_holds_1_is_of_these_providers(
    interval: tuple[float, float], size: Size
) -> None:
    for sign, word in ((1, Verdict.FASTER), (-1, Verdict.SLOWER)):
        low, high = sorted(sign * end for end in interval)
        found = verdict(
            q=0.01,
            typical=sign * 0.04,
            interval=(low, high),
            inner=None,
            p_equivalence=1.0,
            margin=LEAST_MARGIN,
            unit=Unit.PROVIDER,
        )
        assert found == (word, size)


def part(name: str, median: float, low: float, high: float) -> SplitPart:
    return SplitPart(
        name=name,
        n=20,
        domains=10,
        median=Median(value=median, least=median, most=median),
        sure=(low, high),
    )


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ((1.0, 0.99, 1.01), True),
        ((1.0, 0.6, 1.31), False),  # it may have gained as well
        ((1.05, 1.03, 1.07), False),  # less, but it gains, too
        ((0.8, 0.7, 0.9), True),  # the other way
    ],
)
def test_a_split_explains_where_one_part_surely_gains_and_another_surely_does_not(
    others: tuple[float, float, float], expected: bool
) -> None:
    gain = part("receive_window", 1.5, 1.3, 1.7)
    split = Split(by=SplitBy.LIMITER, p=0.001, parts=(gain, part("path_rate", *others)))
    assert explains(split, LEAST_MARGIN) is expected
    small = dataclasses.replace(gain, sure=(1.01, 1.7))
    if others[2] > 1 / 1.02:
        assert not explains(dataclasses.replace(split, parts=(small, split.parts[1])), LEAST_MARGIN)
    assert not explains(dataclasses.replace(split, parts=(dataclasses.replace(gain, sure=None),)), LEAST_MARGIN)


@pytest.mark.parametrize("n", [1, 2, 5, 6, 7, 20, 50, 51])
def test_the_typical_value_is_hodges_and_lehmanns(n: int) -> None:
    """Against the means of all pairs written out; the rank is where SciPy's exact test begins to be above 5 %."""
    for seed in range(8):
        sample = np.random.default_rng(seed).normal(0.05, 0.1, n)
        if seed % 2:
            sample = np.round(sample, 1)
        first, second = np.triu_indices(n)
        means = np.sort((sample[first] + sample[second]) / 2)
        least, most, low, high = hodges_lehmann(sample, sample)
        assert least == most == pytest.approx(np.median(means), abs=1e-8)
        if n < 6:
            assert (low, high) == (-math.inf, math.inf)
            continue
        assert min(abs(means - low)) < 1e-8 and min(abs(means - high)) < 1e-8 and low - 1e-9 <= least <= high + 1e-9
        mirrored = hodges_lehmann(-sample, -sample)
        assert mirrored == pytest.approx((-least, -most, -high, -low), abs=1e-8)
    symmetric = np.concatenate((np.linspace(0.01, 1, 10), -np.linspace(0.01, 1, 10))) + 0.6
    *_, low, high = hodges_lehmann(symmetric, symmetric)
    for end, beyond in ((low, -1e-6), (high, 1e-6)):
        inside, outside = (stats.wilcoxon(symmetric - end + step, method="exact").pvalue for step in (beyond, -beyond))
        assert {inside > 0.05, outside > 0.05} <= {True, False} and max(inside, outside) > 0.03


def test_the_typical_value_of_bounds_is_as_wide_as_they_allow() -> None:
    low, high = np.array([-np.inf, 0.0, 0.1] * 5), np.array([0.0, 0.0, np.inf] * 5)
    least, most, *ends = hodges_lehmann(low, high)
    assert least == -math.inf and most == math.inf and ends == [-math.inf, math.inf]
    few = np.full(40, 0.1)
    few[0] = np.inf
    assert hodges_lehmann(np.full(40, 0.1), few) == pytest.approx((0.1, 0.1, 0.1, 0.1))


def test_differences_of_groups_are_scipys() -> None:
    rng = np.random.default_rng(4)
    for shift in (0.0, 0.5, 2.0):
        groups = np.repeat([0, 1, 2], (8, 12, 20))
        sample = np.round(rng.normal(0, 1, 40) + shift * (groups == 1), 1)
        parts = [sample[groups == group] for group in range(3)]
        kruskal = stats.kruskal(*parts).pvalue
        ranks = stats.rankdata(sample)
        welch = stats.f_oneway(*(ranks[groups == group] for group in range(3)), equal_var=False).pvalue
        assert kruskal_wallis(sample, groups) == pytest.approx(kruskal)
        assert differ(sample, groups) == pytest.approx(max(kruskal, welch))
    assert (
        kruskal_wallis(np.zeros(12), np.repeat([0, 1], 6)) == 1.0 and differ(np.zeros(12), np.repeat([0, 1], 6)) == 1.0
    )


def test_the_90_percent_interval_is_two_one_sided_sign_tests() -> None:
    for far in range(20):
        sample = np.concatenate((np.full(40 - far, 0.001), np.full(far, 0.3)))
        p = stats.binomtest(far, 40, alternative="less").pvalue
        inner = median_interval(sample, sample, confidence=EQUIVALENCE_CONFIDENCE)
        assert (inner[1] < LEAST_MARGIN) == (p < 0.05)


@pytest.mark.parametrize("n", [8, EXACT_CLUSTERS, 60])
def test_equivalence_is_two_one_sided_signed_rank_tests(n: int) -> None:
    for seed in range(10):
        sample = np.random.default_rng(seed).normal(0.005, 0.02, n)
        method = "exact" if n <= EXACT_CLUSTERS else "approx"
        above = stats.wilcoxon(sample + LEAST_MARGIN, alternative="greater", method=method).pvalue
        below = stats.wilcoxon(sample - LEAST_MARGIN, alternative="less", method=method).pvalue
        expected = max(above, below)
        assert equivalence(sample, sample, LEAST_MARGIN) == pytest.approx(expected)
    assert equivalence(np.full(50, -np.inf), np.zeros(50), LEAST_MARGIN) == pytest.approx(1.0)
    assert equivalence(np.array([]), np.array([]), LEAST_MARGIN) == 1.0
