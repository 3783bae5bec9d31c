"""The choice of the next run: gates, targets in use, and what it costs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from core.domain import Target
from downloader.campaign.plan import PlannedRun
from downloader.schedule.schedule import Cut, Gate, Schedule, State, Turns, Wait

Told = list[tuple[State, str, float | None]]


class World:
    """A clock that moves only while somebody waits."""

    def __init__(self) -> None:
        self.now, self.told, self.stop, self.waits = 1_000.0, Told(), threading.Event(), 0

    def sleep(self, seconds: float) -> None:
        self.waits += 1
        self.now += max(seconds, 0.001)

    def schedule(self, names: Sequence[str], *gates: Gate, turns: Turns | None = None) -> Schedule:
        return Schedule(
            [run(number, name) for number, name in enumerate(names)],
            turns=turns or Turns(),
            gates=gates,
            stop=self.stop,
            tell=lambda *told: self.told.append(told),
            clock=lambda: self.now,
            sleep=self.sleep,
        )


def run(number: int, name: str) -> PlannedRun:
    target = Target(domain=name, url=f"https://{name}/", provider="cdn")
    return PlannedRun(number=number, iteration=1, target=target, configurations=())


def all_of(schedule: Schedule, then: Callable[[PlannedRun], object] = lambda run: None) -> list[int]:
    """The numbers of all runs in the order in which they start; each ends at once."""
    found = []
    while (run := schedule.next()) is not None:
        found.append(run.number)
        then(run)
        schedule.give_back(run, again=False)
    return found


class Rests(Gate):
    """Targets that rest until a time."""

    def __init__(self, until: dict[str, float]) -> None:
        self.until, self.asked = until, 0

    def admits(self, run: PlannedRun, now: float) -> Wait | None:
        self.asked += 1
        until = self.until.get(run.target.domain, 0.0)
        return Wait(State.WAITING_FOR_BUDGET, f"{run.target.domain} rests", until) if now < until else None


class Holds(Gate):
    def __init__(self, wait: Wait, until: float) -> None:
        self.wait, self.until = wait, until

    def holds(self, now: float) -> Wait | None:
        return self.wait if now < self.until else None


def test_the_plan_s_order_without_gates() -> None:
    assert all_of(World().schedule("abcabc")) == [0, 1, 2, 3, 4, 5]


def test_runs_whose_target_is_in_use_wait() -> None:
    turns = Turns()
    other, mine = World().schedule("bc", turns=turns), World().schedule("abbd", turns=turns)
    first = other.next()
    assert first is not None and first.number == 0
    run = mine.next()
    assert run is not None and run.number == 0
    mine.give_back(run, again=False)
    run = mine.next()
    assert run is not None and run.number == 3, "b is in use"
    mine.give_back(run, again=False)
    threading.Timer(0.05, other.give_back, (first,), {"again": False}).start()
    assert all_of(mine) == [1, 2]


def test_a_run_that_is_not_recorded_comes_again_before_the_next_one_of_its_target() -> None:
    schedule = World().schedule("aab")
    run = schedule.next()
    assert run is not None
    schedule.give_back(run, again=True)
    assert all_of(schedule) == [0, 1, 2]


def test_a_refused_target_lets_the_next_one_go_first_and_is_asked_for_once_until_its_time() -> None:
    world, gate = World(), Rests({"a": 1_090.0})
    schedule = world.schedule("abab", gate)
    assert all_of(schedule) == [1, 3, 0, 2]
    assert gate.asked == 5 and 1_090 <= world.now < 1_092
    waiting = [told for told in world.told if told[0] is not State.RUNNING]
    assert set(waiting) == {(State.WAITING_FOR_BUDGET, "a rests", 1_090.0)}
    assert len(waiting) == world.waits >= 90, "looks about every second, so that it can be stopped or paused"


def test_a_target_does_not_rest_until_a_time_of_a_clock_that_was_set_back() -> None:
    """As of a host that starts with its clock years ahead, until a time service sets it right."""
    world, gate = World(), Rests({"a": 9_000.0})
    schedule = world.schedule("ab", gate)
    first = schedule.next()
    assert first is not None and first.number == 1
    schedule.give_back(first, again=False)
    gate.until, world.now = {"a": 505.0}, 500.0
    second = schedule.next()
    assert second is not None and second.number == 0 and 505 <= world.now < 507
    assert gate.asked == 4, "it is set aside again, until the time of the true clock"


def test_many_refused_targets_cost_one_question_each() -> None:
    names = [str(number) for number in range(20_000)]
    gate = Rests(dict.fromkeys(names[:-100], 5_000.0))
    schedule = World().schedule(names, gate)
    runs = [schedule.next() for _ in range(100)]
    assert [run.number for run in runs if run is not None] == list(range(19_900, 20_000))
    assert gate.asked == 20_000


def test_all_runs_wait_while_a_gate_holds() -> None:
    world = World()
    gate = Holds(Wait(State.PAUSED, "upshift pause"), 1_003.0)
    assert all_of(world.schedule("ab", gate)) == [0, 1]
    assert world.told[0] == (State.PAUSED, "upshift pause", None) and world.now >= 1_003


def test_a_gate_that_stops_ends_the_schedule() -> None:
    world = World()
    schedule = world.schedule("ab", Holds(Wait(State.STOPPING, "upshift stop"), 2_000.0))
    assert schedule.next() is None and schedule.left and world.told == [(State.STOPPING, "upshift stop", None)]


def test_it_ends_when_stopped_while_it_waits() -> None:
    world = World()
    schedule = world.schedule("a", Rests({"a": 1e9}))
    world.sleep = lambda seconds: world.stop.set()  # type: ignore[method-assign]
    schedule._sleep = world.sleep
    assert schedule.next() is None


def test_gates_are_told_of_attempts_and_may_cut_them() -> None:
    seen: list[tuple[str, int, float]] = []

    class Account(Gate):
        def began(self, run: PlannedRun, attempt: int, now: float) -> None:
            seen.append(("began", attempt, now))

        def ended(self, run: PlannedRun, attempt: int, downloads: Sequence[object], now: float) -> None:
            seen.append(("ended", attempt, now))

        def cuts(self, run: PlannedRun, now: float) -> Cut | None:
            return Cut("opted out") if now > 1_000 else None

    world = World()
    schedule = world.schedule("a", Gate(), Account())
    one = schedule.next()
    assert one is not None
    schedule.began(one, 1)
    assert schedule.cut(one) is None
    world.now = 1_001.0
    assert schedule.cut(one) == Cut("opted out")
    schedule.ended(one, 1, [])
    assert seen == [("began", 1, 1_000.0), ("ended", 1, 1_001.0)]


def test_who_may_start_nothing_before_the_end_ends() -> None:
    """Where all other targets rest for longer; where one may start before, it is waited for."""

    class Ends(Gate):
        def admits(self, run: PlannedRun, now: float) -> Wait | None:
            return Wait(State.STOPPING, "nothing fits", 1_500.0) if run.target.domain == "long" else None

    world = World()
    assert all_of(world.schedule(["long", "rests"], Rests({"rests": 2_000.0}), Ends())) == []
    assert (world.now, world.told[-1][0]) == (1_000.0, State.STOPPING)
    assert all_of(world.schedule(["long", "rests"], Rests({"rests": 1_200.0}), Ends())) == [1]
