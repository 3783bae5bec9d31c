"""`upshift doctor` on this very host; its probes and calibration run in private namespaces."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from downloader import clients
from vantage.host.undo_log import module_environment

pytestmark = pytest.mark.lab

PROGRAM = "import typer; from upshift.commands.doctor import doctor; typer.run(doctor)"


def run_doctor(state: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **module_environment(), "UPSHIFT_STATE_DIR": str(state)}
    argv = [sys.executable, "-c", PROGRAM, *arguments]
    return subprocess.run(argv, capture_output=True, text=True, env=env, timeout=120)


def test_the_document_and_the_exit_code_agree(tmp_path: Path) -> None:
    done = run_doctor(tmp_path, "--quick", "--json", "--out", str(tmp_path / "not" / "there"))
    document = json.loads(done.stdout)
    assert document["schema"] == 2 and document["ceilings"] is None
    assert done.returncode == (0 if document["lab_can_run"] else 1)
    names = {finding["name"] for finding in document["findings"]}
    assert {f"client {name}" for name in clients.ALL} <= names
    assert {f"server {name}" for name in ("caddy", "nginx", "quiche")} <= names
    assert {"namespaces", "TUN devices", "captures", "NAT", "raw sockets", "window scale", "leftovers"} <= names
    assert not [f for f in document["findings"] if f["status"] == "cannot" and not f["remedy"]]
    assert (tmp_path / "host").exists() is False  # looking leaves nothing


def test_a_campaign_has_a_verdict_of_its_own(tmp_path: Path) -> None:
    done = run_doctor(tmp_path, "--quick", "--json", "--for", "campaign", "--uplink", "none0")
    document = json.loads(done.stdout)
    against = {f["name"] for f in document["findings"] if f["campaign"] and f["status"] != "ok"}
    assert {"client ceilings", "uplink"} <= against  # nothing is calibrated, and there is no such interface
    assert done.returncode == 1 and document["campaign_can_run"] is False
    assert document["uplink"] == {"fault": document["uplink"]["fault"], "name": None, "addresses": []}
    people = run_doctor(tmp_path, "--quick", "--for", "campaign", "--uplink", "lo")
    assert people.returncode == 1 and "No campaign should run here: fix client ceilings" in people.stdout


def test_a_table_for_people(tmp_path: Path) -> None:
    done = run_doctor(tmp_path, "--quick")
    assert "Python" in done.stdout and "lab can" in done.stdout
    assert "\x1b" not in done.stdout


PORT_443 = """
import subprocess, sys
from vantage.doctor.calibrate import Pair
with Pair() as pair:
    code = "import socket; print(socket.create_server(('198.19.255.1', 443)).getsockname()[1])"
    subprocess.run([*pair.server_prefix, sys.executable, "-c", code], check=True)
"""


def test_servers_of_the_calibration_need_no_right_to_their_port() -> None:
    """A vantage point's service has none."""
    rights = ["setpriv", "--inh-caps=-net_bind_service", "--bounding-set=-net_bind_service", "--"]
    argv = [*rights, "unshare", "--net", "--", sys.executable, "-c", PORT_443]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == "443\n", done.stderr


def test_without_ceilings_the_doctor_says_how_to_get_them(tmp_path: Path) -> None:
    said = json.loads(run_doctor(tmp_path, "--quick", "--json").stdout)
    [finding] = [entry for entry in said["findings"] if entry["name"] == "client ceilings"]
    assert f"{', '.join(clients.ALL)} (not calibrated)" in finding["says"]
    refused = run_doctor(tmp_path, "--ceilings")
    assert refused.returncode == 2
