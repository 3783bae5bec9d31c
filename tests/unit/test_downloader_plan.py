"""The plan: every download once, balanced positions, alternating transports, vantage points out of step."""

from __future__ import annotations

import random
from collections import Counter
from itertools import groupby, islice, pairwise
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from downloader import clients
from downloader.campaign.campaign import Campaign, from_document
from downloader.campaign.plan import balanced_orders, make_plan, spread
from upshift.domain import Configuration, Target, Transport
from upshift.paper import CONFIGURATIONS as PAPER
from upshift.paper import WARMUP, WARMUPS


def campaign(**changes: object) -> Campaign:
    return from_document({"name": "t", "lab": "anrw", "targets": "lab", **changes}, Path("t.toml"))


def targets(count: int) -> list[Target]:
    return [Target(domain=f"d{n}.example", url=f"https://d{n}.example/") for n in range(count)]


def configurations(tcp: int, quic: int) -> list[Configuration]:
    found = [Configuration(name=f"t{n}", client="requests") for n in range(tcp)]
    return found + [Configuration(name=f"q{n}", client="quiche") for n in range(quic)]


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


@given(st.integers(0, 8), st.integers(0, 8), st.integers(0, 99), st.integers(1, 40))
def test_positions_are_balanced(tcp: int, quic: int, seed: int, runs: int) -> None:
    chosen = configurations(tcp, quic)
    if not chosen:
        return
    orders = list(islice(balanced_orders(chosen, random.Random(seed)), runs))
    names = {c.name for c in chosen}
    assert all(set(order) == names and len(order) == len(names) for order in orders)
    for name in names:
        counts = [sum(order[position] == name for order in orders) for position in range(len(names))]
        assert max(counts) - min(counts) <= 1


@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 99))
def test_transports_alternate_as_far_as_numbers_allow(tcp: int, quic: int, seed: int) -> None:
    chosen = configurations(tcp, quic)
    if not (tcp and quic):
        return
    fewer, more = sorted((tcp, quic))
    for order in islice(balanced_orders(chosen, random.Random(seed)), 20):
        for kind, group in groupby(order, key=lambda name: name[0]):
            length = len(list(group))
            is_fewer = (kind == "t") == (tcp <= quic)
            assert length <= (1 if is_fewer else -(-more // fewer)), order


def test_the_paper_s_plan() -> None:
    plan = make_plan(campaign(), targets(16), vantage="MUC", index=0, vantage_points=3)
    for name in (c.name for c in PAPER):
        positions = Counter(run.positions[run.configurations.index(name)] for run in plan)
        assert positions == dict.fromkeys(range(1, 9), 2)
    quic = {c.name for c in PAPER if clients.ALL[c.client].transport is Transport.QUIC}
    for run in plan:
        flags = [name in quic for name in run.configurations[run.warmups :]]
        assert not any(a and b for a, b in pairwise(flags))


def test_spread_is_even() -> None:
    assert "".join(spread("QQ", "TTTTTT")) == "QTTTQTTT"
    assert "".join(spread("", "TTT")) == "TTT"
    assert "".join(spread("QQQ", "TTT")) == "QTQTQT"


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

PLAN_OF_ONE_WARMUP = [
    ("d0.example", "warmup", "BL", "WS", "ECN"),
    ("d3.example", "warmup", "WS", "ECN", "BL"),
    ("d2.example", "warmup", "ECN", "BL", "WS"),
    ("d1.example", "warmup", "ECN", "BL", "WS"),
]
"""As planned before there was a warm-up over QUIC."""


def test_without_quic_a_plan_is_what_it_was_before_quic_was_warmed_up() -> None:
    plain = campaign(configurations=TCP_ONLY, seed=5)
    assert plain.warmups == (WARMUP,)
    plan = make_plan(plain, targets(4), vantage="A", index=0, vantage_points=1)
    assert [(run.target.domain, *run.configurations) for run in plan] == PLAN_OF_ONE_WARMUP
    assert {tuple(run.positions) for run in plan} == {(0, 1, 2, 3)}
    assert "warmups" not in plain.description(), "nor does its hash change"


def test_the_warm_up_of_quic_does_not_change_the_order_of_what_follows() -> None:
    quic = [
        *TCP_ONLY,
        {"name": "q", "client": "quiche", "options": {"max_data": 9}},
        {"name": "a", "client": "aioquic"},
    ]
    mixed = campaign(configurations=quic, seed=5)
    assert mixed.warmups == (WARMUP, Configuration(name="warmup-quic", client="quiche"))
    generator = balanced_orders(mixed.configurations, random.Random("5/A"))
    plan = make_plan(mixed, targets(9), vantage="A", index=0, vantage_points=1)
    assert [run.configurations for run in plan] == [(*WARMUPS, *order) for order in islice(generator, 9)]
    assert {tuple(run.positions) for run in plan} == {(-1, 0, 1, 2, 3, 4, 5)}
    assert mixed.description()["warmups"] == ["warmup", "warmup-quic"]
