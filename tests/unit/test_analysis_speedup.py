"""Speed-ups: shares, bounds, medians and intervals against properties and a slow second implementation."""

from __future__ import annotations

import dataclasses
import math
import random
import statistics

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from analysis.measures import rows as values
from analysis.measures import speedup
from analysis.measures.pairs import Pairs, PlannedPairs, pair, pair_planned
from analysis.measures.rows import BIN_NAMES, MINIMUM_DOMAINS, Size, SpeedupRow, SplitBy, Unit, Verdict
from analysis.measures.verdicts import judge, same_units
from analysis.report import findings, render
from core.domain import Comparison, Role
from tests.cells import examples
from tests.unit.samples import Sample, slow_pair, speedup_row, table, table2, texts

UNHURRIED = settings(deadline=None, max_examples=examples(12))
"""A shared machine may stop for a second: no deadline."""

AB, BA = Comparison.of("A", "B"), Comparison.of("B", "A")

BIN = {name: index for index, name in enumerate(BIN_NAMES)}


def sample(config: str, run: object, low: float, high: float | None = None, *, excluded: str | None = None) -> Sample:
    domain = str(run).partition("/")[0]
    return Sample(
        run=run, domain=domain, configuration=config, low=low, high=low if high is None else high, excluded=excluded
    )


def pairs(*costs: tuple[float, float]) -> list[Sample]:
    """(cost of A, cost of B) per run, each run on its own domain."""
    return [sample(name, f"d{i}", cost) for i, ab in enumerate(costs) for name, cost in zip("AB", ab, strict=True)]


costs = st.one_of(st.floats(1e-3, 1e3), st.sampled_from([0.7, 0.8, 1.0, 1.1, 1.5, 2.0, math.nextafter(1.0, 2.0)]))


@st.composite
def campaigns(draw: st.DrawFn, *, domains: int = 0) -> list[Sample]:
    """Runs on up to 15 domains; the first `domains` of them have a pair for sure."""
    found: list[Sample] = []
    for index in range(draw(st.integers(domains + 1, domains + 20))):
        run = f"d{index if index < domains else draw(st.integers(0, 14))}/{index}"
        kinds = ["ok", "ok", "ok", "censored", *(["excluded", "absent"] if index >= domains else [])]
        for name in ("A", "B"):
            kind = draw(st.sampled_from(kinds))
            cost = draw(costs)
            if kind == "ok":
                found.append(sample(name, run, cost))
            elif kind == "censored":
                found.append(sample(name, run, cost, math.inf))
            elif kind == "excluded":
                found.append(sample(name, run, cost, excluded="failed"))
    return found


@st.composite
def mixed(draw: st.DrawFn) -> list[Sample]:
    """Runs with any sides, failed, excluded, unplanned or of unknown clusters, some with a third configuration."""
    found: list[Sample] = []
    for index in range(draw(st.integers(0, 25))):
        run = f"d{draw(st.integers(0, 6))}/{index}"
        network = draw(st.sampled_from(["1", "2", "10", None] if draw(st.integers(0, 9)) == 0 else ["1", "2", "10"]))
        for name in draw(st.permutations("ABC"))[: draw(st.integers(1, 3))]:
            one = sample(name, run, draw(costs), excluded=draw(st.sampled_from([None, None, None, "void", "late"])))
            kind = draw(st.sampled_from(["ok", "ok", "censored", "at_byte", "failed", "unbounded"]))
            if kind == "failed":
                one = dataclasses.replace(one, low=math.inf, high=math.inf, excluded="failed")
            elif kind != "ok":
                low = 0.0 if kind == "unbounded" else one.low
                one = dataclasses.replace(one, low=low, high=math.inf, at_byte=kind == "at_byte")
            larger = {"AS": network, "vantage": draw(st.sampled_from(["MUC", "SFO"]))}
            found.append(dataclasses.replace(one, planned=draw(st.integers(0, 4)) > 0, larger=larger))
    return found


def slow(samples: list[Sample]) -> dict[str, object]:
    """Counts and median as one would write them on paper, pair by pair."""
    by = {(s.run, s.configuration): s for s in samples if not s.excluded}
    runs = {s.run for s in samples}
    edges = [0.0, *values.BIN_EDGES, math.inf]
    counts: dict[str, object] = {"faster": 0, "slower": 0, "tie": 0, "undecided": 0, "n": 0, "open": 0}
    bins = [0] * len(BIN_NAMES)
    lows: dict[str, list[float]] = {}
    highs: dict[str, list[float]] = {}
    possible = [0] * len(BIN_NAMES)
    for run in runs:
        a, b = by.get((run, "A")), by.get((run, "B"))
        if a is None or b is None:
            continue
        counts["n"] += 1  # type: ignore[operator]
        a_censored, b_censored = a.high == math.inf, b.high == math.inf
        low, high = (0.0 if a_censored else b.low / a.low), (math.inf if b_censored else b.low / a.low)
        lows.setdefault(a.domain, []).append(low)
        highs.setdefault(a.domain, []).append(high)
        if not a_censored and not b_censored:
            kind = "faster" if b.low > a.low else "slower" if b.low < a.low else "tie"
            value = b.low / a.low
            if value == 1.0 and kind == "slower":
                value = 0.99
            bins[max(i for i in range(len(bins)) if edges[i] <= value)] += 1
            possible[max(i for i in range(len(bins)) if edges[i] <= value)] += 1
        else:
            kind = "undecided"
            if a_censored and not b_censored and a.low >= b.low:
                kind = "slower"
            if b_censored and not a_censored and b.low >= a.low:
                kind = "faster"
            for i in range(len(bins)):
                possible[i] += edges[i] < high and edges[i + 1] > low
            inside = [i for i in range(len(bins)) if edges[i] <= low and high <= edges[i + 1]]
            if inside:
                bins[inside[0]] += 1
            else:
                counts["open"] += 1  # type: ignore[operator]
        counts[kind] += 1  # type: ignore[operator]
    counts["bins"], counts["possible"] = bins, possible
    counts["median"] = tuple(_median_of_medians(each) if each else None for each in (lows, highs))
    return counts


