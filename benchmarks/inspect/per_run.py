"""What a measurement run costs besides its downloads, in a short plan and in a long one.

    python benchmarks/inspect/per_run.py --most 1000000

The real journal and the real choice of the next run, with five downloads each that take no time; then the same with all
gates and a small capture, after few and after many recorded runs. Aim: the same.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import sqlite3
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from core.files.journal import CaptureFindings
from downloader.campaign.campaign import from_document
from downloader.campaign.plan import PlannedRun
from downloader.control.stop_pause import StopGate
from downloader.execution.journal import Ended, Journal
from downloader.limits.budget import BudgetGate, reserved
from downloader.limits.captures import CaptureStore
from downloader.limits.disk import ROW_BYTES, TABLES_BYTES, DiskGate, FolderDisk, needed_bytes, used_bytes
from downloader.schedule.schedule import Gate, Schedule, Turns
from tests.inspected import plan
from tests.unit.test_downloader_journal import download

RUNS = 300

CAPTURE_BYTES = 50_000

CAMPAIGN: dict[str, Any] = {
    "name": "c",
    "targets": "targets.csv",
    "contact": "net@uni.edu",
    "vantage_points": ["MUC"],
    "configurations": [{"name": name, "client": "requests"} for name in ("BL", "BL2", "WS", "quiche")],
    "budgets": {"domain": "1 TB", "as": "10 TB", "campaign": "100 TB"},
    "max_bytes": 1_000_000,
    "disk": {"limit": "1 TB", "reserve": 0},
}


def cost_ms(count: int) -> float:
    """Median milliseconds per run, of the first runs of a plan."""
    with tempfile.TemporaryDirectory(prefix="upshift-per-run-") as name:
        runs: list[PlannedRun] = plan(count)
        journal = Journal.open(Path(name), runs, plan_hash="h")
        times = []
        schedule = Schedule(runs, turns=Turns(), gates=(), stop=threading.Event(), tell=lambda *_: None)
        began = time.perf_counter()
        for run in itertools.islice(iter(schedule.next, None), RUNS):
            attempt = journal.begin(run.number)
            rows = [download(run, position, attempt=attempt) for position in range(len(run.configurations))]
            for row in rows:
                journal.stage(run.number, attempt, row)
            journal.voids(run.number)
            journal.accept(run.number, rows)
            schedule.give_back(run, again=False)
            now = time.perf_counter()
            times.append(now - began)
            began = now
        journal.close()
        return 1e3 * statistics.median(times)


def grown_ms(recorded: int, *, near_limit: bool) -> float:
    """Mean milliseconds of CPU time per run after that many recorded ones of today, with all gates and a capture each.

    Args:
        near_limit: the folder is at its limit, so each run drops an earlier capture.
    """
    with tempfile.TemporaryDirectory(prefix="upshift-per-run-") as name:
        out, runs = Path(name), plan(recorded + RUNS)
        campaign = from_document(CAMPAIGN, out / "c.toml")
        journal = Journal.open(out / "vantage" / "MUC", runs, plan_hash="h")
        captures = out / "vantage" / "MUC" / "captures"
        captures.mkdir()
        fill(journal, captures, recorded, time.time())
        if near_limit:
            tables = TABLES_BYTES + ROW_BYTES * (recorded + RUNS) * len(runs[0].configurations)
            limit = round(1.05 * (used_bytes(out) + needed_bytes(campaign, runs[-1].target) + tables))
            campaign = replace(campaign, disk=replace(campaign.disk, limit=limit, reserve=0))
        store = CaptureStore(campaign, "MUC", out, inspect=lambda *_: CaptureFindings(text="[]", clean=True))
        gates: list[Gate] = [
            StopGate(campaign, out, until=None),
            DiskGate(campaign, "MUC", FolderDisk(out, campaign.disk), runs, store, journal.captures, recorded),
            BudgetGate(campaign, journal.spent, vantage_points=1),
        ]
        waiting = [runs[number] for number in journal.open_runs()]
        schedule = Schedule(waiting, turns=Turns(), gates=gates, stop=threading.Event(), tell=lambda *_: None)
        began = time.process_time()
        for run in itertools.islice(iter(schedule.next, None), RUNS):
            attempt = journal.begin(run.number, reserved(campaign, run.target, time.time()))
            plain = captures / f"1-{run.number}.pcap"
            plain.write_bytes(bytes(CAPTURE_BYTES))
            rows = [
                replace(download(run, position, attempt=attempt), capture=plain.relative_to(out).as_posix())
                for position in range(len(run.configurations))
            ]
            schedule.ended(run, attempt, rows)
            rows, capture = store.settle(run.number, rows, valid=True)
            journal.accept(run.number, rows, ended=Ended(ip_bytes=1000, at=time.time()), capture=capture)
            store.tidy(capture)
            schedule.give_back(run, again=False)
        took = time.process_time() - began
        journal.close()
        return 1e3 * took / RUNS


def fill(journal: Journal, captures: Path, recorded: int, now: float) -> None:
    """Records runs, with a capture and an account each."""
    with contextlib.closing(sqlite3.connect(journal.path)) as db, db:
        numbers = [(number,) for number in range(recorded)]
        db.executemany("UPDATE runs SET state = 'done', attempts = 1 WHERE number = ?", numbers)
        db.execute(
            "INSERT INTO spent SELECT number, 1, ?, ?, 'AS64500', '198.18.0.1', 1000, 1 FROM runs WHERE state = 'done'",
            (now, now),
        )
        db.execute("INSERT INTO downloads SELECT id, 'ok', '{}' FROM plan WHERE run < ?", (recorded,))
        db.execute(
            "INSERT INTO captures SELECT 'vantage/MUC/captures/0-' || number || '.pcap.zst', 4096, 1, 0, x'00'"
            " FROM runs WHERE state = 'done' ORDER BY number"
        )
    for (number,) in numbers:
        (captures / f"0-{number}.pcap.zst").write_bytes(b"x")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=int, default=1_000_000, help="measurement runs of the long plan")
    parser.add_argument("--recorded", type=int, default=100_000, help="measurement runs recorded in the long journal")
    options = parser.parse_args()
    short, long = cost_ms(1_000), cost_ms(options.most)
    print(
        f"per run: {short:.2f} ms in a plan of 1000, {long:.2f} ms in one of {options.most}: {long / short:.2f} times"
    )
    for near_limit in (False, True):
        short, long = (grown_ms(count, near_limit=near_limit) for count in (1_000, options.recorded))
        print(
            f"with gates and captures{', at the limit' if near_limit else ''}: {short:.2f} ms after 1000 recorded, "
            f"{long:.2f} ms after {options.recorded}: {long / short:.2f} times"
        )


if __name__ == "__main__":
    main()
