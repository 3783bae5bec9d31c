"""The lab section of the README, run as it stands there (calibrate with --quick)."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab import _fault_world as faults
from tests.lab import ordinary_user
from tests.lab.noise import measured

pytestmark = [pytest.mark.lab, pytest.mark.measures]

README = Path(__file__).resolve().parents[2] / "README.md"


@pytest.fixture
def world(lab_host: Path, tmp_path: Path) -> Iterator[Any]:
    made = faults.World(tmp_path)
    yield made
    made.clean()


def test_the_lab_section(world: Any) -> None:
    section = README.read_text(encoding="utf-8").partition("## The lab\n")[2].partition("\n## ")[0]
    lines = re.findall(r"^    upshift (lab .*?)(?:\s{2,}#.*)?$", section, re.M)
    assert [line.split()[1] for line in lines] == ["up", "exec", "calibrate", "down"]
    up, execute, calibrate, down = (shlex.split(line) for line in lines)
    assert (done := world.upshift(*up)).returncode == 0, done.stderr
    shown = world.upshift(*execute)
    assert shown.returncode == 0 and re.match(r"HTTP/[\d.]+ 200", shown.stdout), (shown.stdout, shown.stderr)
    done = measured(
        lambda: world.upshift(*calibrate, "--quick"),
        lambda done: [] if done.returncode == 0 else [done.stdout + done.stderr],
        excuse=lambda done: "noisy" if done.returncode == 3 else None,
    )
    assert "The lab is right." in done.stdout
    assert world.upshift(*down).stdout == "Removed: small.\n"


USER = 65_533


@pytest.fixture
def home(lab_host: Path) -> Iterator[Any]:
    """A world in the home of an ordinary user."""
    folder = lab_host / "home"
    folder.mkdir()
    lab_host.chmod(0o755)
    os.chown(folder, USER, USER)
    made = faults.World(folder)
    yield made
    made.clean()


@pytest.mark.soak  # two campaigns: minutes
@pytest.mark.usefixtures("root")
def test_the_campaign_section(home: Any) -> None:
    """Line by line, as a user with sudo types it; what sudo has made is the user's."""
    section = README.read_text(encoding="utf-8").partition("## A campaign\n")[2].partition("\n## ")[0]
    lines = re.findall(r"^    ((?:sudo )?upshift .*?)(?:\s{2,}#.*)?$", section, re.M)
    assert [shlex.split(line.removeprefix("sudo "))[1] for line in lines] == [
        *("plan", "run", "status", "tables", "report", "run", "compare")
    ]
    (home.folder / "examples").symlink_to(README.parent / "examples")
    by_sudo = {**home.environment, "SUDO_UID": str(USER), "SUDO_GID": str(USER)}
    as_user = ordinary_user.prefix(USER)
    by_user = {**home.environment, "HOME": str(home.folder), "TMPDIR": str(home.folder)}
    for line in lines:
        as_root = line.startswith("sudo ")
        words = shlex.split(line.removeprefix("sudo "))[1:]
        done = home.upshift(*words, env=by_sudo if as_root else by_user, prefix=() if as_root else as_user)
        # A busy host may void runs: that is an exit code of its own, and no fault of the command.
        assert done.returncode == 0 or "not usable" in done.stderr, (line, done.stdout, done.stderr)
        if as_root:
            made = list((home.folder / line.split()[-1]).rglob("*"))
            assert made and {path.lstat().st_uid for path in made} == {USER}