def _median_of_medians(by_domain: dict[str, list[float]]) -> float:
    logs = [
        [-math.inf if v == 0 else math.inf if v == math.inf else math.log(v) for v in d] for d in by_domain.values()
    ]
    return math.exp(statistics.median(statistics.median(domain) for domain in logs))


@UNHURRIED
@given(campaigns())
def test_counts_equal_the_slow_way(samples: list[Sample]) -> None:
    row, expected = speedup_row(samples, AB), slow(samples)
    names = ("faster", "slower", "tie", "undecided")
    assert {name: getattr(row, name).count for name in names} == {name: expected[name] for name in names}
    assert [share.count for share in row.bins] == expected["bins"]
    assert [share.possible for share in row.bins] == expected["possible"]
    assert (row.faster.possible, row.slower.possible) == (
        row.faster.count + row.undecided.count,
        row.slower.count + row.undecided.count,
    )
    assert row.bin_undecided.count == expected["open"]
    assert row.n == expected["n"]
    least, most = expected["median"]  # type: ignore[misc]
    assert row.median.least == pytest.approx(least)
    assert row.median.most == pytest.approx(most)


@UNHURRIED
@given(mixed())
def test_pairs_are_those_of_the_slow_way(samples: list[Sample]) -> None:
    made = table(samples)
    pairs = pair(made, "A", "B")
    for one, other in zip((pairs, pair_planned(made, "A", "B", pairs)), slow_pair(samples, "A", "B"), strict=True):
        pairs_, slow_pairs = (x.pairs if isinstance(x, PlannedPairs) else x for x in (one, other))
        assert pairs_.domains == slow_pairs.domains
        assert _rows(pairs_) == _rows(slow_pairs)
        if isinstance(one, Pairs):
            assert list(pairs_.excluded.items()) == list(slow_pairs.excluded.items())
            assert {name: codes.tolist() for name, codes in pairs_.larger.items()} == {
                name: codes.tolist() for name, codes in slow_pairs.larger.items()
            }
        elif isinstance(other, PlannedPairs):
            assert one.config_failed.tolist() == other.config_failed.tolist()
            assert one.vs_failed.tolist() == other.vs_failed.tolist()


def _rows(found: Pairs) -> list[tuple[float, ...]]:
    return list(zip(found.low.tolist(), found.high.tolist(), found.domain.tolist(), strict=True))


@UNHURRIED
@given(campaigns())
def test_shares_sum_to_one(samples: list[Sample]) -> None:
    row = speedup_row(samples, AB)
    assume(row.n)
    assert sum(s.count for s in (row.faster, row.slower, row.tie, row.undecided)) == row.n
    assert sum(s.count for s in (*row.bins, row.bin_undecided)) == row.n
    assert sum(s.share or 0 for s in (row.faster, row.slower, row.tie, row.undecided)) == pytest.approx(1)
    assert sum(s.share or 0 for s in (*row.bins, row.bin_undecided)) == pytest.approx(1)


@UNHURRIED
@given(campaigns())
def test_bins_agree_with_faster_and_slower(samples: list[Sample]) -> None:
    row = speedup_row(samples, AB)
    slower = sum(share.count for share in row.bins[: BIN["1.0-1.1"]])
    faster = sum(share.count for share in row.bins[BIN["1.0-1.1"] :])
    assert slower <= row.slower.count
    assert faster <= row.faster.count + row.tie.count
    if not row.bounds:
        assert (slower, faster) == (row.slower.count, row.faster.count + row.tie.count)


@UNHURRIED
@given(campaigns())
def test_swapping_the_sides_mirrors_the_row(samples: list[Sample]) -> None:
    one, other = speedup_row(samples, AB), speedup_row(samples, BA)
    assert (one.n, one.faster, one.slower, one.tie, one.undecided) == (
        other.n,
        other.slower,
        other.faster,
        other.tie,
        other.undecided,
    )
    if one.median.value is not None:
        assert other.median.value == pytest.approx(1 / one.median.value)
        if one.median.low and one.median.high:
            assert other.median.high == pytest.approx(1 / one.median.low)
    assert other.p_wilcoxon == pytest.approx(one.p_wilcoxon)
    assert (other.p_sign, other.failures.p) == (one.p_sign, one.failures.p)


