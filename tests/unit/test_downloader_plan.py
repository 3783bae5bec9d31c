"""The plan: every download once, its share of each sequence per provider, vantage points out of step."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from core.domain import Configuration, Target
from core.paper import CONFIGURATIONS as PAPER
from core.paper import WARMUP, WARMUPS
from downloader.campaign.campaign import Campaign, from_document
from downloader.campaign.plan import assign, make_plan, plan_hash


def campaign(**changes: object) -> Campaign:
    return from_document({"name": "t", "lab": "anrw", "targets": "lab", **changes}, Path("t.toml"))


def targets(count: int) -> list[Target]:
    return [Target(domain=f"d{n}.example", url=f"https://d{n}.example/") for n in range(count)]


@given(st.integers(1, 9), st.integers(1, 4), st.integers(1, 4), st.integers(0, 99))
def test_every_download_once(count: int, iterations: int, vantage_points: int, seed: int) -> None:
    plan = make_plan(
        campaign(iterations=iterations, seed=seed), targets(count), vantage="B", index=0, vantage_points=vantage_points
    )
    assert [run.number for run in plan] == list(range(count * iterations))
    seen = Counter((r.iteration, r.target.domain, name) for r in plan for name in r.configurations)
    assert set(seen.values()) == {1} and len(seen) == count * iterations * (len(PAPER) + 2)
    assert all(run.configurations[:2] == WARMUPS for run in plan)
    assert {tuple(run.positions) for run in plan} == {tuple(range(-1, len(PAPER) + 1))}


def positions(orders: Sequence[Sequence[str]]) -> Counter[tuple[str, int]]:
    return Counter((name, place) for order in orders for place, name in enumerate(order))


def neighbours(orders: Sequence[Sequence[str]]) -> Counter[tuple[str, str]]:
    return Counter(pair for order in orders for pair in pairwise(order))


def unequal(counts: Counter[Any], possible: int) -> int:
    """The largest count less the smallest; what never occurs counts 0."""
    return max(counts.values(), default=0) - (min(counts.values()) if len(counts) == possible else 0)


@settings(deadline=None)
@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 3), st.booleans(), st.integers(0, 99))
def test_runs_of_a_vantage_point_and_of_each_provider_are_balanced(
    providers: int, per_provider: int, iterations: int, odd: bool, seed: int
) -> None:
    listed = [
        Target(domain=f"d{n}.example", url=f"https://d{n}.example/", provider=f"p{n % providers}")
        for n in range(providers * per_provider * 3)
    ]
    chosen = [{"name": c.name, "client": c.client} for c in PAPER[: 7 if odd else 8]]
    plain = campaign(iterations=iterations, seed=seed, configurations=chosen)
    plan = make_plan(plain, listed, vantage="MUC", index=0, vantage_points=1)
    orders = [run.configurations[run.warmups :] for run in plan]
    size = len(chosen)
    for name, runs in [("all", orders)] + [
        (one, [order for run, order in zip(plan, orders, strict=True) if run.target.provider == one])
        for one in {target.provider for target in listed}
    ]:
        exact = name == "all" and len(runs) % (2 * size) != size
        assert unequal(neighbours(runs), size * (size - 1)) <= (1 if exact or not odd else 2), name
        assert unequal(positions(runs), size * size) <= (2 if odd else 1), name


def test_iterations_of_a_target_cancel_drift_and_each_iteration_is_mixed() -> None:
    plan = make_plan(campaign(iterations=2), targets(32), vantage="MUC", index=0, vantage_points=1)
    for target in targets(32):
        runs = [run for run in plan if run.target == target]
        assert [run.iteration for run in runs] == [1, 2]
        for name in (c.name for c in PAPER):
            assert sum(run.positions[run.configurations.index(name)] for run in runs) == 9
    first = {run.configurations for run in plan if run.iteration == 1}
    assert len(first) > 16, "not always the first of a mirrored pair"


def test_the_paper_s_plan() -> None:
    plan = make_plan(campaign(), targets(16), vantage="MUC", index=0, vantage_points=3)
    orders = [run.configurations[run.warmups :] for run in plan]
    names = [c.name for c in PAPER]
    assert positions(orders) == {(name, place): 2 for name in names for place in range(8)}
    assert neighbours(orders) == dict.fromkeys(permutations(names, 2), 2)


@given(st.integers(1, 12), st.integers(1, 3), st.integers(0, 20))
def test_vantage_points_in_step_never_meet(count: int, iterations: int, seed: int) -> None:
    plans = [
        make_plan(
            campaign(iterations=iterations, seed=seed), targets(count), vantage=name, index=index, vantage_points=3
        )
        for index, name in enumerate(("MUC", "SFO", "SGP"))
    ]
    for runs in zip(*plans, strict=True):
        domains = {run.target.domain for run in runs}
        assert len(domains) == min(3, count) or count < 3


def test_a_plan_follows_from_its_seed() -> None:
    def plan(seed: int, vantage: str = "A") -> list[tuple[str, ...]]:
        runs = make_plan(campaign(seed=seed), targets(9), vantage=vantage, index=0, vantage_points=1)
        return [(run.target.domain, *run.configurations) for run in runs]

    assert plan(1) == plan(1)
    assert plan(1) != plan(2) and plan(1) != plan(1, "B")


def test_published_is_always_the_same() -> None:
    plan = make_plan(campaign(order="published"), targets(5), vantage="A", index=0, vantage_points=1)
    assert {run.configurations for run in plan} == {(*WARMUPS, *(c.name for c in PAPER))}


TCP_ONLY = [{"name": name, "client": "requests"} for name in ("BL", "ECN", "WS")]
"""A campaign without QUIC."""

PLAN = [
    ("d0.example", "warmup", "WS", "BL", "ECN"),
    ("d3.example", "warmup", "ECN", "BL", "WS"),
    ("d2.example", "warmup", "BL", "ECN", "WS"),
    ("d1.example", "warmup", "WS", "ECN", "BL"),
]
"""With seed 5, at vantage point A."""


def test_a_plan_does_not_change_between_versions_without_its_hash() -> None:
    """A folder is resumed with the plan that this version makes: if it differs, so must the hash."""
    plain = campaign(configurations=TCP_ONLY, seed=5)
    assert plain.warmups == (WARMUP,)
    plan = make_plan(plain, targets(4), vantage="A", index=0, vantage_points=1)
    assert [(run.target.domain, *run.configurations) for run in plan] == PLAN
    assert {tuple(run.positions) for run in plan} == {(0, 1, 2, 3)}
    assert [each["name"] for each in plain.differences()["configurations"]] == ["warmup", "BL", "ECN", "WS"]


def test_the_warm_up_of_quic_does_not_change_the_order_of_what_follows() -> None:
    quic = [
        *TCP_ONLY,
        {"name": "q", "client": "quiche", "options": {"max_data": 9}},
        {"name": "a", "client": "aioquic"},
    ]
    mixed = campaign(configurations=quic, seed=5)
    assert mixed.warmups == (WARMUP, Configuration(name="warmup-quic", client="quiche"))
    runs = [("other", n) for n in range(9)]
    plan = make_plan(mixed, targets(9), vantage="A", index=0, vantage_points=1)
    expected = assign([c.name for c in mixed.configurations], runs, random.Random("5/A"))
    assert [run.configurations for run in plan] == [(*WARMUPS, *order) for order in expected]
    assert {tuple(run.positions) for run in plan} == {(-1, 0, 1, 2, 3, 4, 5)}
    assert [each["name"] for each in mixed.description()["configurations"]][:2] == ["warmup", "warmup-quic"]


def test_nothing_is_planned_over_quic_where_a_target_is_known_to_be_without_http3() -> None:
    paper, listed = campaign(iterations=2), targets(30)
    known = [replace(one, quic=index % 5 > 0) for index, one in enumerate(listed)]
    tcp = {c.name for c in PAPER if c.client == "requests"}
    plan = make_plan(paper, known, vantage="A", index=0, vantage_points=1)
    short = [run for run in plan if not run.target.quic]
    assert len(plan) == 60 and len(short) == 12
    for run in plan:
        assert set(run.configurations) == {
            *(tcp | {WARMUP.name} if run in short else {*WARMUPS, *(c.name for c in PAPER)})
        }
        assert list(run.positions)[:2] == ([0, 1] if run in short else [-1, 0])
    orders = [run.configurations[1:] for run in short]
    assert unequal(positions(orders), len(tcp) ** 2) <= 1
    assert unequal(neighbours(orders), len(tcp) * (len(tcp) - 1)) <= 1
    assert plan_hash(paper, known, ("A",)) != plan_hash(paper, listed, ("A",)), "another plan"
    plain = campaign(configurations=TCP_ONLY)
    assert plan_hash(plain, known, ("A",)) == plan_hash(plain, listed, ("A",))
    both = [make_plan(plain, some, vantage="A", index=0, vantage_points=1) for some in (known, listed)]
    assert [run.configurations for run in both[0]] == [run.configurations for run in both[1]]
