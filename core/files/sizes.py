"""Sizes as people write them (`20 MB`, `64 KiB`), and room on a disk before anything is written there."""

from __future__ import annotations

import os
import re
from pathlib import Path

from core.errors import PlaceError

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(B|kB|MB|GB|TB|KiB|MiB|GiB)")

_UNITS = {
    "B": 1,
    "kB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "TB": 1000**4,
    "KiB": 1024,
    "MiB": 1024**2,
    "GiB": 1024**3,
}


def parse_size(value: int | str) -> int:
    """Bytes from a number or a text such as `2 MB`. Raises ValueError."""
    if isinstance(value, int):
        return value
    match = _SIZE.fullmatch(value)
    if not match:
        raise ValueError(f"{value!r} is not a valid size")
    return round(float(match[1]) * _UNITS[match[2]])


def size_text(size_bytes: int) -> str:
    """A size for people, with three digits: `1.23 GB`."""
    for unit in ("TB", "GB", "MB", "kB"):
        if size_bytes >= _UNITS[unit]:
            return f"{size_bytes / _UNITS[unit]:.3g} {unit}"
    return f"{size_bytes} B"


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
