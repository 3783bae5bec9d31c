"""When a vantage point stops early: the field, the option, and the steps that follow from recorded downloads."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
import statistics
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from core.domain import Download, Target
from core.errors import UsageError
from core.sequential import Quantity, SpeedUps
from downloader.campaign.campaign import Campaign, from_document
from downloader.campaign.limits import Stopping, parse_rule
from downloader.campaign.plan import make_plan, plan_hash
from downloader.schedule.schedule import Schedule, Turns
from downloader.schedule.slots import SlotGate, slots_for
from tests.unit.analysis_factory import make_download

PLAIN: dict[str, Any] = {
    "name": "c",
    "lab": "anrw",
    "targets": "lab",
    "configurations": [{"name": n, "client": "requests"} for n in ("BL", "BL2")]
    + [{"name": "WS", "client": "requests", "levels": {"window_scaling": 14}}],
}


def stopping_of(plan: Campaign, recorded: Iterable[tuple[int, Sequence[Download]]]) -> Stopping:
    return Stopping(plan.stop_when, plan.comparisons, recorded)


def campaign(**changes: Any) -> Campaign:
    return from_document({**PLAIN, **changes}, Path("c.toml"))


def run(number: int, *, ws: float = 0.5, iteration: int = 1, **changes: Any) -> list[Download]:
    common = {"domain": f"d{number}.example", "iteration": iteration, "treatment_ok": None} | changes
    times = {"BL": 1.0, "BL2": 1.0, "WS": ws}
    return [make_download(configuration=n, last_byte_s=t, **common) for n, t in times.items()]


def test_the_field_and_the_option() -> None:
    assert campaign().stop_when == {}
    assert campaign(until_ci=0.05).stop_when == {Quantity.MEDIAN: 0.05}
    both = {Quantity.MEDIAN: 0.5, Quantity.SHARE: 0.2}
    assert campaign(until_ci={"median": 0.5, "share": 0.2}).stop_when == both
    comparisons = campaign().comparisons
    assert parse_rule(["median=0.5", "share=0.2"], comparisons) == both
    assert parse_rule(["never"], comparisons) == {}


@pytest.mark.parametrize(
    "value", [0, -1, 1, 5, True, "wide", {"median": 0}, {"share": 1.0}, {"mean": 0.1}, [0.05], float("nan")]
)
def test_a_wrong_width_is_one_sentence(value: object) -> None:
    with pytest.raises(UsageError, match=r"^c.toml: field until_ci: "):
        campaign(until_ci=value)


@pytest.mark.parametrize(
    "entry", ["0.05", "median", "median=", "median=wide", "mean=0.1", "share=2", "median=-1", "median=5", "median=nan"]
)
def test_a_wrong_option_is_one_sentence(entry: str) -> None:
    with pytest.raises(UsageError, match=r"^--stop-when: "):
        parse_rule([entry], campaign().comparisons)


def test_a_rule_needs_an_effect() -> None:
    with pytest.raises(UsageError, match="no comparison with the role effect"):
        campaign(until_ci=0.05, comparisons=[])


def test_the_rule_is_not_in_the_plan_s_hash() -> None:
    """The intervals hold whenever one stops: the same folder may go on with a stricter rule, or without one."""
    assert plan_hash(campaign(until_ci=0.05), [], ["A"]) == plan_hash(campaign(), [], ["A"])


def test_it_stops_as_soon_as_every_effect_is_narrow_enough() -> None:
    stopping = stopping_of(campaign(until_ci=0.05), [])
    steps = 0
    while not stopping.reached:
        stopping.record(steps, run(steps))
        steps += 1
    assert steps == 16
    (told,) = stopping.state()["comparisons"]
    low, high = told.pop("share")
    assert 0.5 < low < 1 == high
    assert told == {"name": "WS vs BL", "domains": steps, "reached": True, "median": (2.0, 2.0)}
    noise = stopping_of(campaign(until_ci=0.05), [])
    for number in range(200):
        noise.record(number, run(number, ws=0.5 + (number % 10) / 10))
    assert not noise.reached
    assert not noise.state()["comparisons"][0]["reached"]


def test_what_is_resumed_is_what_was_left() -> None:
    """Wherever it was left, and in whichever order slots and budgets let runs start."""
    runs = {number: run(number, ws=0.5 + number / 100) for number in range(40)}
    order = list(runs)
    random.Random(1).shuffle(order)
    left = stopping_of(campaign(until_ci=0.05), [])
    for done, number in enumerate(order, 1):
        left.record(number, runs[number])
        resumed = stopping_of(campaign(until_ci=0.05), [(n, runs[n]) for n in sorted(order[:done])])
        assert resumed.state() == left.state()
        first = next(n for n in itertools.count() if n not in order[:done])
        assert left.state()["counted_runs"] == left.state()["comparisons"][0]["domains"] == first
    assert first == 40


def test_a_run_counts_once_all_before_it_are_recorded() -> None:
    """Also one that stays void, and the first one of iterations that were added."""
    void, late = run(1, void_reason="emulator_late"), run(0, iteration=2)
    stopping = stopping_of(campaign(until_ci=0.05), [(0, run(0)), (2, run(2)), (3, run(3)), (4, late)])
    assert counts(stopping) == (1, 1)
    stopping.record(1, void)
    assert counts(stopping) == (5, 3)
    stopping.record(5, run(1, iteration=2))
    assert counts(stopping) == (6, 4)


def counts(stopping: Stopping) -> tuple[int, int]:
    """Runs that count, and steps."""
    state = stopping.state()
    return state["counted_runs"], state["comparisons"][0]["domains"]


SPEED = {True: 1.2, False: 1.0}
"""Whether a target is at the one server of many -> its speed-up, typically."""


def early_stop(targets: Sequence[Target], seed: int) -> tuple[bool, bool]:
    """Whether a vantage point of two, with slots, stopped early, and whether its interval has the list's median."""
    plan = campaign(until_ci=0.05, slot_s=1800, seed=seed, vantage_points=["MUC", "SFO"])
    chance, slots = random.Random(seed), slots_for(plan, targets, 2)
    assert slots is not None
    spread = {t.key: math.exp(chance.gauss(0.0, 0.08)) * SPEED[t.server_ip == ONE_SERVER] for t in targets}
    now = [1800.0 * chance.randrange(1000) + 1.0]

    def sleep(_: float) -> None:
        now[0] += 60.0

    runs = make_plan(plan, targets, vantage="MUC", index=seed % 2, vantage_points=2)
    schedule = Schedule(
        runs,
        turns=Turns(),
        gates=[SlotGate(plan, slots, seed % 2)],
        stop=threading.Event(),
        tell=lambda *_: None,
        clock=lambda: now[0],
        sleep=sleep,
    )
    stopping = stopping_of(plan, [])
    while not stopping.reached and (one := schedule.next()) is not None:
        now[0] += 5.0
        times = {"BL": 1.0, "WS": 1.0 / spread[one.target.key]}
        common = {"domain": one.target.domain, "treatment_ok": None}
        stopping.record(one.number, [make_download(configuration=n, last_byte_s=t, **common) for n, t in times.items()])
        schedule.give_back(one, again=False)
    low, high = stopping.state()["comparisons"][0]["median"]
    return schedule.left, low <= statistics.median(spread.values()) <= high