@UNHURRIED
@given(campaigns(), st.randoms(use_true_random=False))
def test_order_of_rows_does_not_matter(samples: list[Sample], chance: random.Random) -> None:
    shuffled = list(samples)
    chance.shuffle(shuffled)
    assert speedup_row(shuffled, AB) == speedup_row(samples, AB)


@UNHURRIED
@given(st.one_of(campaigns(), campaigns(domains=10)))
def test_intervals_cover_the_estimate(samples: list[Sample]) -> None:
    row = speedup_row(samples, AB)
    shares = (row.faster, row.slower, row.tie, row.undecided, *row.bins, row.bin_undecided)
    if row.domains < MINIMUM_DOMAINS:
        assert all(share.low is None and share.high is None for share in shares)
        assert row.median.low is None
        return
    for share in shares:
        assert share.low is not None and share.high is not None and share.share is not None
        assert 0 <= share.low <= share.share <= share.high <= 1
    assert row.median.low is not None and row.median.high is not None
    assert row.median.least is not None and row.median.most is not None
    assert row.median.low <= row.median.least <= row.median.most <= row.median.high


def test_edges_belong_to_the_bin_above() -> None:
    # Costs whose quotients are the edges exactly.
    row = speedup_row(pairs((10, 7), (1, 2), (2, 3), (4, 4), (10, 8), (10, 9)), AB)
    expected = {"0.7-0.8": 1, ">2": 1, "1.5-2": 1, "1.0-1.1": 1, "0.8-0.9": 1, "0.9-1.0": 1}
    assert {name: share.count for name, share in zip(BIN_NAMES, row.bins, strict=True) if share.count} == expected
    assert (row.faster.count, row.slower.count, row.tie.count) == (2, 3, 1)


def test_bins_need_nothing_but_their_names() -> None:
    for name, low, high in zip(BIN_NAMES, (0, *values.BIN_EDGES), (*values.BIN_EDGES, 1e9), strict=True):
        row = speedup_row(pairs((1.0, (low + min(high, low + 1)) / 2)), AB)
        assert row.bins[BIN[name]].count == 1


def _bound(config_cost: tuple[float, float], vs_cost: tuple[float, float]) -> SpeedupRow:
    return speedup_row([sample("A", "d", *config_cost), sample("B", "d", *vs_cost)], AB)


def test_bounds_count_where_they_decide() -> None:
    inf = math.inf
    row = _bound((10, inf), (6, 6))  # A took more than 10 s, B 6 s: speed-up under 0.6
    assert (row.slower.count, row.bins[0].count, row.undecided.count) == (1, 1, 0)
    row = _bound((10, inf), (9.5, 9.5))  # under 0.95: slower, but how much?
    assert (row.slower.count, row.bin_undecided.count, row.bounds) == (1, 1, 1)
    row = _bound((4, 4), (10, inf))  # over 2.5
    assert (row.faster.count, row.bins[-1].count) == (1, 1)
    row = _bound((10, 10), (10, inf))  # over 1, strictly: the reference had not ended yet
    assert (row.faster.count, row.tie.count, row.bin_undecided.count) == (1, 0, 1)
    row = _bound((5, inf), (6, 6))  # cut at fewer bytes: anything under 1.2
    assert (row.undecided.count, row.bin_undecided.count, row.n) == (1, 1, 1)
    row = _bound((10, inf), (10, inf))
    assert (row.undecided.count, row.median.value, row.median.least, row.median.most) == (1, None, 0.0, inf)


def test_median_is_known_in_spite_of_bounds_that_do_not_reach_it() -> None:
    samples = [*pairs((1, 1.2), (1, 1.3), (1, 1.4)), sample("A", "x", 10, math.inf), sample("B", "x", 6)]
    samples += [sample("A", "y", 4), sample("B", "y", 10, math.inf)]
    assert speedup_row(samples, AB).median.value == pytest.approx(1.3)


def test_excluded_runs_are_counted_by_reason() -> None:
    samples = [*pairs((1, 2)), sample("A", "x", 1), sample("A", "y", 1, excluded="failed"), sample("B", "y", 1)]
    row = speedup_row(samples, AB)
    assert row.n == 1
    assert row.excluded == {"A failed": 1, "B not in the run": 1}


def test_no_pair_gives_no_share() -> None:
    row = speedup_row([sample("A", "x", 1)], AB)
    assert (row.n, row.faster.share, row.median.value) == (0, None, None)


def test_interval_of_a_known_distribution() -> None:
    # 100 domains with two runs each, 60 of them faster: clusters do not make the interval narrower than 60 of 100.
    samples = []
    for domain in range(100):
        for run in ("a", "b"):
            cost = 1.0 if domain < 60 else 3.0
            samples += [sample("A", f"d{domain}/{run}", cost), sample("B", f"d{domain}/{run}", 2.0)]
    row = speedup_row(samples, AB)
    spread = 1.96 * math.sqrt(0.6 * 0.4 / 100)
    assert row.faster.share == pytest.approx(0.6)
    assert row.faster.low == pytest.approx(0.6 - spread, abs=0.015)
    assert row.faster.high == pytest.approx(0.6 + spread, abs=0.015)


