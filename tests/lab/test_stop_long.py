"""A campaign of 100,000 recorded downloads is stopped as quickly as a short one: without tables, which take minutes.

In `make soak`; short ones, in test_host_signals, make no tables, either.
"""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.lab._fault_world import wait_until
from tests.lab._host_campaign import Host, open_host
from tests.lab.noise import host_noise, skip_if_cut

pytestmark = [pytest.mark.lab, pytest.mark.soak, pytest.mark.usefixtures("root")]

WITHIN_S = 10.0
"""On a quiet host; a busy one may take four times as long, which is still no time for tables."""
RUN_S = 5.0
"""A measurement run, which a request lets end first."""

LEFT = 8
"""Measurement runs that are not recorded."""

TABLES = "for tables of what is recorded: upshift inspect "


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    with open_host(tmp_path) as host:
        yield host


def fill(host: Host, *, left: int) -> int:
    """Records all runs of the journal but the last ones, as copies of its first one; how many downloads it has."""
    with closing(sqlite3.connect(host.out / "vantage" / "MUC" / "journal.sqlite")) as journal, journal:
        journal.execute(
            "INSERT INTO downloads SELECT plan.id, first.outcome, json_set(record, '$.iteration', iteration)"
            " FROM plan JOIN runs ON plan.run = number JOIN plan AS known USING (configuration)"
            " JOIN downloads AS first ON first.plan = known.id AND known.run = 0"
            " WHERE state != 'done' AND number < (SELECT COUNT(*) FROM runs) - ?",
            (left,),
        )
        journal.execute(
            "UPDATE runs SET state = 'done', attempts = 1 WHERE state != 'done'"
            " AND number < (SELECT COUNT(*) FROM runs) - ?",
            (left,),
        )
        # So tables are made from captures, which takes its time.
        journal.execute("UPDATE captures SET findings = NULL")
        return int(journal.execute("SELECT COUNT(*) FROM downloads").fetchone()[0])


def ends(host: Host, child: subprocess.Popen[str], *, by: signal.Signals | None, within_s: float = WITHIN_S) -> str:
    """Stops a campaign by a signal or by a request, in time; what it said."""
    began = time.monotonic()
    with host_noise() as noise:
        if by is None:
            asked = host.ask("stop", host.out, "--wait", "60")
            assert (asked.returncode, asked.stdout) == (0, f"{host.out}: stopped\n"), asked
        else:
            child.send_signal(by)
        _, said = child.communicate(timeout=60)
    took = time.monotonic() - began
    print(f"{by and by.name}: {took:.1f} s, {noise[0]}")
    skip_if_cut(child.returncode, noise[0])
    assert took <= within_s * (1 if noise[0].quiet else 4)
    assert child.returncode == 130, said
    assert f"{TABLES}{host.out}\n" in said and said.splitlines()[-1].startswith("upshift: to resume: "), said
    assert host.activity() == ("stopped", "upshift stop" if by is None else by.name)
    assert not list(host.out.glob("*.parquet")) and not list(host.out.glob(".*.part"))
    return said


def making_tables(host: Host) -> bool:
    return host.activity() == ("running", "making the tables")


def test_a_stop_makes_no_tables(host: Host) -> None:
    planned = host.campaign("netns", iterations=33_400)
    before = host.world.fingerprint()
    children = []

    def start() -> subprocess.Popen[str]:
        children.append(host.run())
        return children[-1]

    try:
        first = start()
        assert wait_until(lambda: host.activity()[0] == "running" and host.journal()[0] >= 3, 60)
        ends(host, first, by=signal.SIGTERM)
        recorded = fill(host, left=LEFT)
        assert recorded == planned - 3 * LEFT
        print(f"{recorded} downloads")
        for by in (signal.SIGTERM, None):
            child = start()
            assert wait_until(host.downloading, 120), child.communicate()
            ends(host, child, by=by, within_s=WITHIN_S + (0 if by else RUN_S))
            assert host.world.changes(before) == {}
        fill(host, left=0)
        for by in (None, signal.SIGINT):
            child = start()
            assert wait_until(lambda: making_tables(host), 120), child.communicate()
            time.sleep(1.0)
            assert "stopped (" in ends(host, child, by=by)
    finally:
        for child in children:
            child.kill()
            child.communicate()