ONE_SERVER = "198.51.100.1"


def test_slots_leave_the_intervals_valid() -> None:
    """A slot has one class of targets, and all of one server are in one class: what is measured first is no sample of
    the list. In the order of time most intervals missed the list's median."""
    targets = [
        Target(
            domain=f"d{number}.example",
            url=f"https://d{number}.example/f",
            provider="cdn",
            size_bytes=2_000_000,
            server_ip=ONE_SERVER if number < 300 else f"10.0.{number // 250}.{number % 250}",
        )
        for number in range(1000)
    ]
    found = [early_stop(targets, seed) for seed in range(12)]
    assert all(early for early, _ in found)
    assert sum(not holds for _, holds in found) <= 2, "5 % and three standard deviations"


def steps(*runs: list[Download]) -> int:
    found: int = stopping_of(campaign(until_ci=0.05), enumerate(runs)).state()["comparisons"][0]["domains"]
    return found


def test_only_the_first_run_of_a_domain_with_both_times_is_a_step() -> None:
    failed = run(1, outcome="failed", failure="tls_error")
    void = run(1, void_reason="emulator_late")
    assert steps(failed) == steps(void) == 0
    assert steps(failed, run(1, iteration=2), run(1, iteration=3)) == 1
    late = run(2, outcome="censored", failure="time_budget", budget_s=10.0)
    assert steps(run(1), late) == 2


def test_a_byte_budget_without_a_time_is_a_bound_as_in_table_2() -> None:
    """No client of ours says so, and one that somebody adds may."""
    cut = run(1, outcome="censored", failure="byte_budget", budget_s=10.0)
    unknown = [dataclasses.replace(download, last_byte_s=None) for download in cut]
    for first, second, third in itertools.product(*zip(cut, unknown, run(1), strict=True)):
        stopping = stopping_of(campaign(until_ci=0.05), enumerate([[first, second, third]]))
        assert [one["domains"] for one in stopping.state()["comparisons"]] == [1]


def test_without_a_rule_nothing_is_read() -> None:
    def never() -> Any:
        raise AssertionError
        yield

    stopping = stopping_of(campaign(), never())
    stopping.record(1, run(1))
    assert not stopping.reached and stopping.state()["rule"] == {}


def test_a_step_costs_the_same_after_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a run costs must not grow with the plan: work is counted, not time."""
    from core import sequential

    bets = 0
    real = sequential.log_capital

    def counted(successes: int, steps: int, mean: float, prior: float) -> float:
        nonlocal bets
        bets += 1
        return real(successes, steps, mean, prior)

    monkeypatch.setattr(sequential, "log_capital", counted)
    taken = []
    for count in (100, 10_000):
        speed_ups = SpeedUps()
        for number in range(count):
            speed_ups.add(str(number), (1.0, 1.0), (1.0 + number % 2, 1.0 + number % 2))
        bets = 0
        for quantity in Quantity:
            speed_ups.interval(quantity)
        taken.append(bets)
    assert 0 < taken[1] <= taken[0] + 10  # a bisection more
