"""What becomes of a capture: its KPIs and proof go into the journal, then it is packed or dropped.

Readers of captures (ours, Wireshark, `zstdcat FILE | tcpdump -r -`) understand zstd.
"""

from __future__ import annotations

import os
import random
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import zstandard

from core.domain import Download
from core.files.journal import CaptureFindings
from downloader.campaign.campaign import Campaign
from downloader.campaign.limits import KeptCaptures

LEVEL = 3
SUFFIX = ".zst"


def packed_name(path: Path) -> Path:
    """The name of a capture when it is packed."""
    return path.with_name(path.name + SUFFIX)


def pack(path: Path) -> Path:
    """Writes the packed capture beside the plain one, which stays; returns its path. A kill leaves no half file there,
    and a full disk none at all.
    """
    packed = packed_name(path)
    part = path.with_name(f".{path.name}.part{SUFFIX}")
    try:
        with path.open("rb") as plain, part.open("wb") as out:
            zstandard.ZstdCompressor(level=LEVEL, write_checksum=True).copy_stream(plain, out, size=path.stat().st_size)
            out.flush()
            os.fsync(out.fileno())
        part.replace(packed)
    finally:
        part.unlink(missing_ok=True)
    return packed


_BATCH = 100
"""Captures to drop that are read at once."""

TABLE = """
CREATE TABLE IF NOT EXISTS captures (
    path TEXT PRIMARY KEY, bytes INTEGER NOT NULL, clean INTEGER NOT NULL, dropped INTEGER NOT NULL, findings BLOB
) STRICT;
CREATE INDEX IF NOT EXISTS captures_by_age ON captures (dropped) WHERE clean AND NOT dropped;
"""


Inspect = Callable[[Path, Sequence[Download]], CaptureFindings]
"""(plain capture, downloads of its run) -> findings. Comes from `upshift`: stages do not import each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """A capture that was looked at, for the journal."""

    path: str
    """As in the rows of its downloads: of the packed capture, whether it is there or dropped."""
    size_bytes: int
    """On the disk; 0 if it is dropped."""
    clean: bool
    dropped: bool
    findings: str | None
    """None: nobody inspected it, as of a void attempt."""


class CaptureTable:
    """The table `captures` of a journal. `add` belongs into the transaction that records the run."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def add(self, capture: Settled) -> None:
        """Enters a capture."""
        findings = capture.findings
        packed = None if findings is None else zstandard.ZstdCompressor(level=LEVEL).compress(findings.encode())
        values = (capture.path, capture.size_bytes, capture.clean, capture.dropped, packed)
        self._db.execute("INSERT INTO captures VALUES (?, ?, ?, ?, ?)", values)

    def knows(self, path: str) -> bool:
        """Whether the capture is entered: its run or void attempt is recorded."""
        return self._db.execute("SELECT 1 FROM captures WHERE path = ?", (path,)).fetchone() is not None

    def is_dropped(self, path: str) -> bool:
        """Whether the capture was dropped, with or without findings."""
        return self._db.execute("SELECT 1 FROM captures WHERE path = ? AND dropped", (path,)).fetchone() is not None

    def droppable(self) -> Iterator[tuple[str, int]]:
        """Path and bytes of clean captures that are there, the oldest first. Those may be dropped meanwhile."""
        after = 0
        while rows := self._db.execute(
            # An index of one value is in the order of the row ids.
            "SELECT rowid, path, bytes FROM captures WHERE clean AND NOT dropped AND dropped = 0 AND rowid > ?"
            " ORDER BY rowid LIMIT ?",
            (after, _BATCH),
        ).fetchall():
            after = rows[-1][0]
            yield from ((path, size_bytes) for _, path, size_bytes in rows)

    def drop(self, path: str) -> None:
        """Marks a capture as dropped; its file is removed next."""
        self._db.execute("UPDATE captures SET dropped = 1, bytes = 0 WHERE path = ?", (path,))

    def drop_all(self) -> None:
        """Marks all as dropped."""
        self._db.execute("UPDATE captures SET dropped = 1, bytes = 0")


class CaptureStore:
    """The captures of one vantage point.

    Args:
        out: the campaign's folder.
        inspect: None keeps all captures, as nobody can say what is in them.
    """

    def __init__(self, campaign: Campaign, vantage: str, out: Path, *, inspect: Inspect | None) -> None:
        self._campaign, self._vantage, self._out, self._inspect = campaign, vantage, out, inspect

    def settle(self, run: int, downloads: Sequence[Download], *, valid: bool) -> tuple[list[Download], Settled | None]:
        """Packs a plain capture, which stays until `tidy`, or decides to drop it.

        Args:
            run: number of the measurement run.
            valid: False for a void attempt, which is repeated.

        Returns:
            The downloads with the path of the packed capture; None without a capture.
        """
        name = downloads[0].capture
        if name is None:
            return list(downloads), None
        plain = self._out / name
        path = name + SUFFIX
        renamed = [replace(download, capture=path) for download in downloads]
        findings = None if self._inspect is None or not valid else self._inspect(plain, renamed)
        clean = findings is not None and findings.clean
        keeps = (findings is not None and findings.lost) or self._keeps(run, clean=clean)
        size_bytes = pack(plain).stat().st_size if keeps else 0
        return renamed, Settled(
            path=path,
            size_bytes=size_bytes,
            clean=clean,
            dropped=not size_bytes,
            findings=None if findings is None else findings.text,
        )

    def _keeps(self, run: int, *, clean: bool) -> bool:
        disk = self._campaign.disk
        match disk.captures if self._inspect is not None else KeptCaptures.ALL:
            case KeptCaptures.ALL:
                return True
            case KeptCaptures.FAILURES:
                return not clean
            case KeptCaptures.SAMPLE:
                return random.Random(f"{self._campaign.seed}/{self._vantage}/{run}/capture").random() < disk.sample
            case KeptCaptures.NONE:
                return False

    def tidy(self, capture: Settled | None) -> None:
        """Removes the plain capture, once the journal has the run."""
        if capture is not None:
            (self._out / capture.path.removesuffix(SUFFIX)).unlink(missing_ok=True)

    def tidy_all(self, table: CaptureTable, poll: Callable[[], object]) -> None:
        """Removes what a kill left: plain captures of recorded runs, and files of dropped ones.

        Args:
            poll: called before each file; may raise to end it.
        """
        folder = self._out / "vantage" / self._vantage / "captures"
        for file in folder.glob("*.pcap*"):
            poll()
            path = packed_name(file) if file.suffix == ".pcap" else file
            name = path.relative_to(self._out).as_posix()
            if table.is_dropped(name) or (file is not path and table.knows(name)):
                file.unlink(missing_ok=True)  # `upshift snapshot --free` may run meanwhile

    def drop(self, table: CaptureTable, path: str) -> None:
        """Drops a kept capture: first in the journal, so that a kill never makes it a lost one."""
        table.drop(path)
        (self._out / path).unlink(missing_ok=True)
