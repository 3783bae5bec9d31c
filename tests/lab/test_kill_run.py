"""`upshift run` killed again and again, in a lab of its own and in one that was up before.

Proven: restarted each time, the plan is finished in the end with every planned download recorded exactly once, in the
journal and in the table; after the next `upshift lab down` there is no process, network namespace, TUN device, mount,
temporary or half file of ours, and the host's sysctls are as before.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from core.domain import Failure, Superseded, VoidReason
from core.files import store
from downloader.execution.journal import Journal
from tests.cells import Repeats, cells
from tests.inspected import kpi_rows
from tests.lab import _fault_world as faults
from tests.lab.noise import skip_if_void
from tests.topologies import server, topology

pytestmark = pytest.mark.lab

PER_ITERATION = 2 * 2 * 4  # vantage points, targets, configurations and warm-ups

COUNTERS = re.compile(
    r"kernel\.random\.|kernel\.ns_last_pid|kernel\.pty\.nr|fs\.(dentry-state|file-nr|inode-nr|inode-state|aio-nr)"
    r"|nf_conntrack_count|kernel\.sched_domain|fs\.binfmt_misc|fs\.quota|\.neigh\.|kernel\.unprivileged|vm\.stat"
    r"|kernel\.perf_event_max_sample_rate|kernel\.hung_task_detect_count"
)
"""Sysctls that count or change by themselves."""


def stat_fields(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the state on (proc(5): field 3): parent second, start twentieth."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()


class Host:
    """What the host has, as far as a lab could change it, and which namespaces our processes were in."""

    def __init__(self, world: Any) -> None:
        self.world = world
        self.own = Path("/proc/self/ns/net").readlink()
        self.began_ticks = time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK")
        self.namespaces: set[str] = set()
        self.before, self.devices = self.look(), self.tunnels()

    def tunnels(self) -> str:
        """Devices of programs, of which a lab's emulator has some."""
        return subprocess.run(["ip", "tuntap", "list"], capture_output=True, text=True, check=True).stdout

    def look(self) -> dict[str, str]:
        """Every sysctl of this host save counters and those of interfaces, which others may have added."""
        shown = subprocess.run(["sysctl", "-a"], capture_output=True, text=True, check=False).stdout
        pairs = (line.partition(" = ")[::2] for line in shown.splitlines() if " = " in line)
        interfaces = re.compile(r"net\.ipv[46]\.conf\.(?!all\.|default\.|lo\.)")
        return {k: v for k, v in pairs if not COUNTERS.search(k) and not interfaces.match(k)}

    def remember(self) -> None:
        """Notes the network and mount namespaces that our processes are in now."""
        for pid in self.world.processes():
            for kind in ("net", "mnt"):
                try:
                    self.namespaces.add(str(Path(f"/proc/{pid}/ns/{kind}").readlink()))
                except OSError:
                    continue

    def _stranger(self, entry: Path) -> bool:
        """Whether a process belongs to another lab or host here: the kernel gives numbers of namespaces again.

        What we left behind is ours or init's child; the first of a stranger's ancestors is older than this test.
        """
        found = re.findall(rb"UPSHIFT_(?:LAB|STATE_DIR)=([^\0]*)", (entry / "environ").read_bytes())
        if found:
            return not any(bytes(self.world.state) in value for value in found)
        ancestors = [int(entry.name)]
        while (parent := int(stat_fields(ancestors[-1])[1])) > 1:
            ancestors.append(parent)
        first_ticks = int(stat_fields(ancestors[-1])[19])
        return os.getpid() not in ancestors and first_ticks < self.began_ticks

    def check(self) -> None:
        after = self.look()
        assert len(after) > 300
        changed = {k: (v, after.get(k)) for k, v in self.before.items() if after.get(k) != v}
        assert not changed, changed
        ours = self.namespaces - {str(Path(f"/proc/self/ns/{kind}").readlink()) for kind in ("net", "mnt")}
        assert len(ours) >= 5, "the test saw no lab"
        used: dict[str, str] = {}
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and not self._stranger(entry):
                    used |= {str((entry / "ns" / kind).readlink()): entry.name for kind in ("net", "mnt")}
            except OSError:
                continue
        assert not {name: pid for name, pid in used.items() if name in ours}, "a process lives in a namespace of ours"
        mounts = Path("/proc/self/mountinfo").read_text()
        assert str(self.world.state) not in mounts and str(self.world.folder) not in mounts
        assert not re.search(r"/run/netns/(V|W|s1|s2|dns) ", mounts), "a namespace of ours is still mounted"
        assert self.tunnels() == self.devices


