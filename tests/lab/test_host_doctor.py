"""`upshift doctor` on this very host; its probes and ceilings run in private namespaces."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from downloader import clients
from vantage.doctor import ceilings as host_ceilings
from vantage.doctor import checks as doctor
from vantage.doctor import facts as host_facts
from vantage.host.undo_log import module_environment

pytestmark = pytest.mark.lab

PROGRAM = "import typer; from upshift.compose.doctor import doctor; typer.run(doctor)"


def run_doctor(state: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **module_environment(), "UPSHIFT_STATE_DIR": str(state)}
    argv = [sys.executable, "-c", PROGRAM, *arguments]
    return subprocess.run(argv, capture_output=True, text=True, env=env, timeout=120)


def test_the_document_and_the_exit_code_agree(tmp_path: Path) -> None:
    done = run_doctor(tmp_path, "--quick", "--json", "--out", str(tmp_path / "not" / "there"))
    document = json.loads(done.stdout)
    assert document["schema"] == 1 and document["ceilings"] == []
    assert done.returncode == (0 if document["lab_can_run"] else 1)
    names = {finding["name"] for finding in document["findings"]}
    assert {f"client {name}" for name in clients.ALL} <= names
    assert {"namespaces", "TUN devices", "captures", "NAT", "window scale", "leftovers"} <= names
    assert not [f for f in document["findings"] if f["status"] == "cannot" and not f["remedy"]]
    assert (tmp_path / "host").exists() is False  # looking leaves nothing


def test_a_table_for_people(tmp_path: Path) -> None:
    done = run_doctor(tmp_path, "--quick")
    assert "Python" in done.stdout and "lab can" in done.stdout
    assert "\x1b" not in done.stdout


def test_each_client_has_a_ceiling_here() -> None:
    facts = host_facts.gather(Path(), clients.ALL.values(), sample_s=0.0)
    assert doctor.lab_can_run(doctor.examine(facts)), "the lab cannot run here: see upshift doctor"
    found = {ceiling.client: ceiling for ceiling in host_ceilings.measure(clients.ALL.values(), 1.0)}
    assert list(found) == list(clients.ALL)
    for ceiling in found.values():
        assert ceiling.fault is None
        assert ceiling.mbit_s is not None and ceiling.mbit_s > 10
        assert ceiling.cpu_s_per_gb is not None and ceiling.cpu_s_per_gb > 0.1
