"""The installer of a bundle on a disk that is full, or gets full."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from tests.small_bundle import run, unpacked

pytestmark = pytest.mark.lab

ON_A_SMALL_DISK = r"""
mount -t tmpfs -o {options} tmpfs {disk}
set +e
for bundle in "$@"; do {python} "$bundle/install.py" --root {disk}/root; echo "exit code $?"; done
for one in {disk}/root/releases/*; do test -e "$one/manifest.json" && echo whole || echo half; done
{disk}/root/current/bin/small-version
"""


def install_both(tmp_path: Path, second: Path, options: str) -> tuple[list[str], str]:
    first, disk = unpacked(tmp_path, "1"), tmp_path / "disk"
    disk.mkdir()
    script = ON_A_SMALL_DISK.format(options=options, disk=disk, python=shlex.quote(sys.executable))
    done = run(
        ["unshare", "--user", "--map-root-user", "--mount", "--", "sh", "-ec", script, "sh", str(first), str(second)]
    )
    return done.stdout.splitlines(), done.stderr


def test_a_disk_without_room_is_refused_before_anything_is_changed(tmp_path: Path) -> None:
    lines, said = install_both(tmp_path, unpacked(tmp_path, "2", padding=40_000_000), "size=32m")
    assert lines[1:] == ["exit code 0", "exit code 75", "whole", "1"], said
    assert "has 3" in said and "the release needs 50 MB; free some space there" in said
    assert said.count("\n") == 1


@pytest.mark.soak
def test_a_disk_that_gets_full_keeps_the_earlier_release(tmp_path: Path) -> None:
    """The blocks suffice, and the inodes do not, which only shows while pip writes."""
    lines, said = install_both(tmp_path, unpacked(tmp_path, "2", modules=300), "size=64m,nr_inodes=200")
    assert lines[1:] == ["exit code 0", "exit code 75", "whole", "1"], said
    assert "No space left on device" in said
    assert said.count("\n") == 1
