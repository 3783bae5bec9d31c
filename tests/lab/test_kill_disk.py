"""A full disk under --out: a clear sentence, an intact journal, and the same command finishes once there is room.

The disk is a tmpfs of some hundred kilobytes in a mount namespace of the test's own.
"""

from __future__ import annotations

import re
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cells import cells
from tests.lab import _fault_world as faults
from tests.lab.noise import skip_if_void
from tests.topologies import server, topology

pytestmark = [
    pytest.mark.lab,
    pytest.mark.usefixtures("root"),
]


@pytest.fixture
def world(lab_host: Path, tmp_path: Path) -> Iterator[Any]:
    made = faults.World(tmp_path)
    servers = [server("s1", "www.one.example"), server("s2", "www.two.example")]
    made.write("disk.toml", topology("disk", *servers, seed=3))
    made.campaign(tmp_path / "disk.toml", more="iterations = 3\ndisk = { reserve = 0 }")
    yield made
    made.clean()


@pytest.fixture
def inside(world: Any) -> Iterator[list[str]]:
    """The start of a command line that enters a mount namespace in which `disk` is a small tmpfs."""
    disk = world.folder / "disk"
    disk.mkdir()
    make = f"mount -t tmpfs -o size=128k none {disk} && echo ready && exec sleep 600"
    keeper = subprocess.Popen(
        ["unshare", "--mount", "--propagation", "private", "--", "sh", "-ec", make],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert keeper.stdout is not None and keeper.stdout.readline() == "ready\n"
    yield ["nsenter", f"--mount=/proc/{keeper.pid}/ns/mnt", "--"]
    keeper.kill()
    keeper.wait()
    keeper.stdout.close()


def resize(inside: list[str], disk: Path, size: str) -> None:
    subprocess.run([*inside, "mount", "-o", f"remount,size={size}", str(disk)], check=True)


def journaled(path: Path) -> int:
    """Downloads in a journal that is whole."""
    database = sqlite3.connect(path)
    try:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        found: int = database.execute("SELECT COUNT(*) FROM downloads").fetchone()[0]
        return found
    finally:
        database.close()


@cells("size_k", every=[64, 440], quick=[64])
def test_a_full_disk(world: Any, inside: list[str], size_k: int, tmp_path: Path) -> None:
    """The disk is full at the start, or fills up in the middle of the campaign; then while its tables are written."""
    disk = world.folder / "disk"
    command = ("run", world.folder / "c.toml", "--out", disk / "out")
    resize(inside, disk, f"{size_k}k")
    done = world.upshift(*command, prefix=inside)
    sentence = done.sentence(code=75)
    assert re.search(r"disk is full|no space left|No space left", sentence), sentence
    assert "; " in sentence and "run the same command again" in sentence, sentence
    began = subprocess.run([*inside, "test", "-e", str(disk / "out")], check=False).returncode == 0
    assert began == (size_k > 64)
    if not began:
        assert f"out: the disk is full: 65.5 kB are free on {disk}, and the campaign's journals need 67" in sentence
        assert "; free some space there or use another --out, then" in sentence
    again = world.upshift(*command, prefix=inside)
    again.sentence(code=75)
    copy = tmp_path / "copy"
    if began:
        subprocess.run([*inside, "cp", "-r", str(disk / "out"), str(copy)], check=True)
    journal = copy / "vantage" / "V" / "journal.sqlite"
    recorded = journaled(journal) if journal.exists() and journal.stat().st_size > 4096 else 0
    print(f"{size_k} kB: {recorded} of 24 recorded; {sentence}")
    assert recorded % 4 == 0, "measurement runs are recorded whole"
    resize(inside, disk, "64m")
    finished = world.upshift(*command, "--json", prefix=inside)
    skip_if_void(finished.returncode, finished.stderr)
    assert finished.returncode == 0, finished.stderr
    whole = tmp_path / "whole"
    subprocess.run([*inside, "cp", "-r", str(disk / "out"), str(whole)], check=True)
    rows = faults.assert_each_once(whole, 24)
    assert all(row.outcome == "ok" for row in rows)
    check_room_for_tables(world, inside, command, tmp_path / "tables")


def check_room_for_tables(world: Any, inside: list[str], command: tuple[str | Path, ...], copy: Path) -> None:
    """The disk of a finished campaign fills up while its tables are written again."""
    disk = world.folder / "disk"
    tables = [str(disk / "out" / name) for name in ("downloads.parquet", "superseded.parquet")]
    subprocess.run([*inside, "rm", *tables], check=True)
    used = subprocess.run([*inside, "df", "--output=used", str(disk)], capture_output=True, text=True, check=True)
    resize(inside, disk, f"{int(used.stdout.split()[-1]) + 40}k")
    sentence = world.upshift(*command, prefix=inside).sentence(code=75)
    assert re.search(r"[Nn]o space left|disk is full", sentence) and "run the same command again" in sentence, sentence
    resize(inside, disk, "64m")
    done = world.upshift(*command, prefix=inside)
    skip_if_void(done.returncode, done.stderr)
    assert done.returncode == 0, done.stderr
    subprocess.run([*inside, "cp", "-r", str(disk / "out"), str(copy)], check=True)
    faults.assert_each_once(copy, 24)


def test_a_full_disk_of_the_records_of_changes(world: Any, inside: list[str]) -> None:
    """The root disk, where UPSHIFT_STATE_DIR names a folder of it: no lab is built, nothing is written."""
    disk, out = world.folder / "disk", world.folder / "out"
    resize(inside, disk, "32k")
    prefix = [*inside, "env", f"UPSHIFT_STATE_DIR={disk}"]
    sentence = world.upshift("run", world.folder / "c.toml", "--out", out, prefix=prefix).sentence(code=75)
    assert f"{disk}: the disk is full: 32.8 kB are free on {disk}, and the records of this host's changes" in sentence
    assert sentence.endswith("set UPSHIFT_STATE_DIR, then run the same command again"), sentence
    assert not out.exists() and not world.processes()
