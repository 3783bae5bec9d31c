"""Calibration: a right lab is right, a wrong one is wrong, and a busy host is neither."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.topologies import server, topology
from upshift.progress import show
from vantage.lab.calibrate.calibrate import Calibration, Check
from vantage.lab.lab import Lab, open_lab

pytestmark = [pytest.mark.lab, pytest.mark.measures]

PATH = "rtt_ms = 8, rate_mbit = 12"
TOPOLOGY = topology(
    "calibrated",
    server("s", "www.mini.example", size="10 kB", path=f"{PATH}, queue = 30000"),
    server("lossy", "www.lossy.example", size="10 kB", path=f"{PATH}, loss_percent = 2"),
)


@pytest.fixture(scope="module")
def lab(lab_host: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    path = tmp_path_factory.mktemp("topology") / "calibrated.toml"
    path.write_text(TOPOLOGY)
    with open_lab(path) as lab:
        yield lab


def calm(checks: list[Check]) -> list[Check]:
    """Those on which this host allows a verdict."""
    return [check for check in checks if check.good or not check.noise]


def test_a_right_lab_is_right(lab: Lab) -> None:
    with show(stream=io.StringIO()) as progress, closing(Calibration(lab, own=False, quick=True)) as calibration:
        checks = calibration.run(progress)
    assert {check.what for check in checks} == {"round trip", "rate", "queue", "loss pattern", "unprogrammed drops"}
    assert all(check.good for check in calm(checks)), checks
    (loss,) = [check for check in checks if check.what == "loss pattern"]
    assert not loss.programmed.startswith("0 of"), "the seed loses nothing, so nothing was tested"


def test_a_wrong_lab_is_wrong(lab: Lab) -> None:
    emulator = lab.emulator()
    pair = {"from": "s", "to": "V", "delay_us": 5500, "rate_bps": 10_000_000, "queue_bytes": 30000}
    emulator.ask("set_pair", **pair, loss=None, ecn_threshold_bytes=None)
    try:
        with closing(Calibration(lab, own=False, quick=True)) as calibration:
            server = lab.topology.server[0]
            assert not calibration.round_trip("V", server).good
            assert not calibration.rate("V", server, server.paths["V"])[0].good
    finally:
        emulator.ask(
            "set_pair", **{**pair, "delay_us": 4000, "rate_bps": 12_000_000}, loss=None, ecn_threshold_bytes=None
        )
        emulator.close()


def test_the_command_gives_a_verdict(lab_host: Path) -> None:
    argv = [
        sys.executable,
        "-c",
        "from upshift.cli import main; main()",
        "lab",
        "calibrate",
        "small",
        "--quick",
        "--json",
    ]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
    verdict = json.loads(done.stdout.splitlines()[-1])["verdict"]
    assert (done.returncode, verdict) in {(0, "right"), (3, "noisy")}, done.stdout
