"""The size of a campaign's folder: looked at where it could matter, not for each run."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from core.domain import Target
from downloader.campaign.campaign import from_document
from downloader.campaign.limits import Disk
from downloader.limits.disk import LOOK_S, TABLES_BYTES, DiskGate, FolderDisk, used_bytes

MB = 1_000_000


def test_a_folder_is_looked_through_where_the_limit_is_near_or_the_size_is_old(tmp_path: Path) -> None:
    looks: list[int] = []
    clock = [0.0]
    disk = FolderDisk(
        tmp_path,
        Disk(limit=TABLES_BYTES + 100 * MB, reserve=0),
        tell=looks.append,
        monotonic=lambda: clock[0],
    )

    rows = itertools.count()

    def over(needed: int) -> tuple[int, str | None]:
        return disk.over("MUC", needed, next(rows), most=90 * MB)

    for _ in range(8):
        assert over(10 * MB)[1] is None
    assert len(looks) == 1, "seven runs took 70 MB at most, which cannot matter"
    clock[0] = 61.0
    over(10 * MB)
    assert len(looks) == 2, "an old size is taken anew"
    (tmp_path / "capture").write_bytes(os.urandom(MB) * 95)  # zeros may take no room
    for _ in range(20):
        too_many, why = over(10 * MB)
        if why is not None:
            break
    assert why is not None and too_many >= 5 * MB, "what was written is seen before the limit"
    assert looks[-1] == used_bytes(tmp_path)
    (tmp_path / "capture").unlink()
    assert over(10 * MB)[1] is None, "a pause ends as soon as there is room"


def test_a_run_that_waits_for_something_else_is_promised_its_room_once(tmp_path: Path) -> None:
    """The gates are asked again each second, e.g. until a slot begins."""
    looks: list[int] = []
    limit = TABLES_BYTES + 100 * MB
    disk = FolderDisk(tmp_path, Disk(limit=limit, reserve=0), tell=looks.append, monotonic=lambda: 0.0)
    for _ in range(50):
        assert disk.over("MUC", 10 * MB, 0, most=90 * MB)[1] is None
    assert len(looks) == 1


def test_a_vantage_point_that_has_ended_keeps_no_room(tmp_path: Path) -> None:
    """Nobody asks for it again: what its last run was promised kept the others paused, for ever."""
    disk = FolderDisk(tmp_path, Disk(limit=TABLES_BYTES + 15 * MB, reserve=0), monotonic=lambda: 0.0)
    assert disk.over("MUC", 10 * MB, 0, most=15 * MB)[1] is None
    assert disk.over("SFO", 10 * MB, 0, most=15 * MB)[1] is not None, "its run would not fit beside the other"
    disk.leave("MUC")
    assert disk.over("SFO", 10 * MB, 0, most=15 * MB)[1] is None


def test_a_file_that_goes_meanwhile_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another vantage point drops captures while the folder is looked through."""
    (tmp_path / "below").mkdir()
    for name in ("a", "b", "below/c"):
        (tmp_path / name).write_bytes(bytes(MB))
    real = os.scandir

    @contextmanager
    def scandir(path: str) -> Iterator[Iterator[os.DirEntry[str]]]:
        with real(path) as entries:
            listed = sorted(entries, key=lambda entry: entry.name)
        (tmp_path / "a").unlink(missing_ok=True)
        yield iter(listed)

    monkeypatch.setattr("downloader.limits.disk.os.scandir", scandir)
    assert used_bytes(tmp_path) >= 2 * MB


def test_a_pause_ends_though_the_clock_was_set_back() -> None:
    short, clock = [True], [0.0]

    class Shared:
        disk = Disk(limit=100 * MB, reserve=0)

        def monotonic(self) -> float:
            return clock[0]

        def over(self, *_: Any, **__: Any) -> tuple[int, str | None]:
            return (5, "full") if short[0] else (0, None)

    table: Any = SimpleNamespace(droppable=lambda: ())
    campaign = from_document({"name": "c", "lab": "small", "targets": "lab"}, Path("c.toml"))
    gate = DiskGate(campaign, "MUC", Shared(), [], table, table, 0)  # type: ignore[arg-type]
    held = gate.holds(1e9)
    assert held is not None and held.until == 1e9 + LOOK_S
    short[0], clock[0] = False, LOOK_S - 0.1
    assert gate.holds(2e9) is held, "a look goes through the whole folder"
    clock[0] = LOOK_S
    assert gate.holds(1e9 - 21_600) is None


def test_a_full_folder_without_what_may_go_is_not_looked_through_each_second(tmp_path: Path) -> None:
    """The gates are asked each second while a vantage point waits for its slot, or until midnight."""
    looks, clock = list[int](), [0.0]
    table: Any = SimpleNamespace(droppable=lambda: ())
    run: Any = SimpleNamespace(target=Target(domain="a.example", url="https://a.example/f", size_bytes=1000))
    (tmp_path / "journal").write_bytes(os.urandom(MB) * 95)
    limits = Disk(limit=100 * MB, reserve=0)
    shared = FolderDisk(tmp_path, limits, tell=looks.append, monotonic=lambda: clock[0])
    campaign = from_document({"name": "c", "lab": "small", "targets": "lab"}, Path("c.toml"))
    gate = DiskGate(campaign, "MUC", shared, [run], table, table, 0)
    for second in range(20):
        clock[0] = float(second)
        assert gate.holds(0.0) is None, "the next run still fits"
    assert len(looks) <= 4
    looks.clear()
    gate.ended(run, 1, [], 0.0)
    assert gate.holds(0.0) is None and looks, "what a run wrote is seen before the next one"
    shared.disk = Disk(limit=100 * MB, reserve=10**18)
    assert gate.holds(0.0) is not None, "a run that could not begin, as the disk is full, is not begun at once again"
