"""`scripts/browser`, which `make test` and `make soak` call: Chromium by apt where apt has it, else a sentence."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


def run(folder: Path, programs: dict[str, str]) -> tuple[str, list[str]]:
    """Runs it with only these programs, which note how they were called; its output and the calls."""
    calls = folder / "calls"
    calls.touch()
    for name in ("bash", "env", "grep"):
        (folder / name).symlink_to(shutil.which(name) or name)
    for name, body in programs.items():
        (folder / name).write_text(f'#!/bin/bash\necho "{name} $*" >> {calls}\n{body}\n')
        (folder / name).chmod(0o755)
    done = subprocess.run(
        [REPOSITORY / "scripts" / "browser"], env={"PATH": str(folder)}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, calls.read_text().splitlines()


def policy(candidate: str) -> str:
    return f"echo 'chromium:'; echo '  Candidate: {candidate}'"


def test_an_installed_chromium_is_left_alone(tmp_path: Path) -> None:
    assert run(tmp_path, {"chromium": "", "apt-get": "exit 1"}) == ("", [])


def test_debian_has_a_package(tmp_path: Path) -> None:
    said, calls = run(tmp_path, {"id": "echo 0", "apt-get": "", "apt-cache": policy("140.0-1")})
    assert calls[-1] == "apt-get install -y -qq --no-install-recommends chromium"
    assert said.count("== ") == 1


def test_users_install_by_sudo(tmp_path: Path) -> None:
    programs = {"id": "echo 1000", "sudo": '"$@"', "apt-get": "", "apt-cache": policy("140.0-1")}
    assert any(call.startswith("sudo env") for call in run(tmp_path, programs)[1])


@pytest.mark.parametrize(
    "programs",
    [
        {},
        {"id": "echo 0", "apt-get": "", "apt-cache": policy("(none)")},
        {"id": "echo 0", "apt-get": "", "apt-cache": ""},
        {"id": "echo 0", "apt-get": "exit 100", "apt-cache": policy("140.0-1")},
    ],
    ids=["no apt", "no candidate, as on Ubuntu", "no such package", "apt fails"],
)
def test_without_a_package_the_tests_are_skipped(tmp_path: Path, programs: dict[str, str]) -> None:
    said, calls = run(tmp_path, programs)
    assert said.splitlines()[-1].endswith("the report's browser tests are skipped")
    assert not any("install" in call and "exit 100" not in programs["apt-get"] for call in calls)


def test_make_test_installs_it_and_make_demo_does_not() -> None:
    def commands(target: str) -> str:
        made = subprocess.run(["make", "--dry-run", target], cwd=REPOSITORY, capture_output=True, text=True, check=True)
        return made.stdout

    assert "scripts/browser" in commands("test") and "scripts/browser" not in commands("demo")