@pytest.fixture
def iterations(repeats: Repeats) -> int:
    return repeats(quick=2, soak=8)


@pytest.fixture
def world(lab_host: Path, tmp_path: Path, iterations: int) -> Iterator[Any]:
    made = faults.World(tmp_path)
    pair = ("V", "W")
    servers = [server("s1", "www.one.example", vantages=pair), server("s2", "t.example", vantages=pair)]
    made.write("pair.toml", topology("pair", *servers, vantages=pair, seed=3))
    made.campaign(tmp_path / "pair.toml", more=f"iterations = {iterations}")
    yield made
    for pid in made.processes():  # only after a failure
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 9)
    shutil.rmtree(made.state, ignore_errors=True)


SEED = "UPSHIFT_KILL_SEED"
"""Environment variable: the seed of the kills below, to repeat a failure; without it, that of the cell."""

PARTS = {
    "runner": ("upshift.cli", " run "),
    "guardian": ("vantage.host.guardian",),
    "settings": ("vantage.linux.settings",),
    "interpreter": ("downloader.programs.warm",),
    "client": ("h3get --url",),
    "tcpdump": ("tcpdump",),
    "pathem": ("pathem",),
    "holder": ("unshare",),
}
"""Part of a campaign -> what stands in its command line. Whatever else is found is a part of its own."""


def part_of(line: str) -> str:
    return next((part for part, words in PARTS.items() if all(word in line for word in words)), "other")


def victims(alive: Mapping[int, str], generator: random.Random) -> list[tuple[int, str]]:
    """One process, or (a third of the times) two; their parts are drawn first, so that rare ones are hit as often."""
    by_part: dict[str, list[int]] = {}
    for pid, line in sorted(alive.items()):
        by_part.setdefault(part_of(line), []).append(pid)
    parts = generator.sample(sorted(by_part), min(1 + (generator.random() < 1 / 3), len(by_part)))
    return [(pid, alive[pid]) for pid in (generator.choice(by_part[part]) for part in parts)]


@pytest.mark.soak  # test_kill_host hits any part of a campaign on a host, test_kill_parts each part of one in a lab
@pytest.mark.parametrize("cell", range(12))
def test_any_part_is_killed_at_a_random_moment(world: Any, cell: int, iterations: int, repeats: Repeats) -> None:
    """SIGKILL of any process of the campaign, or of two at once. With `test_kill_host`, 300 kills in `make soak`."""
    seed = int(os.environ.get(SEED, cell))
    generator, host, wanted = random.Random(seed), Host(world), repeats(quick=2, soak=15)
    out, hits, commands = world.folder / "out", Counter[str](), 0
    print(f"to repeat: {SEED}={seed}")
    while hits.total() < wanted:
        commands += 1
        assert commands <= 4 * wanted, f"it ends faster than it is killed: {hits}"
        child, since = world.start("run", "c.toml", "--out", "out"), time.time()
        try:
            # Every other moment falls into a measurement run, on a busy host, too; the others also into start and end.
            if commands % 2:
                wait_for_download(child, out, since)
            child.wait(timeout=generator.uniform(0.0, 2.0) if commands % 2 else generator.uniform(0.5, 8.0))
        except subprocess.TimeoutExpired:
            host.remember()
            for pid, line in victims(world.processes(), generator):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    hits[part_of(line)] += 1
        try:
            _, stderr = child.communicate(timeout=120)
        except BaseException:
            child.kill()
            child.communicate()
            raise
        assert "Traceback" not in stderr, (seed, hits, stderr)
        skip_if_void(child.returncode, stderr)
        assert child.returncode in (0, 75, -signal.SIGKILL), (seed, hits, child.returncode, stderr)
        if child.returncode == 0:  # whole, whatever was killed: the next one begins anew
            faults.assert_each_once(out, PER_ITERATION * iterations)
            shutil.rmtree(out)
        elif generator.random() < 0.2:
            world.upshift("lab", "down")
    # Nobody kills this one, and its namespaces are noted in any case: a kill may come before a lab is up.
    done = world.upshift("run", "c.toml", "--out", "out", "--json", look=host.remember)
    skip_if_void(done.returncode, done.stderr)
    assert done.returncode == 0, (seed, done.stderr)
    rows = faults.assert_each_once(out, PER_ITERATION * iterations)
    assert {row.failure for row in rows} <= {None, Failure.CLIENT_CRASHED}, (seed, [row.failure_detail for row in rows])
    print(f"seed {seed}: {hits.total()} kills in {commands} commands: {dict(hits)}")
    world.clean()
    host.check()


