"""What a run costs besides its downloads is the same however long the plan is: work is counted, not time."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import pytest

from downloader.campaign.plan import PlannedRun, assign
from downloader.control.stop_pause import DAY_S
from downloader.execution.journal import Journal
from downloader.limits.budget import Reserved
from downloader.limits.captures import Settled
from downloader.schedule.schedule import Schedule, Turns
from tests.inspected import plan
from tests.unit import test_downloader_journal as journals

NOON = 20_000.5 * DAY_S


class Watched:
    """A target that counts how often somebody looks at it."""

    looks = 0

    def __init__(self, domain: str) -> None:
        self._domain = domain

    @property
    def domain(self) -> str:
        Watched.looks += 1
        return self._domain

    @property
    def url(self) -> str:
        return f"https://{self._domain}/"

    @property
    def key(self) -> tuple[str, str]:
        return self.domain, self.url


def watched(names: list[str]) -> list[PlannedRun]:
    targets: list[Any] = [Watched(name) for name in names]
    return [
        PlannedRun(number=number, iteration=1, target=target, configurations=())
        for number, target in enumerate(targets)
    ]


def schedule_of(runs: list[PlannedRun]) -> Schedule:
    return Schedule(runs, turns=Turns(), gates=(), stop=threading.Event(), tell=lambda *_: None)


@pytest.mark.parametrize("count", [10, 1_000, pytest.param(100_000, marks=pytest.mark.thorough)])
def test_the_next_run_is_found_at_once(count: int) -> None:
    runs = watched([str(number) for number in range(count)])
    Watched.looks = 0
    schedule, found = schedule_of(runs), []
    while (run := schedule.next()) is not None:
        found.append(run)
        schedule.give_back(run, again=False)
    assert found == runs
    # To find its target's queue at the start and at the end; its turn, taken and given back; and what is told.
    assert Watched.looks == 5 * count


class Counted(random.Random):
    """Counts its draws."""

    draws = 0

    def getrandbits(self, k: int, /) -> int:
        self.draws += 1
        return super().getrandbits(k)


def test_a_run_s_sequence_costs_the_same_in_a_long_plan() -> None:
    per_run = []
    for count in (800, 80_000):
        generator = Counted(1)
        assign([f"c{number}" for number in range(8)], [("group", run // 2) for run in range(count)], generator)
        per_run.append(generator.draws / count)
    assert per_run[0] > 1 and per_run[1] < 1.05 * per_run[0]


class Steps:
    """Counts the virtual machine instructions of SQLite (https://sqlite.org/opcode.html) for a journal."""

    def __init__(self, journal: Journal) -> None:
        self._taken = 0
        journal._db.set_progress_handler(self._tick, 1)

    def _tick(self) -> int:
        self._taken += 1
        return 0

    def restart(self) -> int:
        """What was counted since the last time."""
        taken, self._taken = self._taken, 0
        return taken


def steps(folder: Path, count: int) -> dict[str, int]:
    """Instructions of SQLite for one run in the middle of a plan."""
    journal = Journal.open(folder, plan(count), plan_hash="h")
    runs = plan(count)
    counter = Steps(journal)
    found = {}
    for name in ("void", "accept"):
        counter.restart()
        run = runs[count // 2]
        attempt = journal.begin(run.number)
        if attempt > 1:
            journal.void_attempts(run.number)
        rows = [journals.download(run, position, attempt=attempt) for position in range(len(run.configurations))]
        for row in rows:
            journal.stage(run.number, attempt, row)
        journal.voids(run.number)
        if name == "void":
            journal.void(run.number, journals.LATE, rows)
        else:
            journal.accept(run.number, rows)
        found[name] = counter.restart()
    journal.close()
    return found


def test_the_journal_looks_at_one_run_only(tmp_path: Path) -> None:
    small, large = steps(tmp_path / "small", 10), steps(tmp_path / "large", 3_000)
    assert min(small.values()) > 100, "nothing was counted"
    assert large == small


def account_steps(folder: Path, count: int) -> tuple[int, int]:
    """Instructions of SQLite for today's account, and for the oldest capture that may go."""
    runs = plan(count + 1)
    journal = Journal.open(folder, runs, plan_hash="h")
    entry = Reserved(now=NOON, latest_end=NOON + 9, network="AS64500", worst_bytes=7)
    for run in runs[:-1]:
        journal.spent.reserve(run.number, 1, entry)
        journal.spent.settle(run.number, 1, 5, ended=NOON + 1)
        capture = Settled(path=f"{run.number:05d}", size_bytes=1, clean=True, dropped=False, findings=None)
        journal.captures.add(capture)
    for number in range(count - 200):
        journal.captures.drop(f"{number:05d}")
    spent = journal.spent
    spent.totals(NOON)
    spent.reserve(count, 1, entry)
    counter = Steps(journal)
    found = spent.totals(NOON)
    account = counter.restart()
    oldest = next(journal.captures.droppable())
    capture = counter.restart()
    assert found.campaign == found.networks["AS64500"] == 5 * count + 7
    assert found.domains[runs[-1].target.domain] == 7
    assert oldest == (f"{max(0, count - 200):05d}", 1)
    journal.close()
    return account, capture


@pytest.mark.thorough
def test_account_and_captures_cost_the_same_late_in_the_day(tmp_path: Path) -> None:
    small, large = account_steps(tmp_path / "small", 300), account_steps(tmp_path / "large", 3_000)
    assert min(small) > 30, "nothing was counted"
    assert large == small
