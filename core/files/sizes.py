"""Sizes as people write them: `20 MB`, `64 KiB`."""

from __future__ import annotations

import re

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
    found = _SIZE.fullmatch(value)
    if not found:
        raise ValueError(f"{value!r} is not a valid size")
    return round(float(found[1]) * _UNITS[found[2]])


def size_text(size_bytes: int) -> str:
    """A size for people, with three digits: `1.23 GB`."""
    for unit in ("TB", "GB", "MB", "kB"):
        if size_bytes >= _UNITS[unit]:
            return f"{size_bytes / _UNITS[unit]:.3g} {unit}"
    return f"{size_bytes} B"
