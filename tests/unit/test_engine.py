"""The work of a vantage point, with attempts that contact nobody: what is told and counted when a disk is full."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from core.domain import Disturbance, Download, Target
from downloader.campaign.limits import Disk
from downloader.campaign.plan import PlannedRun
from downloader.control.reporter import PATIENCE_S, Reporter, VantageReport
from downloader.execution import engine
from downloader.execution.engine import Session, Worker
from downloader.execution.journal import Ended, Journal
from downloader.limits.captures import CaptureStore, CaptureTable
from downloader.limits.disk import FolderDisk
from downloader.schedule.schedule import Turns
from downloader.schedule.slots import share
from tests.campaigns import Silent
from tests.unit.test_budget import campaign
from tests.unit.test_downloader_journal import LATE, download

TARGETS = [Target(domain=f"d{n}.example", url=f"https://d{n}.example/f", size_bytes=1_000_000) for n in range(3)]


class Attempt:
    """One that sends nothing."""

    disturbed: ClassVar[Mapping[tuple[int, int], Disturbance]] = {}
    """Those that are void, by number of run and attempt."""

    def __init__(self, _vantage: object, run: PlannedRun, attempt: int, *_: object) -> None:
        self._run, self._attempt = run, attempt
        self.downloads: list[Download] = []

    def make(self) -> tuple[list[Download], Disturbance | None]:
        places = range(len(self._run.configurations))
        made = [download(self._run, place, attempt=self._attempt) for place in places]
        return made, self.disturbed.get((self._run.number, self._attempt))

    def ended(self) -> Ended:
        return Ended(ip_bytes=5, at=0.0)

    def close(self) -> None:
        pass


class Bench:
    """A worker with three measurement runs, on a disk that is short all the time."""

    def __init__(self, folder: Path, report: VantageReport, journal: Journal, worker: Worker) -> None:
        self.folder, self.report, self.journal, self.worker = folder, report, journal, worker


@pytest.fixture
def clock() -> list[float]:
    return [0.0]


@pytest.fixture
def bench(tmp_path: Path, clock: list[float], monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(engine, "Attempt", Attempt)
    monkeypatch.setattr(engine, "Caller", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(FolderDisk, "is_short", True)
    place: Any = SimpleNamespace(
        name="A",
        ca_file=tmp_path,
        check=lambda: None,
        limit_settings=lambda _: None,
        measuring=contextlib.nullcontext,
    )
    plan = share(campaign(), TARGETS, ["A"], ["A"])
    runs = plan.runs("A")
    with (
        contextlib.closing(Journal.open(tmp_path / "vantage" / "A", runs, plan_hash="h")) as journal,
        Reporter(tmp_path, campaign="c", monotonic=lambda: clock[0]) as reporter,
    ):
        reporter.begin(plan_sha256="h", versions={}, counts={"A": journal.counts()})
        session = Session(plan=plan, out=tmp_path, progress=Silent(), reporter=reporter)
        disk = FolderDisk(tmp_path, Disk(reserve=0))
        worker = Worker(session, place, journal, runs, turns=Turns(), disk=disk)
        yield Bench(tmp_path, reporter.vantage_point("A"), journal, worker)


def fail_once(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, error: Exception) -> None:
    """The method raises the error when it is called first."""
    errors, real = [error], getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        if errors:
            raise errors.pop()
        return real(*args, **kwargs)

    monkeypatch.setattr(owner, name, call)


@pytest.mark.parametrize("disturbed", [{}, {(0, 1): LATE}], ids=["recorded", "void"])
def test_a_run_that_the_journal_has_is_told_though_what_follows_fails(
    bench: Bench, disturbed: dict[tuple[int, int], Disturbance], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Attempt, "disturbed", disturbed)
    fail_once(monkeypatch, CaptureStore, "tidy", OSError("no space left"))
    bench.worker.work()
    counts = bench.journal.counts()
    assert (counts.recorded, counts.void_runs) == (counts.planned, len(disturbed))
    assert bench.report.counts == counts


def test_an_attempt_whose_end_could_not_be_journalled_is_settled_once_there_is_room(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_once(monkeypatch, Journal, "accept", sqlite3.OperationalError("database or disk is full"))
    bench.worker.work()
    assert bench.journal.counts().recorded == bench.journal.counts().planned
    assert [(entry.attempt, entry.ip_bytes, entry.settled) for entry in bench.journal.spent.entries()] == [
        (1, 0, True),  # it had sent nothing
        (2, 5, True),
        (1, 5, True),
        (1, 5, True),
    ]


def test_a_look_through_many_captures_gives_signs_of_life(
    bench: Bench, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    captures = bench.folder / "vantage" / "A" / "captures"
    captures.mkdir()
    for number in range(4):
        (captures / f"{number}.pcap.zst").touch()
    lives: list[bool] = []

    def slow(_: CaptureTable, __: str) -> bool:
        clock[0] += PATIENCE_S / 2
        lives.append(bench.report.lives)
        return False

    monkeypatch.setattr(CaptureTable, "is_dropped", slow)
    bench.worker.work()
    assert lives == [True] * 4