def test_a_row_for_each_comparison_and_group() -> None:
    samples = [*pairs((1, 2), (1, 2)), sample("C", "d0", 4)]
    ac, ad = Comparison.of("A", "C", Role.CACHE), Comparison.of("A", "D")
    rows = table2(samples, [ac, AB, ad])
    assert [(row.comparison, row.n) for row in rows] == [(ac, 1), (AB, 2), (ad, 0)]
    assert rows[2].excluded == {"D not in the run": 2}
    of_x = [each.run == "d0" for each in samples]
    groups = {
        name: table([each for each, is_x in zip(samples, of_x, strict=True) if is_x == (name == "x")]) for name in "yx"
    }
    rows = speedup.speedup_rows(groups, [ac, AB, ad], only_present=True)
    assert [(row.group, row.comparison, row.n) for row in rows] == [("y", AB, 1), ("x", ac, 1), ("x", AB, 1)]


def planned(a: float, b: float, run: object, **more: object) -> list[Sample]:
    """A run by cost of A and of B; inf: failed."""
    sides = {"A": a, "B": b}
    return [
        dataclasses.replace(
            sample(name, run, cost, excluded="failed" if cost == math.inf else None),
            **more,  # type: ignore[arg-type]
        )
        for name, cost in sides.items()
    ]


def test_failures_count_by_intention_to_treat_and_are_tested() -> None:
    samples = [each for i in range(12) for each in planned(1.0, 2.0, f"d{i}")]
    for i in range(8):
        samples += planned(math.inf, 2.0, f"d{i}/again")
    samples += [*planned(1.0, math.inf, "d9/again"), *planned(math.inf, math.inf, "d10/again")]
    row = speedup_row(samples, AB)
    assert (row.n, row.faster.count, row.median.value) == (12, 12, pytest.approx(2.0))
    assert (row.failures.config_only, row.failures.vs_only, row.failures.both) == (8, 1, 1)
    assert row.failures.p == pytest.approx(2 * 10 / 2**9), "8 of 9 domains"
    assert (row.intention.n, row.intention.faster.count, row.intention.slower.count) == (22, 13, 8)
    # Of 12 domains, 8 have the median of 2 and a failure, which is a failure on a log scale.
    assert row.intention.median.value == 0.0 and row.intention.p_wilcoxon > row.p_wilcoxon  # type: ignore[operator]


def test_what_the_wire_showed_matters_only_as_treated() -> None:
    samples = [each for i in range(12) for each in planned(1.0, 2.0, f"d{i}")]
    samples += [each for i in range(12, 15) for each in planned(1.0, 0.5, f"d{i}", excluded="treatment not accepted")]
    samples += planned(1.0, 0.5, "d20", excluded="void measurement run", planned=False)
    row = speedup_row(samples, AB)
    assert (row.n, row.slower.count, row.intention.n, row.intention.slower.count) == (12, 0, 15, 3)


def test_larger_clusters_widen_what_domains_show() -> None:
    rng = np.random.default_rng(1)
    samples = []
    for i in range(60):
        # Domains of one AS agree, so 60 of them are 4 observations.
        gain = (1.3, 1.1, 1.0, 1.2)[i % 4] * rng.lognormal(0, 0.01)
        for vantage in ("MUC", "SFO"):
            larger = {"AS": str(i % 4), "vantage": vantage}
            samples += planned(1.0, float(gain), f"d{i}/{vantage}", larger=larger)
    row = speedup_row(samples, AB)
    networks, vantages = row.larger["AS"], row.larger["vantage"]
    assert row.p_wilcoxon is not None and row.p_wilcoxon < 1e-6 < 0.1 < networks.p
    assert (networks.clusters, vantages.clusters, vantages.low) == (4, 2, None)
    assert (
        networks.low is not None
        and networks.high is not None
        and networks.low < row.median.low < row.median.high < networks.high
    )  # type: ignore[operator]
    unknown = [dataclasses.replace(s, larger=s.larger | {"AS": None}) if s.domain == "d7" else s for s in samples]
    assert list(speedup_row(unknown, AB).larger) == ["vantage"]


def judged(**medians: tuple[float, Role]) -> dict[str, SpeedupRow]:
    """Rows of 40 domains whose speed-ups are these, give or take 1 %."""
    rng = np.random.default_rng(3)
    samples = [sample("B", f"d{i}", 1.0) for i in range(40)]
    for name, (gain, _) in medians.items():
        samples += [sample(name, f"d{i}", float(rng.lognormal(0, 0.01)) / gain) for i in range(40)]
    asked = [Comparison(name=name, config=name, vs="B", role=role) for name, (_, role) in medians.items()]
    return {row.comparison.name: row for row in table2(samples, asked)}


