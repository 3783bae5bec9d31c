"""`scripts/nginx-http3`, which `make setup` calls: Debian 13's nginx beside the system's, or a sentence."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "nginx-http3"
NEW = "echo nginx version: nginx/1.26.3 >&2; echo --with-http_v3_module $* >&2"
OLD = "echo nginx version: nginx/1.22.1 >&2"
OFFLINE = "echo \"E: Could not resolve 'deb.debian.org'\" >&2; exit 100"


class Checkout:
    """A checkout whose nginx and apt-get are ours, in a path with a space."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "a checkout"
        for name in ("scripts", "bin", ".venv/bin"):
            (self.folder / name).mkdir(parents=True)
        shutil.copy(SCRIPT, self.folder / "scripts" / SCRIPT.name)
        self.started = self.folder / ".venv" / "bin" / "nginx-http3"

    def program(self, path: str, body: str) -> Path:
        program = self.folder / path
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(f"#!/bin/bash\n{body}\n")
        program.chmod(0o755)
        return program

    def run(self, *, nginx: str, apt: str) -> str:
        """What the script says."""
        self.program("bin/nginx", nginx)
        self.program("bin/apt-get", apt)
        path = f"{self.folder}/bin:/usr/bin:/bin"
        environment = {"PATH": path, "HOME": str(self.folder), "XDG_CACHE_HOME": f"{self.folder}/the cache"}
        script = self.folder / "scripts" / SCRIPT.name
        done = subprocess.run([script], env=environment, capture_output=True, text=True, timeout=60, check=True)
        assert not list(self.folder.glob("the cache/upshift/nginx-http3/*.part")) and not done.stderr
        return done.stdout


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_a_system_that_has_it_is_left_alone(checkout: Checkout) -> None:
    assert checkout.run(nginx=NEW, apt=OFFLINE) == "" and not checkout.started.exists()


def test_without_a_network_it_is_a_sentence(checkout: Checkout) -> None:
    said = checkout.run(nginx=OLD, apt=OFFLINE).splitlines()[-1]
    assert said.endswith("the lab has no quic_server = \"nginx\": E: Could not resolve 'deb.debian.org'")
    assert not checkout.started.exists()


def test_packages_are_unpacked_once_and_start_by_their_own_loader(checkout: Checkout) -> None:
    root = checkout.folder / "root"
    checkout.program("root/usr/sbin/nginx", NEW)
    checkout.program("root/usr/lib/any/ld-linux-any.so.2", '[ "$1" = --library-path ] && shift 2 && exec "$@"')
    (root / "DEBIAN").mkdir()
    (root / "DEBIAN" / "control").write_text(
        "Package: nginx\nVersion: 1\nArchitecture: all\nMaintainer: a\nDescription: a\n"
    )
    apt = f'[[ $* != *download* ]] || dpkg-deb --build "{root}" nginx.deb >/dev/null'
    assert checkout.run(nginx=OLD, apt=apt).count("== ") == 1
    done = subprocess.run([checkout.started, "one", "two"], capture_output=True, text=True, check=True)
    assert "nginx/1.26.3" in done.stderr and "one two" in done.stderr
    assert checkout.run(nginx=OLD, apt=OFFLINE) == "", "the cache has it"
