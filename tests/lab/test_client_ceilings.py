"""Ceilings from the calibration of this host to the tables of a campaign: measured, stored with data, applied."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from analysis.measures.ceilings import CEILING_SHARE
from core.domain import Download
from core.files import store
from downloader import clients
from tests.lab import _fault_world as faults
from tests.lab.noise import Noise, host_noise, measured
from tests.lab.test_host_doctor import run_doctor
from tests.topologies import server, topology
from vantage.doctor import checks as doctor
from vantage.doctor.gather import gather

pytestmark = pytest.mark.lab

LATE_S = 0.1
DOMAINS = 2
OF_EACH_CLIENT = 2 * DOMAINS
"""BL and quiche, and the warm-up of each transport."""


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A state folder with a calibration of this host, and what the command printed."""

    def once() -> tuple[Path, subprocess.CompletedProcess[str], Noise]:
        state = tmp_path_factory.mktemp("state")
        with host_noise() as noise:
            done = run_doctor(state, "--calibrate", "--seconds", "0.3", "--quick", "--json")
        return state, done, noise[0]

    def cut_short(found: tuple[Path, subprocess.CompletedProcess[str], Noise]) -> list[str]:
        known = json.loads(found[1].stdout)["ceilings"]["clients"]
        return [f"{name}: {t['fault']}" for name, one in known.items() for t in one["transfers"] if t["fault"]]

    state, done, _ = measured(once, cut_short, excuse=lambda found: found[2].excuse)
    return state, done


def test_each_client_has_a_ceiling_here(calibrated: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    facts = gather(Path(), clients.ALL.values(), ceilings={}, sample_s=0.0)
    assert doctor.lab_can_run(doctor.examine(facts)), "the lab cannot run here: see upshift doctor"
    _, done = calibrated
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["ceilings"]["clients"].keys() == clients.ALL.keys()
    for name, found in document["ceilings"]["clients"].items():
        assert (found["fault"], found["stale"]) == (None, [])
        # A core would carry more than 40 Mbit/s: what others leave of it is the host's matter.
        assert found["ceiling_mbit_s"] > 0 and 0.1 < found["client_cpu_s_per_gb"] < 8000 / 40
        assert found["limit"] in {"client", "server", "neither"}
        assert 0 < found["client_core_share"] < 1.5 and 0 < found["server_core_share"] < 1.5
        free = [transfer for transfer in found["transfers"] if transfer["offered_mbit_s"] is None]
        limited = [transfer for transfer in found["transfers"] if transfer["offered_mbit_s"] is not None]
        assert {t["server"] for t in free} == ({"nginx", "caddy"} if found["transport"] == "tcp" else {"quiche"})
        assert {t["server"] for t in limited} == {max(free, key=lambda t: t["mbit_s"])["server"]}
        offered = [transfer["offered_mbit_s"] for transfer in limited]
        assert offered == sorted(offered) and offered[-1] == pytest.approx(max(t["mbit_s"] for t in free))
        # The bucket holds: body bytes are less than the frames that are let through, but for its first burst and for
        # what waited in the socket where a busy host let the client read its first byte late.
        for one in limited:
            let_through = 1.1 * one["offered_mbit_s"] * (one["seconds"] + LATE_S)
            assert one["mbit_s"] * one["seconds"] < let_through, (name, one)
    [finding] = [entry for entry in document["findings"] if entry["name"] == "client ceilings"]
    assert finding["status"] == ("warn" if document["ceilings"]["busy_share"] > doctor.BUSY_LIMIT else "ok")
    lines = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    assert lines[-1]["task"] == "calibrate" and lines[-1]["done"] == lines[-1]["total"]
    assert not list(Path(tempfile.gettempdir()).glob("upshift-ceilings-*/*.json")), "files are left"


def test_the_calibration_is_kept_and_goes_stale(
    calibrated: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    """Another kernel, here written into the file: the doctor says so, and how to mend it."""
    path = tmp_path / "ceilings.json"
    document = json.loads((calibrated[0] / "ceilings.json").read_text())
    document["circumstances"]["kernel"] = "4.4.0"
    path.write_text(json.dumps(document))
    said = json.loads(run_doctor(tmp_path, "--quick", "--json").stdout)
    [finding] = [entry for entry in said["findings"] if entry["name"] == "client ceilings"]
    assert finding["status"] == "warn" and f"kernel 4.4.0 -> {platform.release()}" in finding["says"]
    assert finding["remedy"] == "run: upshift doctor --calibrate"


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


def test_a_calibration_is_stored_with_data_and_flags_downloads(
    world: faults.World, calibrated: tuple[Path, subprocess.CompletedProcess[str]]
) -> None:
    none = campaign(world, "none")
    assert none["client_ceilings"]["near"] == {} and none["client_ceilings"]["unknown"] == 2 * OF_EACH_CLIENT
    assert none["client_ceilings"]["reasons"] == {"not calibrated": ["quiche", "requests"]}

    kept = json.loads(calibrated[1].stdout)["ceilings"]["clients"]
    rates = {name: entry["ceiling_mbit_s"] for name, entry in kept.items()}

    # Rates of 20 Mbit/s are far below what one client can do, but near the ceiling of the other.
    shutil.copyfile(calibrated[0] / "ceilings.json", stored(world))
    fast, slow = 100.0, 22.0
    change(world, "requests", ceiling_mbit_s=fast)
    change(world, "quiche", ceiling_mbit_s=slow)
    near = campaign(world, "near")
    [vantage] = json.loads((world.folder / "near" / "environment.json").read_text())["vantage_points"].values()
    kept = vantage["client_ceilings"]["clients"]
    assert {name: (entry["ceiling_mbit_s"], entry["stale"]) for name, entry in kept.items()} == {
        name: (rate, []) for name, rate in {**rates, "requests": fast, "quiche": slow}.items()
    }
    rows = store.read_rows(world.folder / "near" / "downloads.parquet", "downloads", Download)
    seen = [
        d.body_bytes * 8 / (d.last_byte_s - d.first_byte_s) / 1e6
        for d in rows
        if d.client == "quiche" and d.last_byte_s and d.first_byte_s
    ]
    assert len(seen) == OF_EACH_CLIENT and all(CEILING_SHARE * slow < rate < slow for rate in seen), seen
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
    # What is not known to be near one is not left out.
    assert row(stale)["n"] == row(stale["only"])["n"]
