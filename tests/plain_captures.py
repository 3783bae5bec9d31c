"""Campaigns pack their captures; tcpdump reads plain ones only."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path

import zstandard

_folders: list[Path] = []


def plain(packed: Path) -> Path:
    """A plain copy of a packed capture, outside the campaign's folder; it goes when the process ends."""
    assert packed.name.endswith(".pcap.zst"), packed
    if not _folders:
        _folders.append(Path(tempfile.mkdtemp(prefix="upshift-plain-")))
        atexit.register(shutil.rmtree, _folders[0])
    copy = _folders[0] / str(packed.resolve()).strip("/").replace("/", "-").removesuffix(".zst")
    with packed.open("rb") as source, copy.open("wb") as target:
        zstandard.ZstdDecompressor().copy_stream(source, target)
    return copy
