"""Calibration: a right lab is right, a wrong one is wrong, and a busy host is waited for."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from core.errors import LabError
from core.system import process
from tests.lab.noise import measured
from tests.topologies import server, topology
from vantage.lab.calibrate import SWEEP_MBIT, Calibration, Check
from vantage.lab.lab import Lab, open_lab
from vantage.linux.cpu import Method

pytestmark = [pytest.mark.lab, pytest.mark.measures]

UPSHIFT = str(Path(sys.executable).with_name("upshift"))
PATH = "rtt_ms = 8, rate_mbit = 12"
SERVERS = (
    server("s", "www.mini.example", size="10 kB", path=f"{PATH}, queue = 30000"),
    server("lossy", "www.lossy.example", size="10 kB", path=f"{PATH}, loss_percent = 2"),
)


@pytest.fixture(scope="module")
def lab(lab_host: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    path = tmp_path_factory.mktemp("topology") / "calibrated.toml"
    path.write_text(topology("calibrated", *SERVERS))
    with open_lab(path) as lab:
        yield lab


def test_a_campaign_in_the_lab_is_not_disturbed(lab: Lab) -> None:
    with closing(lab.place("V")) as place:
        place.claim()
        with pytest.raises(LabError, match="vantage point V of the lab calibrated is in use by process"):
            Calibration(lab, own=False, quick=True)


@pytest.mark.soak
def test_a_right_lab_is_right(lab_host: Path, tmp_path: Path) -> None:
    """By the command, which brings up a lab of its own and so sweeps rates too; that a lab which is up, `small`, is
    right is what tests/lab/test_faults_readme.py shows."""
    path = tmp_path / "right.toml"
    path.write_text(topology("right", *SERVERS))
    command = [UPSHIFT, "lab", "calibrate", str(path), "--quick", "--json"]

    def once() -> tuple[int, dict[str, Any]]:
        done = process.run(command, timeout_s=300)
        return done.returncode, json.loads(done.stdout.splitlines()[-1])

    def wrong(found: tuple[int, dict[str, Any]]) -> list[str]:
        code, document = found
        assert {"right": 0, "wrong": 1, "noisy": 3}[document["verdict"]] == code
        return [str(check) for check in document["checks"] if not check["good"]]

    code, document = measured(once, wrong, excuse=lambda found: "noisy" if found[0] == 3 else None)
    assert code == 0
    assert document["wakeups"]["count"] > 50 and document["cpus_awake"]["method"] in set(Method)
    checks = Counter(check["what"] for check in document["checks"])
    once_each = dict.fromkeys(("queue", "loss pattern", "unprogrammed drops"), 1)
    assert checks == {"round trip": 2, "rate": 1 + len(SWEEP_MBIT[::2]), **once_each}
    (loss,) = [check for check in document["checks"] if check["what"] == "loss pattern"]
    assert not loss["programmed"].startswith("0 of"), "the seed loses nothing, so nothing was tested"


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


@pytest.mark.soak
def test_a_path_whose_round_trip_takes_seconds_is_right(lab_host: Path, tmp_path: Path) -> None:
    path = tmp_path / "far.toml"
    path.write_text(
        topology("far", server("far", "www.far.example", path="rtt_ms = 2600, rate_mbit = 12, queue = 60000"))
    )
    with open_lab(path) as lab, closing(Calibration(lab, own=False, quick=True)) as calibration:
        (far,) = lab.topology.server

        def once() -> list[Check]:
            return [calibration.round_trip("V", far), *calibration.rate("V", far, far.paths["V"])]

        def wrong(checks: list[Check]) -> list[str]:
            return [str(check) for check in checks if not check.good]

        measured(once, wrong, excuse=lambda checks: next((check.noise for check in checks if check.noise), None))


def test_only_who_brought_a_lab_up_may_change_its_paths(lab: Lab) -> None:
    assert lab.folder.is_own()
    program = "from sys import argv; from pathlib import Path; from vantage.lab.state import LabFolder as F"
    done = process.run([sys.executable, "-c", f"{program}; print(F(Path(argv[1])).is_own())", str(lab.folder.root)])
    assert done.stdout.strip() == "False", done.stderr