def test_direction_needs_q_and_size_an_interval_beyond_two_percent_and_the_noise_floor() -> None:
    effect, floor = Role.EFFECT, Role.NOISE_FLOOR
    rows = judged(up=(1.05, effect), down=(0.95, effect), little=(1.015, effect), none=(1.0, effect))
    assert {name: row.verdict for name, row in rows.items()} == {
        "up": Verdict.FASTER,
        "down": Verdict.SLOWER,
        "little": Verdict.EQUIVALENT,
        "none": Verdict.EQUIVALENT,
    }
    little = rows["little"]
    assert little.q_bh is not None and little.q_bh < 1e-3, "certain, and less than 2 %"
    assert [row.size for row in rows.values()] == [Size.AT_LEAST, Size.AT_LEAST, None, None]
    assert all(row.q_by > row.q_bh for row in rows.values() if row.q_by and row.q_bh and row.q_by < 1)
    rows = judged(up=(1.05, effect), much=(1.2, effect), again=(0.92, floor))
    assert rows["up"].verdict is rows["much"].verdict is Verdict.FASTER
    assert (rows["up"].size, rows["much"].size) == (Size.PERHAPS_LESS, Size.AT_LEAST)
    assert rows["up"].margin == pytest.approx(1 / 0.92, rel=0.01)
    assert rows["again"].verdict is None and rows["again"].q_bh is None


@pytest.mark.parametrize("starved, verdict", [(0, Verdict.FASTER), (4, Verdict.FASTER), (5, Verdict.HOST_BUSY)])
def test_different_clients_on_a_busy_host_are_not_judged(starved: int, verdict: Verdict) -> None:
    rng = np.random.default_rng(4)
    samples = [one for i in range(40) for one in planned(1.0, float(rng.lognormal(0, 0.01)) * 1.5, f"d{i}")]
    waited = np.zeros(len(samples), dtype=np.bool_)
    waited[: 2 * starved : 2] = True
    equal, differ = texts(["requests"] * len(samples)), texts(["aioquic", "requests"] * 40)
    rows = {
        name: speedup.speedup_rows({"": dataclasses.replace(table(samples), client=client, starved=waited)}, [AB])[0]
        for name, client in {"equal": equal, "differ": differ}.items()
    }
    assert (rows["equal"].verdict, rows["equal"].starved) == (Verdict.FASTER, 0), "their noise floor tells"
    assert (rows["differ"].verdict, rows["differ"].starved, rows["differ"].n) == (verdict, starved, 40)
    (finding,) = findings.findings([rows["differ"]])
    is_said = f"In {starved} of 40 runs one of the two clients waited for a CPU" in finding.sentence
    assert is_said == (verdict is Verdict.HOST_BUSY) == bool(finding.why)


def test_an_option_that_helps_one_domain_of_four_is_not_equivalent() -> None:
    rng = np.random.default_rng(1)
    samples = []
    for i in range(48):
        samples += planned(1.0, float(rng.lognormal(0, 0.005)) * (1.5 if i % 4 == 0 else 1.0), f"d{i}")
    (row,) = table2(samples, [AB])
    assert row.median.low90 is not None and row.median.high90 is not None
    assert row.median.low90 > 1 / 1.02 and row.median.high90 < 1.02, "the median alone shows no difference"
    assert row.q_bh is not None and row.q_bh < 0.05 and row.verdict is Verdict.FASTER
    assert (row.gain.count, row.lose.count, row.gain.n) == (12, 0, 48), "the domains that gain"


def split_by_limiter(gains: dict[str, float], *, domains: int = 48, by: str = "twin") -> SpeedupRow:
    """A row whose domains gain what the limiter of the reference's twin says (or its own), give or take 1 %."""
    rng, names = np.random.default_rng(5), list(gains)
    samples = []
    for i in range(domains):
        limiter = names[i % len(names)]
        a, b = planned(1.0, float(rng.lognormal(0, 0.01)) * gains[limiter], f"d{i}")
        own = {SplitBy.LIMITER: "unknown", SplitBy.PROVIDER: f"P{i // 8}"}
        told = {"own": b, "twin": dataclasses.replace(b, configuration="B2")}
        samples += [dataclasses.replace(one, splits=own) for one in (a, b, told["twin"])]
        samples[-1 if by == "twin" else -2] = dataclasses.replace(told[by], splits=own | {SplitBy.LIMITER: limiter})
    row, *_ = table2(samples, [AB, Comparison.of("B2", "B", Role.NOISE_FLOOR)] if by == "twin" else [AB])
    return row


def test_mixed_names_the_split_by_what_limited_the_reference() -> None:
    row = split_by_limiter({"receive_window": 1.5, "path_rate": 1.0, "congestion": 1.0})
    assert row.verdict is Verdict.MIXED and row.split is not None and row.split.by is SplitBy.LIMITER
    medians = {part.name: part.median.value for part in row.split.parts}
    assert medians == pytest.approx({"receive_window": 1.5, "path_rate": 1.0, "congestion": 1.0}, rel=0.01)
    assert [(part.n, part.domains) for part in row.split.parts] == [(16, 16)] * 3
    assert row.q_parts is not None and row.q_parts < 0.05 and row.size is None


