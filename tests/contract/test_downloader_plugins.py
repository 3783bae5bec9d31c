"""A factor and a client of an existing program, each one new file and nothing else, appear everywhere."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.contract._package_copy import copy_packages

FACTOR = '''"""Delayed loss recovery (RFC 8985)."""

from downloader.factors import ON_OFF, Factor
from core.domain import Refutation, Setting, Sysctl, Wire


def _settings(level: str) -> tuple[Setting, ...]:
    return (Sysctl(name="net.ipv4.tcp_recovery", value="1" if level == "on" else "0"),)


def _proof(level: str, wire: Wire) -> Refutation | None:
    return None


RACK = Factor(
    name="rack", label="RACK", help="Loss recovery by time.", levels=ON_OFF, default="on", settings=_settings,
    proof=_proof,
)
'''

CLIENT = '''"""aioquic with a small window."""

from dataclasses import replace

from downloader.client import DownloadRequest, common_arguments
from downloader.clients.aioquic import AIOQUIC as _AIOQUIC


def _arguments(request: DownloadRequest) -> list[str]:
    return [*common_arguments(request), "--max-data", "65535"]


SMALL = replace(_AIOQUIC, name="aioquic-small", help="HTTP/3 with a window of 64 KiB.", arguments=_arguments)
'''

SHOW = """
import json, sys
from pathlib import Path
from core.domain import Configuration
from downloader import clients, factors
from downloader.campaign.configurations import recorded, settings_for
from downloader.campaign.campaign import load
campaign = load(Path(sys.argv[1]))
off = Configuration(name="x", client="requests", levels={"rack": "off"})
print(json.dumps({
    "factors": list(factors.ALL),
    "clients": list(clients.ALL),
    "configurations": [c.name for c in campaign.configurations],
    "levels": dict(recorded(campaign.configurations[0]).levels),
    "settings": sorted(s.name for s in settings_for(off)),
}))
"""


def test_one_file_each(tmp_path: Path) -> None:
    copy_packages(tmp_path, {}, only=("upshift", "downloader"))
    (tmp_path / "downloader/factors/rack.py").write_text(FACTOR)
    (tmp_path / "downloader/clients/aioquic_small.py").write_text(CLIENT)
    (tmp_path / "c.toml").write_text(
        'name = "c"\nlab = "small"\ntargets = "lab"\npermute = ["sack", "rack"]\n'
        '[[configurations]]\nname = "tiny"\nclient = "aioquic-small"\n'
    )
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {SHOW}", str(tmp_path / "c.toml")],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert "rack" in seen["factors"] and "aioquic-small" in seen["clients"]
    assert seen["configurations"] == ["RACK-off", "BL", "BL2", "SACK+RACK-off", "SACK", "tiny"]
    assert seen["levels"]["rack"] == "off" and seen["levels"]["timestamps"] == "on"
    assert "net.ipv4.tcp_recovery" in seen["settings"]


def test_a_fault_in_a_plug_in_names_the_module(tmp_path: Path) -> None:
    copy_packages(tmp_path, {}, only=("upshift", "downloader"))
    for text, said in (("", "rack holds no Factor"), (FACTOR.replace('"rack"', '"sack"'), "two Factors named 'sack'")):
        (tmp_path / "downloader/factors/rack.py").write_text(text)
        code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nfrom downloader import factors\nlist(factors.ALL)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 1 and said in done.stderr
