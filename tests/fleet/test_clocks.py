"""Hosts whose clock is wrong while their time daemon thinks it right: within the margin no two measure one target at a
time, beyond it nothing starts, and what runs is paused.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.system import process
from tests.fleet.cloud import Cloud
from tests.fleet.fleet import Fleet, overlaps, verdicts
from tests.fleet.host import Host

pytestmark = [pytest.mark.fleet, pytest.mark.soak, pytest.mark.timeout(2400)]

LIBRARY, OFFSET = "usr/lib/upshift-test-clock.so", "etc/clock-offset"


def set_ahead(host: Host, seconds: float) -> None:
    """Sets the clock of a host, for programs that run, too."""
    path = host.root / OFFSET
    with path.open("r+b" if path.exists() else "wb") as file:
        file.write(struct.pack("d", seconds))


@pytest.fixture
def fleet(cloud: Cloud, built: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Fleet]:
    """Two hosts with clocks that a test sets, which take turns by them and trust nobody's word for it.

    Its parameter: iterations of the campaign, 1 without it.
    """
    for host in cloud.hosts.values():
        set_ahead(host, 0.0)
        source = Path(__file__).with_name("clock.c")
        argv = ["cc", "-Wall", "-Werror", "-O2", "-shared", "-fPIC", "-o", str(host.root / LIBRARY), str(source)]
        process.run(argv).check(doing="building the clock")
        (host.root / "etc/ld.so.preload").write_text(f"/{LIBRARY}\n")
    more, iterations = {"vantage_clock": "checked"}, getattr(request, "param", 1)
    made = Fleet(cloud, tmp_path, built, targets=cloud.lab.targets()[:3], iterations=iterations, more=more)
    made.do("provision")
    yield made
    made.try_("stop")
    for host in cloud.hosts.values():
        (host.root / "etc/ld.so.preload").unlink()
        host.sh("rm -rf /var/lib/upshift/week")


def test_three_seconds_are_within_the_margin_and_no_turns_overlap(fleet: Fleet) -> None:
    wrong = list(fleet.hosts)[1]
    set_ahead(fleet.hosts[wrong], 3.0)
    examined = verdicts(fleet.try_("doctor", "--json"))
    least, most = examined[wrong]["clock_offset_s"]
    assert least <= 3.0 <= most and "clock: it is" not in (examined[wrong]["fault"] or "")
    fleet.do("run", "--force")  # clients are not calibrated here
    fleet.wait_state("done", seconds=600)
    assert not [line for line in fleet.try_("status").stderr.splitlines() if "clock" in line]
    fleet.do("collect")
    spans = [
        dataclasses.replace(span, start=span.start - 3.0, end=span.end - 3.0) if span.host == wrong else span
        for span in fleet.spans()
    ]
    assert len(spans) == 6 and overlaps(spans) == []


@pytest.mark.parametrize("fleet", [4], indirect=True)  # a busy machine looks at the hosts later than one would end
def test_eighteen_seconds_do_not_start_and_are_paused_later(fleet: Fleet) -> None:
    right, wrong = fleet.hosts
    set_ahead(fleet.hosts[wrong], 18.0)
    for command in ("doctor", "run"):
        answers = verdicts(fleet.try_(command, "--json"))
        assert "s or more ahead of that of this machine, though its time daemon counts" in answers[wrong]["fault"]
        assert answers[wrong]["clock_offset_s"][0] <= 18.0 <= answers[wrong]["clock_offset_s"][1]
    assert fleet.hosts[wrong].ssh("ls -d /var/lib/upshift/week").returncode != 0

    set_ahead(fleet.hosts[wrong], 0.0)
    fleet.do("run", "--force")
    set_ahead(fleet.hosts[wrong], -18.0)
    clause = f"{wrong}: clock: it is"
    assert clause in fleet.try_("status").stderr and fleet.states()[wrong] != "paused", "it only looks"
    with fleet.start("status", "--watch", "--json") as watch:
        try:
            fleet.wait(lambda: fleet.states()[wrong] == "paused", seconds=120, what="it is not paused")
        finally:
            os.killpg(watch.pid, signal.SIGINT)
        _, errors = watch.communicate(timeout=60)
    assert clause in errors and f"paused until upshift fleet resume: {wrong}" in errors, errors
    assert fleet.states()[right] != "paused"
    set_ahead(fleet.hosts[wrong], 0.0)
    fleet.do("resume")
    fleet.wait_state("done", seconds=1200)