def test_what_limited_the_reference_itself_is_described_and_not_tested() -> None:
    """What slowed it by chance tells the parts, too: without any effect they would differ."""
    row = split_by_limiter({"receive_window": 1.5, "path_rate": 1.0}, by="own")
    (limiter,) = (split for split in row.splits if split.by is SplitBy.LIMITER)
    assert (limiter.of, limiter.p, row.q_parts, row.split) == ("B", None, 1.0, None) and len(limiter.parts) == 2
    (one,) = findings.findings([row])
    assert "Median by what limited B: " in one.adds and "Not tested: what slowed B by chance" in one.adds
    assert "limited" not in one.why
    rows = [row, split_by_limiter({"receive_window": 1.5, "path_rate": 1.0})]
    assert [line[1] for line in render.by_limiter_cells(rows)] == ["reference's twin", "none (B, not tested)", "B2"]


def test_all_gain_is_no_mixture_though_some_gain_more() -> None:
    row = split_by_limiter({"receive_window": 1.5, "path_rate": 1.1})
    assert (row.verdict, row.split) == (Verdict.FASTER, None)
    (limiter,) = (split for split in row.splits if split.by is SplitBy.LIMITER)
    assert limiter.p is not None and limiter.p < 1e-6, "the parts differ"


def test_a_part_of_few_domains_proves_nothing() -> None:
    row = split_by_limiter({"receive_window": 1.5, "path_rate": 1.0}, domains=10)
    (limiter,) = (split for split in row.splits if split.by is SplitBy.LIMITER)
    assert limiter.p is None and row.q_parts is None and row.verdict is not Verdict.MIXED


def test_providers_are_the_unit_where_their_effects_differ() -> None:
    rng = np.random.default_rng(2)
    samples = []
    for i in range(60):
        gain = {0: 1.0, 1: 1.1, 2: 1.2, 3: 1.3}[i % 4]
        own = {SplitBy.PROVIDER: f"P{i % 4}"}
        pair_ = planned(1.0, float(rng.lognormal(0, 0.01)) * gain, f"d{i}")
        samples += [dataclasses.replace(each, splits=own) for each in pair_]
    (row,) = same_units([speedup_row(samples, AB)])
    assert (row.typical.unit, row.typical.units) == (Unit.PROVIDER, 4)
    assert row.typical.p_providers is not None and row.typical.p_providers < 1e-6
    assert row.typical.low is not None and row.typical.high is not None
    assert row.typical.low < 1.0 and row.typical.high > 1.3, "four providers tell little about a fifth"
    (plain,) = same_units([speedup_row([dataclasses.replace(each, splits={}) for each in samples], AB)])
    assert (plain.typical.unit, plain.typical.units) == (Unit.DOMAIN, 60)
    assert plain.typical.low is not None and plain.typical.low > 1.05


def censored_of_providers(*censored: int, bound: float | None) -> SpeedupRow:
    """Six providers of eight domains, of which in so many A was faster than 2.5 times; by as much if there is no bound
    (the reference's time budget)."""
    rng, samples = np.random.default_rng(2), []
    for number, gain in enumerate((1.12, 1.1, 1.07, 1.05, 1.01, 0.9)):
        for at in range(8):
            a, b = planned(1.0, float(rng.lognormal(0, 0.05)) * gain, f"d{number}/{at}", domain=f"d{number}.{at}")
            if number < len(censored) and at < censored[number]:
                b = dataclasses.replace(b, low=2.5, high=bound or 2.5)
            own = {"splits": {SplitBy.PROVIDER: f"P{number}"}, "larger": {"AS": str(number)}}
            samples += [dataclasses.replace(one, **own) for one in (a, b)]
    (row,) = judge([speedup_row(samples, AB)])
    return row


def test_one_far_bound_changes_neither_unit_nor_interval() -> None:
    """Domains were the unit as soon as one pair was censored, with an interval that covered 0.56."""
    known, bounded = (censored_of_providers(1, bound=bound) for bound in (None, math.inf))
    assert known.typical.unit is Unit.PROVIDER and bounded.bounds == 1
    ends = [(row.typical.unit, row.typical.units, row.typical.low, row.typical.high) for row in (known, bounded)]
    assert ends[0] == ends[1]
    assert known.larger["AS"].low is not None
    ends_by_as = [(row.larger["AS"].low, row.larger["AS"].high) for row in (known, bounded)]
    assert ends_by_as[0] == ends_by_as[1]


def test_where_a_provider_has_only_a_bound_domains_are_the_unit_and_it_is_said() -> None:
    for row in (censored_of_providers(5, bound=math.inf), censored_of_providers(8, bound=math.inf)):
        assert (row.typical.unit, row.typical.units, row.larger["AS"].low) == (Unit.DOMAIN, 48, None)
        words = "or one's speed-up has no bound, so the typical speed-up and its interval count each domain once"
        assert words in findings.findings([row])[0].adds
    assert "no bound" not in findings.findings([censored_of_providers(2, bound=math.inf)])[0].adds


def test_two_providers_that_differ_are_said() -> None:
    """They are too few to be the unit, and the interval over domains speaks of these two alone."""
    row = of_providers((20, 1.05), (20, 0.95))
    assert row.typical.unit is Unit.DOMAIN and row.typical.p_providers is not None and row.typical.p_providers < 0.001
    assert "but fewer than three have several domains" in findings.findings([row])[0].adds


