"""A campaign of many small downloads: what it needs per download does not grow, and nothing is left open."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from core.files.journal import JournalReader
from tests.lab import _fault_world as faults
from tests.lab import noise
from tests.topologies import server, topology

pytestmark = [pytest.mark.lab, pytest.mark.soak]

PER_ITERATION = 2 * 4  # targets, configurations and warm-ups
PLANNED = int(os.environ.get("UPSHIFT_MANY_DOWNLOADS", "5000")) // PER_ITERATION * PER_ITERATION
"""The environment variable makes another number: 20,000 take most of an hour."""
STEP = PLANNED // 20
FIRST = max(STEP, min(1000, PLANNED // 2))
"""Before, SQLite fills its page cache (2 MB)."""
WINDOW_S = 5.0
"""Between two looks: some 30 downloads, whose CPU time the kernel tells in ticks of 10 ms."""
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Sample:
    """What the runner and the warm interpreters have, proc(5)."""

    downloads: int
    memory_kb: dict[str, int]
    cpu_s: float
    descriptors: int


@pytest.fixture
def world(lab_host: Path, tmp_path: Path) -> Iterator[Any]:
    made = faults.World(tmp_path)
    names = ("www.one.example", "t.example")
    servers = [server(f"s{n}", name, size="10 kB", path="rtt_ms = 2, rate_mbit = 50") for n, name in enumerate(names)]
    made.write("many.toml", topology("many", *servers, seed=3))
    made.campaign(tmp_path / "many.toml", more=f"iterations = {PLANNED // PER_ITERATION}")
    yield made
    made.clean()


def recorded(out: Path) -> int:
    path = out / "vantage" / "V" / "journal.sqlite"
    if not path.exists():
        return 0
    with contextlib.closing(JournalReader(path)) as journal:
        return 0 if journal.is_empty else journal.counts().recorded


def parent(pid: int) -> int | None:
    """None: it has ended. Numbers begin anew at 32,768, so the lower one need not be the parent's."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


def sample(runner: int, world: Any, downloads: int) -> Sample:
    """Of the runner and of the warm interpreters: the runner's own children, and their forks are not."""
    warm = {
        line.split()[-1]: pid
        for pid, line in world.processes().items()
        if "programs.warm" in line and parent(pid) == runner
    }
    pids = {"runner": runner, **warm}
    memory = {}
    for name, pid in pids.items():
        status = Path(f"/proc/{pid}/smaps_rollup").read_text()
        # Its own, whether a fork shares it or not: PSS halves with each fork that lives.
        memory[name] = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("Anonymous:"))
    stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids.values()]
    # Their own, and that of children that ended; user and system.
    ticks = sum(int(fields[at]) for fields in stats for at in (11, 12, 13, 14))
    return Sample(downloads, memory, ticks / TICKS, len(list(Path(f"/proc/{runner}/fd").iterdir())))


def watched(world: Any) -> tuple[list[Sample], list[Sample]]:
    """The campaign, and looks at it: early and late."""
    out = world.folder / "out"
    child = world.start("run", "c.toml", "--out", "out")
    early: list[Sample] = []
    late: list[Sample] = []
    try:
        for first, taken in ((FIRST, early), (PLANNED - STEP - PLANNED // 100, late)):
            while (done := recorded(out)) < first + STEP or len(taken) < 2:
                assert child.poll() is None, child.communicate()[1]
                if done >= first:
                    taken.append(sample(child.pid, world, done))
                time.sleep(WINDOW_S)
        _, stderr = child.communicate(timeout=600)
    except BaseException:
        child.kill()
        child.communicate()
        raise
    assert child.returncode == 0, stderr
    return early, late


def cpu_ms(taken: list[Sample]) -> float:
    """CPU time per download: the lower quartile of the windows, as a busy host makes the same work take longer."""
    pairs = [(a, b) for a, b in itertools.pairwise(taken) if b.downloads > a.downloads]
    each = sorted(1000 * (b.cpu_s - a.cpu_s) / (b.downloads - a.downloads) for a, b in pairs)
    return each[len(each) // 4]


def test_what_it_needs_does_not_grow(world: Any) -> None:
    with noise.host_noise() as host:
        early, late = watched(world)
    out = world.folder / "out"
    faults.assert_each_once(out, PLANNED)
    first, last = early[0], late[-1]
    journal = sum(path.stat().st_size for path in (out / "vantage" / "V").glob("journal.sqlite*")) / PLANNED
    cpu = [cpu_ms(early), cpu_ms(late)]
    print(f"{PLANNED} downloads, load {os.getloadavg()[0]:.1f}: CPU {cpu[0]:.1f} then {cpu[1]:.1f} ms a download")
    for one in (first, early[-1], late[0], last):
        print(f"{one.downloads} downloads: {one.memory_kb} kB, {one.descriptors} descriptors")
    print(f"journal {journal:.0f} bytes a download")
    # A child that is starting has pipes for a moment; what leaks is in every sample.
    assert min(one.descriptors for one in late) <= min(one.descriptors for one in early), (early, late)
    for name, before in first.memory_kb.items():
        assert last.memory_kb[name] <= 1.05 * before + 512, (name, before, last.memory_kb[name])
    assert journal <= 5000
    if cpu[1] > 1.05 * cpu[0] and host[0].excuse:
        pytest.skip(f"{noise.TOO_NOISY}: CPU time, all else holds ({host[0].excuse})")
    assert cpu[1] <= 1.05 * cpu[0], cpu
