"""Ctrl-C, and SIGKILL of each part of a running campaign: tcpdump, a client, the emulator, the lab's holder.

Proven for each: the run ends with a record or with one clear sentence, never with a traceback, and the next run (after
`upshift lab down` where the lab is gone) finishes the plan with every download once.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from core.domain import Failure
from downloader.execution.journal import Journal
from tests.cells import cells
from tests.lab import _fault_world as faults
from tests.lab.noise import TOO_NOISY, skip_if_void
from tests.topologies import server, topology

pytestmark = pytest.mark.lab

PLANNED = 2 * 2 * 4  # iterations, targets, configurations and warm-ups


@pytest.fixture
def world(lab_host: Path, tmp_path: Path) -> Iterator[Any]:
    made = faults.World(tmp_path)
    servers = [server("s1", "www.one.example", size="1 MB"), server("s2", "t.example", size="1 MB")]
    made.write("parts.toml", topology("parts", *servers, seed=3))
    made.campaign(tmp_path / "parts.toml", more="iterations = 2")
    yield made
    made.clean()


class Hit:
    """A campaign in which something was hit while it downloaded."""

    def __init__(self, world: Any, strike: Callable[[Any], None]) -> None:
        self.out = world.folder / "out"
        child = world.start("run", "c.toml", "--out", "out")
        try:
            captures = self.out / "vantage" / "V" / "captures"
            # The second measurement run is under way: something is recorded, and more is to come.
            assert faults.wait_until(lambda: len(list(captures.glob("[0-9]*.pcap.zst"))) >= 1, 90)
            strike(child)
            stdout, stderr = child.communicate(timeout=120)
        except BaseException:
            child.kill()
            child.communicate()
            raise
        self.done = faults.Done(child.returncode, stdout, stderr)
        assert "Traceback" not in stderr, stderr


def journaled(out: Path) -> list[Any]:
    """What is recorded so far."""
    journal = Journal(out / "vantage" / "V" / "journal.sqlite")
    try:
        return list(journal.downloads())
    finally:
        journal.close()


def finish(world: Any) -> list[Any]:
    done = world.upshift("run", "c.toml", "--out", "out", "--json")
    skip_if_void(done.returncode, done.stderr)
    assert done.returncode == 0, done.stderr
    assert faults.summary(done)["complete"]
    found: list[Any] = faults.assert_each_once(world.folder / "out", PLANNED)
    return found


def test_ctrl_c_at_a_terminal(world: Any) -> None:
    """The signal reaches the whole process group: clients and tcpdump, too. Impatience changes nothing."""

    def strike(child: Any) -> None:
        for _ in range(3):
            faults.signal_group(child, signal.SIGINT)

    hit = Hit(world, strike)
    assert hit.done.returncode == 130, (hit.done.returncode, hit.done.stderr)
    assert hit.done.sentences == [
        "upshift: out: stopped (SIGINT); for tables of what is recorded: upshift inspect out",
        "upshift: to resume: upshift run c.toml --out out",
    ]
    assert not list(hit.out.glob("**/.*.part.pcap")), "the vantage point had not ended when the run did"
    assert faults.wait_until(lambda: not world.processes(), 3), "the lab was its own"
    rows = finish(world)
    assert all(row.outcome == "ok" for row in rows)


@pytest.mark.soak
def test_sigterm_of_run_alone(world: Any) -> None:
    hit = Hit(world, lambda child: child.terminate())
    assert hit.done.returncode != 0
    assert all(row.outcome == "ok" for row in finish(world))


def test_tcpdump(world: Any) -> None:
    def strike(child: Any) -> None:
        captures = world.folder / "out" / "vantage" / "V" / "captures"
        assert faults.wait_until(lambda: any(p.stat().st_size > 5000 for p in captures.glob(".*.part.pcap")), 60)
        os.kill(world.find("tcpdump", "-i"), signal.SIGKILL)

    hit = Hit(world, strike)
    sentence = hit.done.sentence(code=75)
    assert re.search(r"tcpdump ended in the middle of a measurement run \(SIGKILL\); run the same command", sentence)
    assert all(row.outcome == "ok" for row in finish(world))


@pytest.mark.soak
def test_the_settings_process(world: Any) -> None:
    def strike(child: Any) -> None:
        os.kill(world.find("vantage.linux.settings", "net.ipv4.tcp_ecn"), signal.SIGKILL)

    hit = Hit(world, strike)
    sentence = hit.done.sentence(code=75)
    assert "the process that writes kernel settings has ended; run the same command again" in sentence
    assert all(row.outcome == "ok" for row in finish(world))


KILLS = 5
"""Campaigns in which a client is killed, until the run in which that happened was not void; on a busy host some are."""


@pytest.mark.soak  # test_download_run: a client that dies is a record
def test_a_client(world: Any) -> None:
    """A client that dies is a record, which says of what."""

    def strike(child: Any) -> None:
        os.kill(world.find("h3get", "--url"), signal.SIGKILL)

    for _ in range(KILLS):
        hit = Hit(world, strike)
        skip_if_void(hit.done.returncode, hit.done.stderr)
        assert hit.done.returncode == 0, hit.done.stderr
        bad = [row for row in faults.assert_each_once(hit.out, PLANNED) if row.outcome != "ok"]
        thrown = [row for row in faults.superseded(hit.out) if row.outcome != "ok"]
        assert [(row.client, row.failure) for row in (*bad, *thrown)] == [("quiche", Failure.CLIENT_CRASHED)]
        if bad:
            assert "SIGKILL" in bad[0].failure_detail
            return
        shutil.rmtree(hit.out)
    pytest.skip(f"{TOO_NOISY}: the run with the killed client was void in {KILLS} campaigns of {KILLS}")


@pytest.mark.soak
def test_a_warm_client(world: Any) -> None:
    """An interpreter that waits for its download is started again where it dies; the record of one that dies while it
    downloads says so."""

    def strike(child: Any) -> None:
        os.kill(world.find("downloader.programs.requests_get", "warm"), signal.SIGKILL)

    hit = Hit(world, strike)
    skip_if_void(hit.done.returncode, hit.done.stderr)
    assert hit.done.returncode == 0, hit.done.stderr
    rows = faults.assert_each_once(hit.out, PLANNED)
    bad = [row for row in (*rows, *faults.superseded(hit.out)) if row.outcome != "ok"]
    assert len(bad) <= 1 and all(row.failure == Failure.CLIENT_CRASHED for row in bad), bad


@cells(
    "part, whose",
    every=itertools.product(["pathem", "holder"], ["its own lab", "a lab that was up"]),
    quick=[("pathem", "its own lab")],
)
def test_a_part_of_the_lab(world: Any, part: str, whose: str) -> None:
    up = whose == "a lab that was up"
    if up:
        assert world.upshift("lab", "up", "parts.toml").returncode == 0
    words = ("pathem", "--control") if part == "pathem" else ("vantage.lab.holder",)

    def strike(child: Any) -> None:
        pids = [
            pid for pid, line in world.processes().items() if all(w in line for w in words) and "unshare" not in line
        ]
        os.kill(pids[0], signal.SIGKILL)

    hit = Hit(world, strike)
    sentence = hit.done.sentence(code=75)
    # The kernel ends the emulator before the holder, which is process 1 there, is gone for good.
    remedy = "run: upshift lab down parts, then run the same command" if up else "run the same command"
    unhealthy = rf"is unhealthy \(its path emulator has ended\); {remedy}"
    said = rf"the lab parts (no longer exists; run the same command|{unhealthy}) again$"
    if part == "pathem":
        said = rf"the lab parts is unhealthy \((pathem ended with code -9|its path .* has ended)\); {remedy} again$"
    assert re.search(said, sentence), sentence
    assert all(row.outcome == "ok" for row in journaled(hit.out)), "what a dead lab does to downloads is no result"
    if up:
        assert world.upshift("lab", "down").returncode == 0
    assert all(row.outcome == "ok" for row in finish(world))
