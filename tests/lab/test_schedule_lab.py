"""Gates between the plan and real downloads."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from core.domain import Download, Failure
from downloader.campaign.plan import PlannedRun
from downloader.execution.engine import Worker
from downloader.schedule.schedule import Cut, Gate
from tests.journaled import recorded, superseded
from tests.lab.test_download_run import World, all_clients, campaign, run, world

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("root")]

__all__ = ["all_clients", "world"]


class Cuts(Gate):
    """Cuts the first attempt once two of its downloads are staged."""

    def __init__(self, cut: Cut, out: Path) -> None:
        self.cut, self._out, self._attempt = cut, out, 0
        self.attempts: list[tuple[int, int]] = []

    def began(self, run: PlannedRun, attempt: int, now: float) -> None:
        self._attempt = attempt

    def cuts(self, run: PlannedRun, now: float) -> Cut | None:
        with closing(sqlite3.connect(self._out / "vantage" / "A" / "journal.sqlite")) as journal:
            [staged] = journal.execute("SELECT COUNT(*) FROM staged").fetchone()
        return self.cut if self._attempt == 1 and staged >= 2 else None

    def ended(self, run: PlannedRun, attempt: int, downloads: Sequence[Download], now: float) -> None:
        self.attempts.append((attempt, len(downloads)))


@pytest.fixture
def gated(monkeypatch: pytest.MonkeyPatch) -> Callable[[Gate], None]:
    def put(gate: Gate) -> None:
        def gates(*_: Any, **__: Any) -> list[Gate]:
            return [gate]

        monkeypatch.setattr(Worker, "_gates", gates)

    return put


def test_a_run_that_is_cut_with_a_cause_is_recorded_and_sends_nothing_more(
    world: World, tmp_path: Path, gated: Callable[[Gate], None]
) -> None:
    gate = Cuts(Cut("asked to end", Failure.ADDRESS_REFUSED), tmp_path)
    gated(gate)
    summary = run(world, campaign(), world.targets("a.example"), tmp_path)
    assert summary.complete and gate.attempts == [(1, 6)]
    rows = recorded(tmp_path)
    assert [row.outcome for row in rows] == ["ok"] * 2 + ["failed"] * 4
    assert {(row.failure, row.failure_detail, row.local_port) for row in rows[2:]} == {
        (Failure.ADDRESS_REFUSED, "asked to end", None)
    }


def test_a_run_that_is_cut_without_a_cause_is_repeated(
    world: World, tmp_path: Path, gated: Callable[[Gate], None]
) -> None:
    gate = Cuts(Cut("the slot ends"), tmp_path)
    gated(gate)
    summary = run(world, campaign(), world.targets("a.example"), tmp_path)
    assert summary.complete and summary.interrupted_runs == 1 and gate.attempts == [(1, 2), (2, 6)]
    assert [(row.attempts, row.outcome) for row in recorded(tmp_path)] == [(2, "ok")] * 6
    assert [(row.attempt, row.reason) for row in superseded(tmp_path)] == [(1, "interrupted")] * 2
    assert len(list(tmp_path.glob("**/*.pcap.zst"))) == 1
