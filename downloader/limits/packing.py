"""Captures packed by zstd, which readers of captures (ours, Wireshark, `zstdcat FILE | tcpdump -r -`) understand."""

from __future__ import annotations

import os
from pathlib import Path

import zstandard

LEVEL = 3
SUFFIX = ".zst"


def packed_name(path: Path) -> Path:
    """The name of a capture when it is packed."""
    return path.with_name(path.name + SUFFIX)


def pack(path: Path) -> Path:
    """Writes the packed capture beside the plain one, which stays; returns its path. A kill leaves no half file."""
    packed = packed_name(path)
    part = path.with_name(f".{path.name}.part{SUFFIX}")
    with path.open("rb") as plain, part.open("wb") as out:
        zstandard.ZstdCompressor(level=LEVEL, write_checksum=True).copy_stream(plain, out, size=path.stat().st_size)
        out.flush()
        os.fsync(out.fileno())
    part.replace(packed)
    return packed