def interrupted_runs(out: Path) -> int:
    """Measurement runs that a kill hit, by the journals."""
    found = 0
    for path in out.glob("vantage/*/journal.sqlite"):
        journal = Journal(path)
        found += journal.counts().interrupted_runs
        journal.close()
    return found


def wait_for_download(child: subprocess.Popen[str], out: Path, since: float) -> None:
    """Waits until a capture has begun, or the run has ended."""

    def begun() -> bool:
        with contextlib.suppress(FileNotFoundError):
            captures = out.glob("vantage/*/captures/.*.part.pcap")
            return child.poll() is not None or any(path.stat().st_mtime >= since for path in captures)
        return False

    faults.wait_until(begun, 60)


@cells("whose", every=["its own lab", "a lab that was up"], quick=["its own lab"])
def test_killed_at_random_moments(world: Any, whose: str, iterations: int, repeats: Repeats) -> None:
    planned, wanted = PER_ITERATION * iterations, repeats(quick=2, soak=10)
    host = Host(world)
    up = whose == "a lab that was up"
    if up:
        assert world.upshift("lab", "up", "pair.toml").returncode == 0
    generator = random.Random(whose)
    out = world.folder / "out"
    kills, ended = 0, 0
    longest_s = 2.6 if up else 3.4
    while kills < wanted:
        began, since = time.monotonic(), time.time()
        child = world.start("run", "c.toml", "--out", "out")
        try:
            # Every other moment falls into a measurement run, the others also into start, export, or the way down.
            if kills % 2:
                wait_for_download(child, out, since)
                moment_s = generator.uniform(0.0, 0.4)
            else:
                moment_s = generator.uniform(0.2, longest_s)
            _, stderr = child.communicate(timeout=moment_s)
            skip_if_void(child.returncode, stderr)
            assert child.returncode == 0, stderr
            ended += 1
            faults.assert_each_once(out, planned)
            shutil.rmtree(out)
            longest_s = min(longest_s, 0.9 * (time.monotonic() - began))
            assert ended <= wanted, "it ends faster than it is killed"
        except subprocess.TimeoutExpired:
            host.remember()
            child.kill()
            child.communicate()
            kills += 1
    done = world.upshift("run", "c.toml", "--out", "out", "--json")
    skip_if_void(done.returncode, done.stderr)
    assert done.returncode == 0, done.stderr
    rows = faults.assert_each_once(out, planned)
    assert all(row.outcome == "ok" for row in rows), [row.failure_detail for row in rows]
    interrupted = interrupted_runs(out)
    print(f"{whose}: {kills} kills, {interrupted} measurement runs interrupted, {ended} ends before the kill")
    assert interrupted >= 1, "the kills did not hit downloads"
    thrown = store.read_rows(out / "superseded.parquet", "superseded", Superseded)
    assert {row.reason for row in thrown} <= set(VoidReason)
    assert kpi_rows(out) == planned
    world.clean()
    host.check()
