"""Sources for the rows of a measurement run: each is asked in turn, and the first one with data is used.

Today the captures are the only source. A journal that keeps the rows of deliberately deleted captures would be
another one, asked first: such a capture is not lost, and its rows need not be made again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from analysis.captures.scan import CaptureReader
from upshift.compose.inspect.rows import Inspected, inspect_run
from upshift.domain import Download
from upshift.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """A source's result for a measurement run."""

    rows: tuple[Inspected, ...]
    """One per download, in their order."""
    lost: str | None = None
    """Why data that was measured is missing; None if nothing is."""


Source = Callable[[Path, Sequence[Download]], Evidence | None]
"""A campaign folder and the downloads of one measurement run -> evidence, None if this source has none.

It is called from several threads at once."""


def from_capture(folder: Path, downloads: Sequence[Download]) -> Evidence:
    """Evidence from the run's capture. A run without one had no successful DNS look-up, so nothing is lost."""
    name = downloads[0].capture
    if name is None:
        return Evidence(rows=inspect_run(downloads, ()))
    path = folder / name
    if not path.exists():
        return _lost(downloads, "the capture is missing")
    ports = {download.local_port for download in downloads}
    connections, is_empty = [], True
    try:
        capture = CaptureReader(path)
        # Connections from other ports are dropped: a capture may have any number of them.
        for connection in capture:
            is_empty = False
            if connection.client_port in ports:
                connections.append(connection)
    except UsageError as error:
        return _lost(downloads, f"the capture cannot be read: {error.what}")
    lost = None
    if capture.truncated:
        lost = "the capture is cut or damaged"
    elif is_empty and ports != {None}:
        lost = "the capture is empty"
    return Evidence(rows=inspect_run(downloads, connections, lost=lost), lost=lost)


def _lost(downloads: Sequence[Download], why: str) -> Evidence:
    return Evidence(rows=inspect_run(downloads, (), lost=why), lost=why)


SOURCES: tuple[Source, ...] = (from_capture,)


def evidence(folder: Path, downloads: Sequence[Download]) -> Evidence:
    """The evidence of a measurement run."""
    for source in SOURCES:
        if (found := source(folder, downloads)) is not None:
            return found
    raise AssertionError("the last source always answers")
