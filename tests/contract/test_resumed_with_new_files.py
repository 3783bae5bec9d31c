"""A running campaign's checkout gets a factor, a KPI, a client, a server kind and a survey; the campaign goes on.

Each is one file. In a copy of the packages, by the command line: stopped after its first measurement runs, and resumed
by the same command.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from subprocess import CompletedProcess

import pyarrow.parquet as pq
import pytest

from core.domain import Download
from core.files import store
from downloader.control.stop_pause import request_stop
from tests.contract._package_copy import copy_packages, lab_state, report_pages, several, upshift
from tests.contract.test_one_file_each import CLIENT, FACTOR, KPI, SERVER_KIND
from tests.lab.noise import skip_if_void
from tests.topologies import server, topology

FILES = {
    "downloader/factors/rack.py": FACTOR,
    "downloader/clients/quiche_narrow.py": CLIENT,
    "analysis/captures/kpis/bytes_per_packet.py": KPI,
    "vantage/servers/python.py": SERVER_KIND,
    "survey/surveys/server.py": Path(__file__).with_name("_server_survey.py").read_text(encoding="utf-8"),
}

CAMPAIGN = """name = "goes-on"
lab = "./goes-on.toml"
targets = "lab"
max_attempts = 8
iterations = 5
[[configurations]]
name = "BL"
client = "requests"
[[configurations]]
name = "WS"
client = "requests"
levels = { window_scaling = 14 }
"""

RUN = ("run", "c.toml", "--out", "out", "--json")


def recorded_runs(out: Path) -> int:
    journals = list(out.glob("vantage/*/journal.sqlite"))
    with contextlib.suppress(sqlite3.OperationalError), contextlib.ExitStack() as stack:
        for journal in journals:
            db = stack.enter_context(contextlib.closing(sqlite3.connect(f"file:{journal}?mode=ro", uri=True)))
            return int(db.execute("SELECT COUNT(*) FROM runs WHERE state = 'done'").fetchone()[0])
    return 0


def stopped(running: Future[CompletedProcess[str]], out: Path) -> CompletedProcess[str]:
    """The campaign, asked to stop as soon as it has recorded a measurement run."""
    while not running.done() and not recorded_runs(out):
        time.sleep(0.05)
    if not running.done():
        request_stop(out, time.time())
    return running.result()


@pytest.mark.lab
def test_a_running_campaign_goes_on_with_each(tmp_path: Path) -> None:
    copy_packages(tmp_path, {})
    where = server("s", "www.on.example", size="300 kB", path="rtt_ms = 10, rate_mbit = 50")
    (tmp_path / "goes-on.toml").write_text(topology("goes-on", where))
    (tmp_path / "c.toml").write_text(CAMPAIGN)
    with lab_state(tmp_path) as state, ThreadPoolExecutor() as threads:
        first = stopped(threads.submit(upshift, tmp_path, *RUN, state=state), tmp_path / "out")
        assert first.returncode == 130, first.stderr
        before = json.loads((tmp_path / "out/status.json").read_text())
        assert 0 < before["progress"]["recorded"] < before["progress"]["planned"] == 15
        for name, text in FILES.items():
            (tmp_path / name).write_text(text)
        second = upshift(tmp_path, *RUN, state=state)
    skip_if_void(second.returncode, second.stderr)
    assert second.returncode == 0, second.stderr
    after = json.loads((tmp_path / "out/status.json").read_text())
    assert after["plan_sha256"] == before["plan_sha256"] and after["progress"]["recorded"] == 15

    rows = list(store.read_rows(tmp_path / "out/downloads.parquet", "downloads", Download))
    assert len(rows) == 15 and {row.outcome for row in rows} == {"ok"}
    assert {row.treatment_ok for row in rows} == {True}, [row.treatment_detail for row in rows]
    has_rack = [json.loads(row.levels).get("rack") for row in sorted(rows, key=lambda row: row.started_at)]
    count = before["progress"]["recorded"]
    assert has_rack == [None] * count + ["on"] * (15 - count), "each row has the levels that were known"
    tables = [pq.read_table(path) for path in (tmp_path / "out").glob("*.parquet")]
    [values] = [table["bytes_per_packet"].to_pylist() for table in tables if "bytes_per_packet" in table.column_names]
    assert len(values) == 15 and all(100 < value < 1501 for value in values), "also of what was captured before"
    pages = report_pages(tmp_path)
    assert "WS" in pages and "rack" in (tmp_path / "out/campaign.json").read_text()

    cases = (
        (("run", "--help"), ("rack", "Loss recovery by time", "quiche-narrow")),
        (("kpis", "--help"), ("bytes_per_packet", "Bytes of the server per packet of the server.")),
        (("survey", "--help"), ("server Ask every domain's server for its name",)),
    )
    answers = several(tmp_path, *(arguments for arguments, _ in cases))
    for (_, words), answer in zip(cases, answers, strict=True):
        shown = " ".join(answer.stdout.split())
        assert all(word in shown for word in words), shown