def of_providers(*parts: tuple[int, float], noise: float = 0.01) -> SpeedupRow:
    """A row of providers with so many domains and so large a speed-up of A."""
    rng, samples = np.random.default_rng(1), []
    for number, gain in enumerate(gain for count, gain in parts for _ in range(count)):
        samples += planned(1.0, float(rng.lognormal(0, noise)) * gain, f"d{number}")
    names = [f"P{number}" for number, (count, _) in enumerate(parts) for _ in range(2 * count)]
    own = [dataclasses.replace(one, splits={SplitBy.PROVIDER: name}) for one, name in zip(samples, names, strict=True)]
    (row,) = judge([speedup_row(own, AB)])
    return row


@pytest.mark.parametrize(("domains", "words"), [(5, "More domains may tell."), (6, "More domains or iterations may")])
def test_iterations_are_no_advice_where_no_number_of_them_can_tell(domains: int, words: str) -> None:
    """Of five domains the exact test is at 0.0625 or above, even if all gain."""
    gains = [(1, 1.2)] * 5 + [(1, 0.98)] * (domains - 5)
    row = of_providers(*gains)
    assert row.verdict is Verdict.UNDECIDED and words in findings.findings([row])[0].sentence


def test_no_q_value_is_below_its_p_value() -> None:
    """Ten clear directions beside one test of parts, whose weight makes half its own p of it."""
    part = values.SplitPart(name="p", n=9, domains=9, median=values.Median(value=1.3, least=1.3, most=1.3))
    parts = (dataclasses.replace(part, sure=(1.2, 1.4)), dataclasses.replace(part, sure=(0.99, 1.01)))
    parts = (parts[0], dataclasses.replace(parts[1], median=values.Median(value=1.0, least=1.0, most=1.0)))
    split = values.Split(by=SplitBy.LIMITER, p=0.08, parts=parts)
    clear = dataclasses.replace(of_providers((12, 1.3)), p_wilcoxon=1e-6, splits=())
    rows = judge([*[clear] * 9, dataclasses.replace(clear, splits=(split,))])
    assert rows[-1].q_parts == 0.08 and rows[-1].verdict is Verdict.FASTER
    assert rows[0].q_bh is not None and rows[0].q_bh >= 1e-6


def test_a_direction_of_most_domains_and_not_of_most_providers_is_undecided() -> None:
    """One provider with most domains, and several small ones that lose: the test is over domains."""
    row = of_providers((60, 1.1), *[(2, 0.92)] * 12)
    assert (row.typical.unit, row.verdict, row.size) == (Unit.PROVIDER, Verdict.UNDECIDED, None)
    assert row.typical.high is not None and row.typical.high < 1 and row.typical.over_domains is not None
    assert row.typical.over_domains > 1.05 and row.median.low is not None and row.median.low > 1.05
    assert row.q is not None and row.q < 0.001
    sentence = findings.findings([row])[0].sentence
    assert sentence.startswith("Undecided: ") and "may be chance" not in sentence
    assert "counting each provider once, and 1.0" in sentence and "It depends on the providers." in sentence
    same = of_providers((60, 1.1), *[(2, 1.05)] * 12)
    assert (same.typical.unit, same.verdict, same.size) == (Unit.PROVIDER, Verdict.FASTER, Size.AT_LEAST)


def test_a_row_of_one_large_provider_says_so() -> None:
    row = of_providers((30, 1.1), (2, 1.1))
    assert row.typical.unit is Unit.DOMAIN
    words = "Of the 32 domains, 30 are of the provider P0: the typical speed-up and its interval are mostly"
    assert words in findings.findings([row])[0].adds
    many = [dataclasses.replace(one, name="other") if one.name == "P0" else one for one in row.splits[0].parts]
    others = dataclasses.replace(row, splits=(dataclasses.replace(row.splits[0], parts=tuple(many)),))
    for alike in (of_providers((16, 1.1), (16, 1.1)), of_providers((32, 1.1)), others):
        assert "of the provider" not in findings.findings([alike])[0].sentence


def test_a_row_that_counts_other_as_one_provider_says_so() -> None:
    row = of_providers((16, 1.0), (16, 1.1), (16, 1.2))
    words = "count each of 3 providers once"
    assert row.typical.unit is Unit.PROVIDER and f"{words}." in findings.findings([row])[0].adds
    parts = [dataclasses.replace(one, name="other") if one.name == "P0" else one for one in row.splits[0].parts]
    row = dataclasses.replace(row, splits=(dataclasses.replace(row.splits[0], parts=tuple(parts)),))
    assert f"{words}, other, the name of many, as one of them." in findings.findings([row])[0].adds


