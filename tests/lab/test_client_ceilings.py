"""Ceilings from the calibration of this host to the tables of a campaign: measured, stored with data, applied."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from analysis.measures.ceilings import CEILING_SHARE
from core.domain import Download
from core.files import store
from downloader import clients
from tests.lab import _fault_world as faults
from tests.topologies import server, topology

pytestmark = pytest.mark.lab

DOMAINS = 2
OF_EACH_CLIENT = 2 * DOMAINS
"""BL and quiche, and the warm-up of each transport."""


@pytest.fixture
def world(lab_host: Path, tmp_path: Path) -> Iterator[faults.World]:
    made = faults.World(tmp_path)
    servers = [
        server(f"s{number}", f"www.{number}.example", size="1 MB", path="rtt_ms = 4, rate_mbit = 20")
        for number in range(DOMAINS)
    ]
    made.write("ceilings.toml", topology("ceilings", *servers, seed=5))
    made.campaign(tmp_path / "ceilings.toml")
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


def campaign(world: faults.World, out: str) -> dict[str, Any]:
    """Runs it, and gives its tables as plain data; without those near a ceiling as `only`."""
    done = world.upshift("run", "c.toml", "--out", out, "--json")
    assert done.returncode == 0, done.stderr
    shown = [world.upshift("tables", out, "--json", *more) for more in ((), ("--unlimited-only",))]
    assert [each.returncode for each in shown] == [0, 0], shown
    told: dict[str, Any] = json.loads(shown[0].stdout)
    return told | {"only": json.loads(shown[1].stdout)}


def row(document: dict[str, Any]) -> dict[str, Any]:
    [found] = [entry for entry in document["table2"] if entry["comparison"] == "quiche vs BL"]
    return dict(found)


def test_a_calibration_is_stored_with_data_and_flags_downloads(world: faults.World) -> None:
    none = campaign(world, "none")
    assert none["client_ceilings"]["near"] == {} and none["client_ceilings"]["unknown"] == 2 * OF_EACH_CLIENT
    assert none["client_ceilings"]["reasons"] == {"not calibrated": ["quiche", "requests"]}

    done = world.upshift("doctor", "--calibrate", "--seconds", "0.3", "--quick", "--json")
    assert done.returncode == 0, done.stderr
    measured = {name: entry["ceiling_mbit_s"] for name, entry in json.loads(done.stdout)["ceilings"]["clients"].items()}
    assert measured.keys() == clients.ALL.keys()

    # Rates of 20 Mbit/s are far below what any client can do.
    far = campaign(world, "far")
    [vantage] = json.loads((world.folder / "far" / "environment.json").read_text())["vantage_points"].values()
    kept = vantage["client_ceilings"]["clients"]
    assert {name: (entry["ceiling_mbit_s"], entry["stale"]) for name, entry in kept.items()} == {
        name: (rate, []) for name, rate in measured.items()
    }
    assert all(rate > 40 for rate in measured.values()), f"the host is too busy: {measured}"
    assert (far["client_ceilings"]["near"], far["client_ceilings"]["unknown"]) == ({}, 0)
    assert row(far)["n"] == row(far["only"])["n"]

    # The same path is near the ceiling of a client that can do no more than it.
    slow = 22.0
    change(world, "quiche", ceiling_mbit_s=slow)
    near = campaign(world, "near")
    rows = store.read_rows(world.folder / "near" / "downloads.parquet", "downloads", Download)
    rates = [
        d.body_bytes * 8 / (d.last_byte_s - d.first_byte_s) / 1e6
        for d in rows
        if d.client == "quiche" and d.last_byte_s and d.first_byte_s
    ]
    assert len(rates) == OF_EACH_CLIENT and all(CEILING_SHARE * slow < rate < slow for rate in rates), rates
    assert (near["client_ceilings"]["near"], near["client_ceilings"]["unknown"]) == ({"quiche": OF_EACH_CLIENT}, 0)
    # A flag alone leaves nothing out (a busy host may disturb a run); the option leaves out all.
    assert row(near)["n"] > 0 and row(near)["n"] + row(near)["excluded"] == DOMAINS
    assert (row(near["only"])["n"], row(near["only"])["excluded"]) == (0, DOMAINS)
    page = world.upshift("report", "near")
    assert page.returncode == 0, page.stderr
    html = (world.folder / "near" / "report" / "index.html").read_text()
    assert f"(quiche {OF_EACH_CLIENT}); --unlimited-only leaves them out" in html
    assert 'class="outcome-ok near-ceiling"' in html and "above 70 % of its client&#39;s ceiling" in html

    # A new version of a client may have another ceiling: its own is stale, the other one's holds.
    change(world, "quiche", versions={"upshift-h3get": "0.0.1"})
    stale = campaign(world, "stale")
    assert (stale["client_ceilings"]["near"], stale["client_ceilings"]["unknown"]) == ({}, OF_EACH_CLIENT)
    [(reason, names)] = stale["client_ceilings"]["reasons"].items()
    assert names == ["quiche"] and reason.startswith("stale: upshift-h3get 0.0.1 -> ")
