"""Ceilings from the calibration of this host to the tables of a campaign: measured, stored with data, applied."""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from analysis import api
from analysis.measures import dataset
from analysis.measures.ceilings import CEILING_SHARE
from analysis.measures.selection import DEFAULT, Selection
from analysis.report import report
from core.domain import Download
from core.files import fixed_rates, store
from core.files.fixed_rates import PacketForm, Transfer, fastest
from core.terminal import show_progress
from downloader import clients
from tests.lab import _fault_world as faults
from tests.lab.noise import TOO_NOISY, Noise, host_noise, measured, skip_if_void
from tests.topologies import server, topology
from vantage.doctor import calibrate, ceilings

pytestmark = pytest.mark.lab

DOMAINS = 1
OF_EACH_CLIENT = 2 * DOMAINS
MOST_RUNS = 4
"""BL and curl-h3, and the warm-up of each transport."""

RATE_MBIT_S = 1_000.0
"""Offered rate at which clients are compared: below the ceiling of each that is compiled."""

CONFIGURATIONS = """
[[configurations]]
name = "BL"
client = "requests"
[[configurations]]
name = "curl-h1"
client = "curl-h1"
[[configurations]]
name = "curl-h3"
client = "curl-h3"
"""


@pytest.fixture
def world(lab_host: Path, tmp_path: Path) -> Iterator[faults.World]:
    made = faults.World(tmp_path)
    servers = [
        server(f"s{number}", f"www.{number}.example", size="1 MB", path="rtt_ms = 4, rate_mbit = 20")
        for number in range(DOMAINS)
    ]
    made.write("ceilings.toml", topology("ceilings", *servers, seed=5))
    made.campaign(tmp_path / "ceilings.toml", configurations=CONFIGURATIONS)
    yield made
    stored(made).unlink(missing_ok=True)  # it is meant to stay; nothing else is
    made.clean()


def stored(world: faults.World) -> Path:
    return world.state / "s" / "ceilings.json"


def change(world: faults.World, client: str, **values: Any) -> None:
    """Writes other values into the kept calibration of a client."""
    document = json.loads(stored(world).read_text())
    document["clients"][client] |= values
    stored(world).write_text(json.dumps(document))


def calibrated(world: faults.World) -> dict[str, float]:
    """Client -> its ceiling here; the rates of the campaign are far below each."""
    chosen = [clients.ALL[name] for name in ("requests", "curl-h1", "curl-h3")]
    with show_progress() as progress, host_noise() as noise:
        found = calibrate.measure(chosen, 0.1, rates=(), packets=[PacketForm.SINGLE], progress=progress)
    stored(world).parent.mkdir(exist_ok=True)
    now = ceilings.circumstances()
    ceilings.save(found, path=stored(world), now=now, measured_at="2026-11-24", seconds=0.1, busy_share=0.0)
    rates: dict[str, float] = {one.client.name: one.document()["ceiling_mbit_s"] for one in found}
    assert all(rates.values()) or not noise[0].quiet, rates
    if any((rate or 0) <= 40 for rate in rates.values()):
        pytest.skip(f"{TOO_NOISY}: clients reach {rates} Mbit/s")
    return rates


