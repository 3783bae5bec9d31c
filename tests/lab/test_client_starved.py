"""A client that other programs keep from the CPUs is flagged by its run-queue delay; on a quiet host none is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from analysis.measures import dataset
from analysis.measures.dataset import Dataset
from core.domain import Download, Outcome
from tests.campaigns import Silent
from tests.lab.noise import Noise, host_noise, measured
from tests.topologies import server, topology
from upshift.campaign import run_file
from vantage.lab.lab import Lab, open_lab

pytestmark = [pytest.mark.lab, pytest.mark.measures]

TOPOLOGY = topology("starved", server("s", "www.s.example", size="4 MB", path="rtt_ms = 20, rate_mbit = 40"))
CAMPAIGN = """name = "c"
lab = "LAB"
targets = "lab"
max_attempts = 1
budget = 30
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("starved") / "starved.toml"
    found.write_text(TOPOLOGY)
    return found


@pytest.fixture(scope="module")
def lab(lab_host: Path, path: Path) -> Iterator[Lab]:
    with open_lab(path) as found:
        yield found


def run(path: Path, out: Path, *clients: str) -> tuple[Dataset, Noise]:
    """Two downloads by each client, and the warm-ups."""
    campaign = out.with_suffix(".toml")
    configurations = "".join(
        f'[[configurations]]\nname = "{client}{number}"\nclient = "{client}"\n'
        for client in clients
        for number in (1, 2)
    )
    campaign.write_text(CAMPAIGN.replace("LAB", str(path)) + configurations)
    with host_noise() as noise:
        run_file(campaign, out, progress=Silent())
    found = dataset.load([out])
    for row in (record.download for record in found.records):
        assert row.outcome == Outcome.OK, row.failure_detail
        print(f"{shown(row)}: {row.last_byte_s:.3f} s, CPU {row.transfer_cpu_s:.3f} s")
    return found, noise[0]


def shown(row: Download) -> str:
    assert row.run_delay_s is not None and row.last_byte_s
    return f"{row.configuration}, run-queue delay {row.run_delay_s / row.last_byte_s:.0%}"


@pytest.mark.alone
@pytest.mark.usefixtures("lab")
def test_a_quiet_host_starves_no_client(path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    measured(
        lambda: run(path, tmp_path_factory.mktemp("quiet") / "out", "aioquic", "quiche", "requests"),
        lambda found: [f"starved: {shown(record.download)}" for record in found[0].records if record.starved],
        excuse=lambda found: found[1].excuse,
    )


@pytest.mark.soak
def test_a_starved_client_is_flagged_though_it_uses_little_cpu(lab: Lab, path: Path, tmp_path: Path) -> None:
    """Four programs per CPU that never rest, with the priority of the lab and its clients."""
    with ExitStack() as stack:
        place = stack.enter_context(closing(lab.place("V")))
        for _ in range(4 * len(os.sched_getaffinity(0))):
            loop = place.start(["sh", "-c", "while :; do :; done"])
            stack.callback(loop.stop)
        found, _ = run(path, tmp_path / "out", "aioquic")
    is_aioquic = found.downloads.client.are("aioquic")
    assert is_aioquic.sum() >= 2 and (found.downloads.starved[is_aioquic] == 1).all()
    assert not (found.downloads.cpu_bound[is_aioquic] == 1).any(), "CPU time alone would not tell"
