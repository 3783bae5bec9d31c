"""`upshift plan` is near what the run then takes: time and bytes, by the run's own account, and disk."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from downloader.limits.disk import used_bytes
from tests.lab import _fault_world as faults
from tests.lab.noise import Noise, host_noise, measured
from tests.topologies import server, topology

pytestmark = [pytest.mark.lab, pytest.mark.measures]

NEAR = 0.20
"""Largest share by which plan and run may differ."""

PATHS = {
    "slow": ("1 MB", "rtt_ms = 30, rate_mbit = 5"),
    "far": ("1 MB", "rtt_ms = 120, rate_mbit = 20"),
    "fast": ("4 MB", "rtt_ms = 10, rate_mbit = 40"),
}

CONFIGURATIONS = """
[[configurations]]
name = "BL"
client = "requests"
[[configurations]]
name = "WS"
client = "requests"
levels = { window_scaling = 14 }
[[configurations]]
name = "quiche"
client = "quiche"
"""


@dataclass(frozen=True)
class Took:
    """What a run took."""

    seconds: float
    ip_bytes: int
    disk: int
    """All files of the folder [bytes]."""
    captures: int
    """Those of captures [bytes]."""
    voids: int
    noise: Noise


@pytest.fixture
def world(lab_host: Path, tmp_path: Path) -> Iterator[Any]:
    made = faults.World(tmp_path)
    servers = [server(f"s-{name}", f"{name}.example", size=size, path=path) for name, (size, path) in PATHS.items()]
    made.write("paths.toml", topology("paths", *servers, seed=3))
    made.campaign(tmp_path / "paths.toml", more="iterations = 2", configurations=CONFIGURATIONS)
    yield made
    made.clean()


@pytest.mark.soak
def test_a_plan_is_near_what_the_run_takes(world: Any) -> None:
    planned = world.upshift("plan", "c.toml", "--json")
    assert planned.returncode == 0, planned.stderr
    found = json.loads(planned.stdout)
    expected, disk = found["parts"]["V"], found["disk"]
    assert expected["runs"] == 6
    runs = iter(range(100))

    def run() -> Took:
        out = world.folder / f"out-{next(runs)}"
        with host_noise() as noise:
            done = world.upshift("run", "c.toml", "--out", out)
        assert done.returncode == 0, done.stderr
        with closing(sqlite3.connect(out / "vantage" / "V" / "journal.sqlite")) as journal:
            [(began, ended, ip_bytes)] = journal.execute("SELECT MIN(began), MAX(ended), SUM(bytes) FROM spent")
            [(voids,)] = journal.execute("SELECT SUM(voids) FROM runs")
        whole, captures = used_bytes(out), used_bytes(out / "vantage" / "V" / "captures")
        print(f"expected {expected}, {disk}")
        print(f"took {ended - began:.2f} s, {ip_bytes} bytes, {whole=} {captures=}, {noise[0]}")
        return Took(ended - began, ip_bytes, whole, captures, voids, noise[0])

    def check(took: Took) -> list[str]:
        pairs = {
            "seconds": (expected["expected_s"], took.seconds),
            "bytes": (expected["ip_bytes"], took.ip_bytes),
            "disk with all captures": (disk["all"], took.disk),
            "disk without": (disk["none"], took.disk - took.captures),
        }
        return [
            f"{name}: {plan:.4g} in the plan, the run took {run:.4g}"
            for name, (plan, run) in pairs.items()
            if abs(plan - run) > NEAR * run
        ]

    measured(run, check, excuse=lambda took: took.noise.excuse or (f"{took.voids} void" if took.voids else None))