def tables(world: faults.World, out: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The tables of a campaign, which is run, as plain data; and those without what is near a ceiling."""
    for _ in range(MOST_RUNS):
        shutil.rmtree(world.folder / out, ignore_errors=True)
        done = world.upshift("run", "c.toml", "--out", out, "--json")
        skip_if_void(done.returncode, done.stderr)
        assert done.returncode == 0, done.stderr
        rows = store.read_rows(world.folder / out / "downloads.parquet", "downloads", Download)
        if all(download.accepted for download in rows):
            break  # a busy host may disturb a download, and there is one of each
    else:
        refused = [download for download in rows if not download.accepted]
        assert all(download.host_disturbance or download.void_reason for download in refused), refused
        pytest.skip(f"{TOO_NOISY}: downloads were disturbed")
    data = dataset.load([world.folder / out])
    all_, only = (api.make_tables(data, selection=one).document() for one in (DEFAULT, Selection(unlimited_only=True)))
    return all_, only


def row(document: dict[str, Any], name: str) -> dict[str, Any]:
    [found] = [entry for entry in document["table2"] if entry["comparison"] == name]
    return dict(found)


def test_a_calibration_is_stored_with_data_and_flags_the_downloads_of_one_client(world: faults.World) -> None:
    known = calibrated(world)
    slow = 12.0  # Mbit/s: on this path of 20, of a busy host, too, a client with this ceiling is near it
    change(world, "requests", ceiling_mbit_s=slow)
    near, only = tables(world, "near")
    [vantage] = json.loads((world.folder / "near" / "environment.json").read_text())["vantage_points"].values()
    kept = vantage["client_ceilings"]["clients"]
    assert {name: (entry["ceiling_mbit_s"], entry["stale"]) for name, entry in kept.items()} == {
        name: (rate, []) for name, rate in (known | {"requests": slow}).items()
    }
    rows = store.read_rows(world.folder / "near" / "downloads.parquet", "downloads", Download)
    rates = {
        client: [
            d.body_bytes * 8 / (d.last_byte_s - d.first_byte_s) / 1e6
            for d in rows
            if d.client == client and d.last_byte_s and d.first_byte_s
        ]
        for client in ("requests", "curl-h1")
    }
    # Those of curl-h1 are as high, but below 70 % of what it can do.
    assert [len(each) for each in rates.values()] == [OF_EACH_CLIENT, DOMAINS]
    assert all(CEILING_SHARE * slow < rate < 22 for each in rates.values() for rate in each), rates
    assert (near["client_ceilings"]["near"], near["client_ceilings"]["unknown"]) == ({"requests": OF_EACH_CLIENT}, 0)
    # A flag alone leaves nothing out; the option leaves out all.
    assert row(near, "curl-h3 vs BL")["n"] == DOMAINS and row(only, "curl-h3 vs BL")["excluded"] == DOMAINS
    assert row(near, "curl-h3 vs curl-h1")["n"] == row(only, "curl-h3 vs curl-h1")["n"]
    html = report.build(dataset.load([world.folder / "near"]), report.ReportOptions())
    assert "near its ceiling in curl-h3 vs BL, which may measure it; read curl-h3 vs curl-h1." in html
    assert f"(requests {OF_EACH_CLIENT}); --unlimited-only leaves them out" in html
    assert 'class="outcome-ok near-ceiling"' in html and "above 70 % of its client&#39;s ceiling" in html
    assert "Clients at high rates" in html


@pytest.mark.soak
def test_a_calibration_that_is_missing_far_or_stale(world: faults.World) -> None:
    downloads = 2 * OF_EACH_CLIENT + DOMAINS
    none, _ = tables(world, "none")
    assert (none["client_ceilings"]["near"], none["client_ceilings"]["unknown"]) == ({}, downloads)
    assert none["client_ceilings"]["reasons"] == {"not calibrated": ["curl-h1", "curl-h3", "requests"]}
    calibrated(world)
    far, only = tables(world, "far")
    assert (far["client_ceilings"]["near"], far["client_ceilings"]["unknown"]) == ({}, 0)
    assert [row(each, "curl-h3 vs BL")["n"] for each in (far, only)] == [DOMAINS, DOMAINS]
    # A new version of a client may have another ceiling: its own is stale, the other one's holds.
    change(world, "requests", versions={"requests": "0.0.1"})
    stale, _ = tables(world, "stale")
    assert (stale["client_ceilings"]["near"], stale["client_ceilings"]["unknown"]) == ({}, OF_EACH_CLIENT)
    [(reason, names)] = stale["client_ceilings"]["reasons"].items()
    assert names == ["requests"] and reason.startswith("stale: requests 0.0.1 -> ")


@dataclass(frozen=True)
class Ladder:
    """A calibration of all clients."""

    clients: Mapping[str, Sequence[Transfer]]
    noise: Sequence[Noise]
    """Just before and just after: on two cores a client and its server are busy enough between."""

    def at(self, client: str, packets: PacketForm) -> Transfer | None:
        """The fastest at `RATE_MBIT_S`, None where the client was never offered it."""
        return fastest(t for t in self.clients[client] if (t.packets, t.offered_mbit_s) == (packets, RATE_MBIT_S))

    def rate(self, client: str, packets: PacketForm) -> float:
        """Mbit/s at that rate, 0 without a transfer."""
        found = self.at(client, packets)
        return 0.0 if found is None else found.mbit_s or 0.0

    def cost(self, client: str, packets: PacketForm) -> float:
        """CPU-s/GB at that rate."""
        found = self.at(client, packets)
        return math.nan if found is None or found.client_cpu_s_per_gb is None else found.client_cpu_s_per_gb


def climb() -> Ladder:
    with host_noise() as before:
        time.sleep(2.0)
    began = time.monotonic()
    with show_progress() as progress:
        found = calibrate.measure(clients.ALL.values(), 1.0, progress=progress)
    seconds = time.monotonic() - began
    with host_noise() as after:
        time.sleep(2.0)
    print(os.getloadavg(), seconds, *fixed_rates.cells({one.client.name: one.document() for one in found}), sep="\n")
    return Ladder({one.client.name: one.transfers for one in found}, [*before, *after])


def astray(found: Ladder) -> list[str]:
    """What of a calibration no host explains: each figure is compared to one of TCP in the same calibration.

    At a rate that both reach: without a limit the costs of transfers of a fifth of a second differ by a factor of two
    from run to run. A client of QUIC at ordinary priority may wake late enough to lose a tenth of the rate.
    """
    wrong = []
    for packets in PacketForm:
        over = found.cost("curl-h3", packets) / found.cost("curl-h2", packets)
        wrong += [] if over >= 1.2 else [f"h3 over h2, {packets.value}: {over:.2f}"]
        tcp = found.rate("curl-h1", packets)
        wrong += [] if 0 < tcp <= RATE_MBIT_S else [f"curl-h1, {packets.value}: {tcp:.0f} of {RATE_MBIT_S:.0f} Mbit/s"]
        for name in found.clients.keys() - {"requests", "aioquic"}:
            rate = found.rate(name, packets)
            wrong += [] if rate >= 0.8 * tcp else [f"{name}, {packets.value}: {rate:.0f}, TCP {tcp:.0f} Mbit/s"]
    rates = [
        fastest(t for t in found.clients[name] if t.packets is PacketForm.SINGLE) for name in ("curl-h1", "requests")
    ]
    h1, own = (0.0 if one is None or one.mbit_s is None else one.mbit_s for one in rates)
    return [*wrong, *([] if h1 >= 2 * own > 0 else [f"curl-h1 {h1:.0f}, requests {own:.0f} Mbit/s"])]


def excuse(found: Ladder) -> str | None:
    return next((said for one in found.noise if (said := one.excuse)), None)


@pytest.mark.measures
@pytest.mark.soak
def test_all_clients_at_fixed_rates() -> None:
    measured(climb, astray, excuse=excuse)
