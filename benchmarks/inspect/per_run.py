"""What a measurement run costs besides its downloads, in a short plan and in a long one.

    python benchmarks/inspect/per_run.py --most 1000000

The real journal and the real choice of the next run, with five downloads each that take no time. Aim: the same.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from downloader.campaign.plan import PlannedRun
from downloader.execution.journal import Journal
from downloader.schedule.schedule import Schedule
from downloader.schedule.turns import Turns
from tests.inspected import plan
from tests.unit.test_downloader_journal import download

RUNS = 300


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=int, default=1_000_000, help="measurement runs of the long plan")
    options = parser.parse_args()
    short, long = cost_ms(1_000), cost_ms(options.most)
    print(
        f"per run: {short:.2f} ms in a plan of 1000, {long:.2f} ms in one of {options.most}: {long / short:.2f} times"
    )


if __name__ == "__main__":
    main()