def test_rows_with_one_reference_have_one_unit() -> None:
    """Two clients' rows stood beside each other, one over domains and one over providers, and their order was not that
    of the clients."""
    differing, alike = of_providers((16, 1.0), (16, 1.1), (16, 1.2)), of_providers(*[(20, 1.1)] * 3)
    assert alike.typical.unit is Unit.DOMAIN and alike.typical.p_providers is not None
    beside = dataclasses.replace(alike, comparison=Comparison.of("C", "B"))
    floor = dataclasses.replace(alike, comparison=Comparison.of("B2", "B", role=Role.NOISE_FLOOR))
    rows = judge([differing, beside, floor])
    assert [(row.typical.unit, row.typical.units) for row in rows] == [(Unit.PROVIDER, 3)] * 3
    assert rows[1].typical.over_domains == alike.typical.value
    words = "In another row with the reference B effects may differ between providers, so the typical speed-up and its"
    assert words in findings.findings(rows)[1].adds
    for own in ({"comparison": Comparison.of("A", "C")}, {"group": "MUC"}):
        other = dataclasses.replace(alike, **own)
        assert judge([differing, other])[1].typical.unit is Unit.DOMAIN
    noise = dataclasses.replace(differing, comparison=Comparison.of("B2", "B", role=Role.NOISE_FLOOR))
    assert judge([noise, beside])[1].typical.unit is Unit.DOMAIN, "that is no effect"


def test_a_noise_floor_has_the_unit_of_the_effects_beside_it() -> None:
    """By its own test it counted providers in two of five tables by chance, beside effects over domains."""
    floor, samples = Comparison.of("A", "B", role=Role.NOISE_FLOOR), []
    for number in range(60):
        own = {SplitBy.PROVIDER: f"P{number % 3}"}
        pair_ = planned(1.0, 1.0 + number % 3 / 100 + number / 10000, f"d{number}")
        samples += [dataclasses.replace(one, splits=own) for one in pair_]
    noise, effect = speedup_row(samples, floor), of_providers(*[(20, 1.1)] * 3)
    effect = dataclasses.replace(effect, comparison=Comparison.of("C", "B"))
    assert noise.typical.p_providers is not None and noise.typical.p_providers < 0.001
    assert [row.typical.unit for row in judge([noise, effect])] == [Unit.DOMAIN] * 2
    assert "fewer than three" not in findings.noise_sentences(judge([noise, effect]))[0]
    differing = dataclasses.replace(of_providers((16, 1.0), (16, 1.1), (16, 1.2)), comparison=Comparison.of("C", "B"))
    assert [row.typical.unit for row in judge([noise, differing])] == [Unit.PROVIDER] * 2


def test_providers_that_differ_are_not_equivalent() -> None:
    row = of_providers((40, 1.0), (5, 1.1), (5, 0.9), noise=0.002)
    assert row.typical.unit is Unit.PROVIDER and row.median.low90 is not None and row.median.low90 > 0.99
    assert row.p_equivalence is not None and row.p_equivalence < 0.05
    assert row.verdict is Verdict.UNDECIDED
    # They differ, and by less than what counts.
    assert of_providers((20, 1.0), (20, 1.004), (20, 0.996), noise=0.002).verdict is Verdict.EQUIVALENT


def test_byte_budgets_are_compared_at_the_same_byte() -> None:
    def cut(name: str, run: str, cost: float, *, at_byte: bool) -> Sample:
        return dataclasses.replace(sample(name, run, cost, math.inf), at_byte=at_byte)

    def bounds(a: Sample, b: Sample) -> tuple[float, float]:
        pairs = pair(table([a, b]), "A", "B")
        return float(pairs.low[0]), float(pairs.high[0])

    both = cut("A", "x", 2.0, at_byte=True), cut("B", "x", 3.0, at_byte=True)
    assert bounds(*both) == (1.5, 1.5), "both times to that byte are known"
    assert bounds(both[0], cut("B", "x", 10.0, at_byte=False)) == (5.0, math.inf), "B had fewer bytes after 10 s"
    assert bounds(cut("A", "x", 10.0, at_byte=False), both[1]) == (0.0, 0.3)
    assert bounds(both[0], sample("B", "x", 3.0)) == (0.0, 1.5), "not the same object, so only a bound"
    assert bounds(*(dataclasses.replace(each, at_byte=False) for each in both)) == (0.0, math.inf)


def test_every_declared_effect_counts_in_q_also_without_pairs() -> None:
    one = judged(up=(1.05, Role.EFFECT))["up"]
    samples = [each for i in range(40) for each in planned(1.0, 1.05 + i / 1e4, f"d{i}")]
    rows = table2(samples, [AB, Comparison.of("C", "B"), Comparison.of("D", "B")])
    assert rows[0].q_bh == pytest.approx(3 * (rows[0].p_wilcoxon or 0)) and one.q_bh == one.p_wilcoxon
    assert [row.verdict for row in rows] == [Verdict.FASTER, Verdict.UNDECIDED, Verdict.UNDECIDED]


def test_undecided_pairs_reach_from_all_slower_to_all_faster() -> None:
    """40 % of the references are censored; whatever they took, the interval covers the share."""
    samples = []
    for i in range(100):
        censored = i % 5 < 2
        samples += [
            sample("A", f"d{i}", 1.0),
            sample("B", f"d{i}", 0.8 if censored else 1.2, math.inf if censored else None),
        ]
    row = speedup_row(samples, AB)
    assert (row.faster.count, row.faster.possible, row.undecided.count) == (60, 100, 40)
    assert row.faster.low is not None and row.faster.low < 0.6 and row.faster.high == 1.0
    assert row.slower.low == 0.0 and row.slower.high is not None and row.slower.high > 0.4
    assert row.p_sign == pytest.approx(2 * 0.0284, abs=0.001), "60 against 40 at worst"
