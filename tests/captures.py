"""A whole capture at once, for tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from analysis.captures.connection import Connection
from analysis.captures.scan import CaptureReader


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannedCapture:
    """What a capture file holds, see `CaptureReader`."""

    path: Path
    connections: tuple[Connection, ...]
    packets: int
    truncated: bool
    warnings: tuple[str, ...]
    skipped: Mapping[str, int]


def scan_capture(path: Path, *, series: bool = False, rules: str = "4.0") -> ScannedCapture:
    """Scans one capture file, with all connections in memory. Raises as `CaptureReader`."""
    reader = CaptureReader(path, series=series, rules=rules)
    connections = tuple(reader)
    return ScannedCapture(
        path=path,
        connections=connections,
        packets=reader.packets,
        truncated=reader.truncated,
        warnings=reader.warnings,
        skipped=reader.skipped,
    )
