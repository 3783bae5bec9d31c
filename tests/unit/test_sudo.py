"""Results belong to the user who called sudo."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from core.files.disk import folder_lock, give_to_caller, make_folder, write_text

USER, OTHER = 65_533, 65_532

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="sudo makes root of a user")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the user who calls sudo."""
    monkeypatch.setenv("SUDO_UID", str(USER))
    monkeypatch.setenv("SUDO_GID", str(USER))
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, USER, USER)
    return home


def owners(folder: Path) -> dict[str, int]:
    """Path -> owner of all that is in a folder."""
    return {str(path.relative_to(folder)): path.lstat().st_uid for path in folder.rglob("*")}


def test_all_of_a_campaigns_folder_is_the_callers(home: Path) -> None:
    with folder_lock(home / "deep" / "first"):
        captures = home / "deep" / "first" / "vantage" / "MUC" / "captures"
        captures.mkdir(parents=True)
        (captures / "1.pcap").write_bytes(b"x")
    write_text(home / "deep" / "first" / "figures" / "a.svg", "<svg/>")
    write_text(home / "list.csv", "a\n")
    assert set(owners(home).values()) == {USER} and len(owners(home)) == 10


def test_what_was_in_a_folder_before_does_not_change_hands(home: Path, tmp_path: Path) -> None:
    """As with `--out /tmp`, the second time, too."""
    there = tmp_path / "etc"
    there.mkdir()
    (there / "shadow").write_text("root's")
    for name in ("1.pcap", "2.pcap"):
        with folder_lock(there):
            (there / "vantage").mkdir(exist_ok=True)
            (there / "vantage" / name).write_bytes(b"x")
    ours = {".lock": USER, "vantage": USER, "vantage/1.pcap": USER, "vantage/2.pcap": USER}
    assert owners(there) == ours | {"shadow": 0} and there.stat().st_uid == 0


def test_nothing_else_changes_hands(home: Path, tmp_path: Path) -> None:
    out = home / "out"
    make_folder(out)
    (tmp_path / "secret").write_text("root's")
    (out / "link").symlink_to(tmp_path / "secret")
    os.link(tmp_path / "secret", out / "second-name")
    (out / "theirs").write_text("x")
    os.chown(out / "theirs", OTHER, OTHER)
    (home / "elsewhere").symlink_to(tmp_path)
    give_to_caller(out)
    give_to_caller(home / "elsewhere")
    assert owners(out) == {"link": 0, "second-name": 0, "theirs": OTHER} and (tmp_path / "secret").stat().st_uid == 0
    os.chown(home, OTHER, OTHER)  # a folder of somebody else: what root writes there stays root's
    write_text(home / "x", "x")
    assert (home / "x").stat().st_uid == 0


def test_without_sudo_results_are_roots(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SUDO_UID")
    with folder_lock(home / "first"):
        write_text(home / "first" / "a", "a")
    assert set(owners(home).values()) == {0}
