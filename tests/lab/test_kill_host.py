"""SIGKILL of any part of a campaign on a host, in a namespace and on the host itself, as `test_kill_run` does in a lab.

The host is a namespace that stands for one. Proven: restarted each time, the plan is finished with each download
recorded exactly once, and after `upshift doctor --restore` sysctls, routes, rules and links are as before.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial

import pytest

from core.domain import Failure
from core.files.journal import open_journals
from tests.cells import Repeats, cells
from tests.lab._fault_world import started_with, wait_until
from tests.lab._host_campaign import Host, open_host
from tests.lab.test_kill_run import SEED, part_of, victims

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("root")]

PER_ITERATION = 5  # two warm-ups, two of TCP, one of QUIC
QUIC = '\n[[configurations]]\nname = "quiche"\nclient = "quiche"\n'


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    with open_host(tmp_path_factory.mktemp("kills"), interval_s=0.002) as opened:
        yield opened


def processes(host: Host) -> dict[int, str]:
    """Number -> command line of the campaign's processes, those on their way to exec(2) left out."""
    return {pid: line for pid, line in started_with(f"UPSHIFT_STATE_DIR={host.world.state}").items() if line}


@cells("isolation", every=["netns", "host"], quick=["netns"])
@cells("cell", every=range(4), quick=[0])
def test_any_part_is_killed_at_a_random_moment(host: Host, isolation: str, cell: int, repeats: Repeats) -> None:
    seed = int(os.environ.get(SEED, cell))
    generator, wanted = random.Random(f"{seed} {isolation}"), repeats(quick=1, soak=15)
    iterations = repeats(quick=2, soak=6)
    planned, before = iterations * PER_ITERATION, host.world.fingerprint()
    host.campaign(isolation, iterations=iterations)
    with (host.folder / "c.toml").open("a") as file:
        file.write(QUIC)
    hits, commands = Counter[str](), 0
    print(f"to repeat: {SEED}={seed}")
    try:
        while hits.total() < wanted:
            commands += 1
            assert commands <= 4 * wanted, f"it ends faster than it is killed: {hits}"
            child, since = host.run(), time.time()
            try:
                # Every other moment falls into a measurement run, the others also into start and end.
                if commands % 2:
                    begun = partial(host.downloading, since)
                    wait_until(lambda child=child, begun=begun: child.poll() is not None or begun(), 60)
                child.wait(timeout=generator.uniform(0.0, 2.0) if commands % 2 else generator.uniform(0.5, 6.0))
            except subprocess.TimeoutExpired:
                for pid, line in victims(processes(host), generator):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                        hits[part_of(line)] += 1
            _, said = child.communicate(timeout=120)
            assert "Traceback" not in said, (seed, hits, said)
            assert child.returncode in (0, 75, -signal.SIGKILL), (seed, hits, child.returncode, said)
            if child.returncode == 0:
                each_once(host, planned)
                shutil.rmtree(host.out)
        child = host.run()
        _, said = child.communicate(timeout=180)
        assert child.returncode == 0, (seed, said)
        each_once(host, planned)
        print(f"{isolation}, seed {seed}: {hits.total()} kills in {commands} commands: {dict(hits)}")
        host.world.upshift("doctor", "--restore", "--quick").communicate(timeout=60)
        assert wait_until(lambda: not processes(host) and not host.world.changes(before), 30, pause_s=0.1), (
            processes(host),
            host.world.changes(before),
        )
    finally:
        shutil.rmtree(host.out, ignore_errors=True)


def each_once(host: Host, planned: int) -> None:
    with open_journals(host.out) as journals:
        [journal] = journals.values()
        rows = list(journal.downloads())
    keys = Counter((row.iteration, row.configuration) for row in rows)
    assert len(rows) == planned and set(keys.values()) == {1}, json.dumps({str(key): keys[key] for key in keys})
    assert {row.failure for row in rows} <= {None, Failure.CLIENT_CRASHED}, [row.failure_detail for row in rows]
