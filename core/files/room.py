"""Room on a disk, before anything is written there."""

from __future__ import annotations

import os
from pathlib import Path

from core.errors import PlaceError
from core.files.sizes import size_text


def free_bytes(folder: Path) -> int:
    """What is free on a folder's disk for others than root."""
    state = os.statvfs(folder)
    return state.f_bavail * state.f_frsize


def check_room(folder: Path, needed: int, *, what: str, remedy: str = "free some space there") -> None:
    """Raises PlaceError, which names the disk, if a folder has no room for `needed` bytes of `what`.

    The folder need not exist yet.
    """
    there = folder.absolute()
    while not there.exists():
        there = there.parent
    free = free_bytes(there)
    if free >= needed or os.statvfs(there).f_blocks == 0:  # no size: /proc, or a tmpfs without a limit
        return
    disk = there.resolve()
    while not disk.is_mount():
        disk = disk.parent
    raise PlaceError(
        f"the disk is full: {size_text(free)} are free on {disk}, and {what} need {size_text(needed)}",
        where=str(folder),
        remedy=f"{remedy}, then run the same command again",
    )
