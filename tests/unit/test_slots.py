"""Slots: no two vantage points on one target, without talking to each other."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.domain import Failure, Target, VoidReason
from core.errors import UsageError
from core.system.this_host import Clock, read_clock
from downloader.campaign.campaign import Campaign, from_document
from downloader.campaign.expected import expected_s, worst_s
from downloader.campaign.plan import PlannedRun
from downloader.schedule.schedule import Cut, Schedule, State, Turns, Wait
from downloader.schedule.slots import (
    MARGIN_S,
    START_S,
    SharedPlan,
    SlotGate,
    Slots,
    deal,
    groups,
    share,
    slots_for,
)
from tests.cells import Repeats

FILE: dict[str, Any] = {
    "name": "c",
    "targets": "targets.csv",
    "contact": "net@uni.edu",
    "vantage_points": ["A", "B", "C"],
    "configurations": [{"name": "BL", "client": "requests"}],
    "budget": 10,
}
WORST_S = 2 * 10 + 15.0
"""Warm-up and BL."""


def campaign(**changes: Any) -> Campaign:
    return from_document({**FILE, **changes}, Path("c.toml"))


def target(name: str, address: str | None = None, size: int = 1_000_000) -> Target:
    return Target(domain=name, url=f"https://{name}/f", provider="cdn", server_ip=address, size_bytes=size)


def test_targets_that_share_a_registered_domain_or_an_address_form_a_group() -> None:
    targets = [
        target("a.one.com"),
        target("two.com", "192.0.2.1"),
        target("b.one.com"),
        target("three.com", "192.0.2.1"),
        replace(target("four.com"), url="https://cdn.three.com/f"),
        target("x.github.io"),
        target("y.github.io"),
        target("alone.com", "192.0.2.2"),
    ]
    found = [[t.domain for t in group] for group in groups(targets)]
    assert found == [
        ["a.one.com", "b.one.com"],
        ["two.com", "three.com", "four.com"],
        ["x.github.io"],
        ["y.github.io"],
        ["alone.com"],
    ]


def test_groups_are_dealt_into_classes_of_about_equal_sums() -> None:
    weights = random.Random(1).choices(range(1, 100), k=300)
    dealt = deal([float(weight) for weight in weights], 7)
    sums = [sum(w for w, number in zip(weights, dealt, strict=True) if number == k) for k in range(7)]
    assert max(sums) - min(sums) <= min(weights)


def test_in_each_slot_every_vantage_point_has_another_class_and_each_class_once_in_k_slots() -> None:
    slots = slots_for(campaign(slot_s=100), [target(f"{n}.com") for n in range(9)], 3)
    assert slots is not None and slots.length_s == 100
    for first in range(0, 900, 100):
        for one in (target(f"{n}.com") for n in range(9)):
            assert sum(slots.is_turn(one, index, first + 50.0) for index in range(3)) == 1
    assert [slots.is_turn(target("4.com"), 1, at) for at in (0.0, 100.0, 200.0)].count(True) == 1


@pytest.mark.parametrize(("slot_s", "budget", "length"), [("auto", 10, 1800.0), ("auto", 1800, 7230.0), (90, 10, 90.0)])
def test_the_length_of_slots(slot_s: Any, budget: int, length: float) -> None:
    slots = slots_for(campaign(slot_s=slot_s, budget=budget), [target("a.com")], 3)
    assert slots is not None and slots.length_s == length


def test_no_slots_for_one_vantage_point_or_where_they_are_switched_off() -> None:
    assert slots_for(campaign(slot_s=0), [target("a.com")], 3) is None
    assert slots_for(campaign(), [target("a.com")], 1) is None


def test_a_slot_that_is_too_short_is_refused() -> None:
    slots_for(campaign(slot_s=WORST_S + 10), [target("a.com")], 3)
    said = (
        r"field slot_s: the longest measurement run \(a\.com\) takes up to 35 s; it may start 5 s after its slot of "
        r'44\.9 s does, and has to end 5 s before it; write at least 45, or "auto"'
    )
    with pytest.raises(UsageError, match=said):
        slots_for(campaign(slot_s=WORST_S + 9.9), [target("a.com")], 3)


@pytest.mark.parametrize("value", [-1, True, "long", 86_401, "900"])
def test_what_is_no_length_of_a_slot(value: Any) -> None:
    with pytest.raises(UsageError, match="field slot_s: it is neither auto nor a number of seconds"):
        campaign(slot_s=value)


def test_slots_only_where_a_host_has_a_part_of_the_vantage_points_or_the_file_names_a_length() -> None:
    targets, names = [target("a.com"), target("b.com")], ["C", "A", "B"]
    assert share(campaign(), targets, names, names).slots is None
    assert share(campaign(), targets, names, ["A"]).slots is not None
    assert share(campaign(slot_s=100), targets, names, names).slots is not None
    assert share(campaign(slot_s=0), targets, names, ["A"]).slots is None


def test_one_hash_at_all_hosts_for_what_all_share() -> None:
    targets, names = [target(f"{n}.com", f"192.0.2.{n}") for n in range(6)], ["A", "B", "C"]

    def digest(host: str, plan: Campaign, rows: Sequence[Target] = targets) -> str:
        return share(plan, rows, names, [host]).digest

    here = digest("A", campaign())
    assert here == digest("B", campaign()) == digest("C", campaign())
    own = {"ca_file": "own.pem", "uplink": "eth1", "vantage_clock": "trusted", "opt_out": "o.txt", "disk": {}}
    assert digest("B", campaign(**own)) == here, "a host's own matter"
    assert digest("A", campaign(slot_s=900)) != here
    moved = [replace(one, server_ip="192.0.2.1") for one in targets]
    assert digest("A", campaign(), moved) != here, "other groups, so other classes"
    assert share(campaign(), targets, names, names).digest == share(campaign(), moved, names, names).digest


def test_the_parts_of_all_hosts_are_the_plan_of_one_process() -> None:
    targets, names = [target(f"{n}.com") for n in range(6)], ["A", "B", "C"]
    whole = share(campaign(iterations=2), targets, names, names)
    for name in names:
        assert share(campaign(iterations=2), targets, names, [name]).runs(name) == whole.runs(name)
    assert {run.target.domain for run in whole.runs("B")} == {one.domain for one in targets}


def gate(slots: Slots | None, plan: Campaign, clock: Clock | None = None) -> SlotGate:
    assert slots is not None
    return SlotGate(plan, slots, 0, clock=None if clock is None else lambda: clock)


def run_of(one: Target) -> PlannedRun:
    return PlannedRun(number=0, iteration=1, target=one, configurations=("warmup", "BL"))


def test_a_run_waits_for_its_class_and_for_a_slot_that_it_fits_into() -> None:
    plan, targets = campaign(slot_s=100), [target("a.com"), target("b.com"), target("c.com")]
    slots = slots_for(plan, targets, 3)
    made = gate(slots, plan)
    assert slots is not None
    [mine] = [one for one in targets if slots.classes[one.key] == 0]
    [other] = [one for one in targets if slots.classes[one.key] == 2]
    assert made.admits(run_of(mine), 300.0) is None
    assert made.admits(run_of(mine), 400.0 - WORST_S - 5) is None
    late = made.admits(run_of(mine), 400.0 - WORST_S - 4.9)
    assert late is not None and (late.state, late.until) == (State.WAITING_FOR_SLOT, 600.0) and "fits" in late.reason
    wait = made.admits(run_of(other), 310.0)
    assert wait is not None and (wait.state, wait.until) == (State.WAITING_FOR_SLOT, 500.0)


def test_a_run_that_hangs_is_void_before_its_slot_ends() -> None:
    plan = campaign(slot_s=100)
    made, run = gate(slots_for(plan, [target("a.com")], 3), plan), run_of(target("a.com"))
    made.began(run, 1, 310.0)
    assert made.cuts(run, 396.9) is None
    cut = made.cuts(run, 397.0)
    assert isinstance(cut, Cut) and cut.failure is Failure.UNKNOWN
    assert cut.void is not None and cut.void.reason is VoidReason.SLOT_ENDED


def test_the_clock_is_checked_once_in_each_slot() -> None:
    clocks, asked = [Clock(synchronised=False, max_error_s=0.1), Clock(synchronised=True, max_error_s=1.0)], []
    good = Clock(synchronised=True, max_error_s=0.2)

    def read() -> Clock:
        asked.append(1)
        return clocks.pop(0) if clocks else good

    plan = campaign(slot_s=100)
    slots = slots_for(plan, [target("a.com")], 3)
    assert slots is not None
    made = SlotGate(plan, slots, 0, clock=read)
    assert made.holds(300.0) == Wait(State.WAITING_FOR_CLOCK, "this host's clock is not synchronised")
    assert made.holds(301.0) == Wait(State.WAITING_FOR_CLOCK, "this host's clock may be wrong by 1.0 s")
    assert made.holds(302.0) is None and made.holds(399.0) is None and len(asked) == 3
    assert made.holds(400.0) is None and len(asked) == 4


def test_the_kernel_tells_the_state_of_the_clock() -> None:
    found = read_clock()
    assert 0 <= found.max_error_s < 1e5
    assert (found.fault() is None) == (found.synchronised and found.max_error_s < 1)


LATE_S = 2.0
"""How long after it was due a process of the simulation may wake up: it is busy, or its host is."""


def intervals(
    plan: SharedPlan, name: str, error_s: float, start_s: float, seed: int
) -> list[tuple[Target, float, float]]:
    """Target, begin and end (true time) of each run of a vantage point whose clock is ahead by `error_s`."""
    assert plan.slots is not None
    draw, now, until, sleeps = random.Random(f"{seed}/{name}"), start_s + error_s, 0.0, 0
    runs, most, found = plan.runs(name), 20 * plan.slots.count, []

    def tell(state: State, reason: str, end: float | None) -> None:
        nonlocal until
        assert state in (State.RUNNING, State.WAITING_FOR_SLOT), reason
        until = end or 0.0

    def sleep(seconds: float) -> None:
        nonlocal now, sleeps
        now, sleeps = max(now + seconds, until + draw.uniform(0, LATE_S)), sleeps + 1
        assert sleeps <= most * len(runs), "some run never starts"

    schedule = Schedule(
        runs,
        turns=Turns(),
        gates=[SlotGate(plan.campaign, plan.slots, plan.index(name))],
        stop=threading.Event(),
        tell=tell,
        clock=lambda: now,
        sleep=sleep,
    )
    while (run := schedule.next()) is not None:
        worst = worst_s(plan.campaign, run.target)
        took = worst if draw.random() < 0.3 else draw.uniform(0.1, worst)
        found.append((run.target, now - error_s, now - error_s + took))
        now += took
        schedule.give_back(run, again=draw.random() < 0.1)
    return found


BUDGETS: dict[str | int, Campaign] = {budget: campaign(budget=budget, slot_s="auto") for budget in ("auto", 5, 60)}


@st.composite
def plans(draw: st.DrawFn) -> tuple[SharedPlan, list[float], list[float], int]:
    names = [f"V{number}" for number in range(draw(st.integers(2, 10)))]
    targets = [
        target(
            f"h{number}.site{draw(st.integers(0, 12))}.com",
            draw(st.none() | st.integers(1, 12).map(lambda host: f"192.0.2.{host}")),
            draw(st.integers(1_000, 30_000_000)),
        )
        for number in range(draw(st.integers(1, 14)))
    ]
    plan = replace(
        BUDGETS[draw(st.sampled_from(sorted(BUDGETS, key=str)))],
        vantage_points=tuple(names),
        iterations=draw(st.integers(1, 3)),
        seed=draw(st.integers(1, 1_000)),
    )
    if draw(st.booleans()):
        longest = max(worst_s(plan, one) for one in targets) + START_S + MARGIN_S
        plan = replace(plan, slot_s=longest * draw(st.floats(1, 4)))
    errors = [draw(st.floats(-1, 1)) for _ in names]
    starts = [draw(st.floats(0, 1_000)) for _ in names]
    return share(plan, targets, names, names[:1]), errors, starts, draw(st.integers(0, 1_000))


def check_plan(made: tuple[SharedPlan, list[float], list[float], int]) -> None:
    plan, errors, starts, seed = made
    group_of = {one.key: number for number, group in enumerate(groups(plan.targets)) for one in group}
    seen: dict[int, list[tuple[float, float, str]]] = {}
    for name, error_s, start_s in zip(plan.vantage_points, errors, starts, strict=True):
        found = intervals(plan, name, error_s, 1e6 + start_s, seed)
        assert {one.key for one, _, _ in found} == {one.key for one in plan.targets}, "every target is reached"
        for one, began, ended in found:
            seen.setdefault(group_of[one.key], []).append((began, ended, name))
    for visits in seen.values():
        visits.sort()
        for (_, ended, name), (began, _, other) in itertools.pairwise(visits):
            assert name == other or began > ended + 2, (name, ended, other, began)


@pytest.mark.thorough
def test_no_two_runs_on_one_target_overlap(repeats: Repeats) -> None:
    check = given(plans())(settings(max_examples=repeats(quick=200, soak=10_000), deadline=None)(check_plan))
    check()


def test_worst_and_expected_times() -> None:
    plan = campaign(budget="auto")
    assert worst_s(plan, target("a.com")) == 2 * plan.budget_for(target("a.com")) + 15
    assert expected_s(plan, target("a.com")) < worst_s(plan, target("a.com"))
    published = campaign(
        order="published", published_quirks=["pauses"], isolation="host", configurations=FILE["configurations"]
    )
    assert worst_s(published, target("a.com")) > worst_s(campaign(), target("a.com"))
