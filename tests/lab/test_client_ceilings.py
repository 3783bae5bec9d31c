"""Ceilings from the calibration of this host to the tables of a campaign: measured, stored with data, applied."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from analysis import api
from analysis.measures import dataset
from analysis.measures.ceilings import CEILING_SHARE
from analysis.measures.selection import DEFAULT, Selection
from analysis.report import report
from core.domain import Download
from core.files import store
from core.files.ladder import Packets
from core.terminal import show_progress
from downloader import clients
from tests.lab import _fault_world as faults
from tests.topologies import server, topology
from vantage.doctor import calibrate, ceilings

pytestmark = pytest.mark.lab

DOMAINS = 1
OF_EACH_CLIENT = 2 * DOMAINS
"""BL and curl-h3, and the warm-up of each transport."""

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
    with show_progress() as progress:
        found = calibrate.measure(chosen, 0.1, rates=(), packets=[Packets.SINGLE], progress=progress)
    stored(world).parent.mkdir(exist_ok=True)
    now = ceilings.circumstances()
    ceilings.save(found, path=stored(world), now=now, measured_at="2026-11-24", seconds=0.1, busy_share=0.0)
    rates: dict[str, float] = {one.client.name: one.document()["ceiling_mbit_s"] for one in found}
    assert all(rate > 40 for rate in rates.values()), f"the host is too busy: {rates}"
    return rates


def tables(world: faults.World, out: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The tables of a campaign, which is run, as plain data; and those without what is near a ceiling."""
    done = world.upshift("run", "c.toml", "--out", out, "--json")
    assert done.returncode == 0, done.stderr
    data = dataset.load([world.folder / out])
    all_, only = (api.make_tables(data, selection=one).document() for one in (DEFAULT, Selection(unlimited_only=True)))
    return all_, only


def row(document: dict[str, Any], name: str) -> dict[str, Any]:
    [found] = [entry for entry in document["table2"] if entry["comparison"] == name]
    return dict(found)


def test_a_calibration_is_stored_with_data_and_flags_the_downloads_of_one_client(world: faults.World) -> None:
    measured = calibrated(world)
    slow = 22.0  # Mbit/s: the path of 20 is near the ceiling of a client that can do no more
    change(world, "requests", ceiling_mbit_s=slow)
    near, only = tables(world, "near")
    [vantage] = json.loads((world.folder / "near" / "environment.json").read_text())["vantage_points"].values()
    kept = vantage["client_ceilings"]["clients"]
    assert {name: (entry["ceiling_mbit_s"], entry["stale"]) for name, entry in kept.items()} == {
        name: (rate, []) for name, rate in (measured | {"requests": slow}).items()
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
    assert all(CEILING_SHARE * slow < rate < slow for each in rates.values() for rate in each), rates
    assert (near["client_ceilings"]["near"], near["client_ceilings"]["unknown"]) == ({"requests": OF_EACH_CLIENT}, 0)
    # A flag alone leaves nothing out (a busy host may disturb a run); the option leaves out all.
    assert row(near, "curl-h3 vs BL")["n"] > 0 and row(only, "curl-h3 vs BL")["excluded"] == DOMAINS
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
