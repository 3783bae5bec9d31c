"""Sources for the rows of a measurement run: the journal where its capture was dropped on purpose, else the capture."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from analysis.captures.kpis import ALL as KPIS
from analysis.captures.scan import CaptureReader
from analysis.evidence.earlier import PROOF
from analysis.evidence.identity import with_identity
from analysis.evidence.rows import Inspected, inspect_run
from core.domain import Download, Outcome, Proven
from core.errors import UsageError
from core.files.journal import CaptureFindings, is_own


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """A source's result for a measurement run."""

    rows: tuple[Inspected, ...]
    """One per download, in their order."""
    lost: str | None = None
    """Why data that was measured is missing; None if nothing is."""
    newer: frozenset[str] = frozenset()
    """KPIs that were not known when the capture was dropped; they are empty."""


def from_capture(folder: Path, downloads: Sequence[Download], factors: Mapping[str, Proven]) -> Evidence:
    """Evidence from the run's capture. A run without one had no successful DNS look-up, so nothing is lost."""
    name = downloads[0].capture
    if name is None:
        return Evidence(rows=inspect_run(downloads, (), factors))
    if not is_own(name, downloads[0].vantage):
        return _lost(downloads, factors, "the capture is not in the vantage point's folder")
    return from_file(folder / name, downloads, factors)


def from_file(path: Path, downloads: Sequence[Download], factors: Mapping[str, Proven]) -> Evidence:
    """Evidence from a capture, plain or packed."""
    if not path.exists():
        return _lost(downloads, factors, "the capture is missing")
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
        return _lost(downloads, factors, f"the capture cannot be read: {error.what}")
    lost = None
    if capture.truncated:
        lost = "the capture is cut or damaged"
    elif is_empty and ports != {None}:
        lost = "the capture is empty"
    return Evidence(rows=inspect_run(downloads, connections, factors, lost=lost), lost=lost)


def _lost(downloads: Sequence[Download], factors: Mapping[str, Proven], why: str) -> Evidence:
    return Evidence(rows=inspect_run(downloads, (), factors, lost=why), lost=why)


INSPECTED = (*PROOF, "kpi_engine")
"""Columns of `downloads` that inspection fills in, besides the KPIs."""


def inspect_capture(path: Path, downloads: Sequence[Download], *, factors: Mapping[str, Proven]) -> CaptureFindings:
    """What is in the capture of a measurement run, for the journal that outlives the capture."""
    seen = from_file(path, downloads, factors)
    rows = [{"proof": {name: getattr(row.download, name) for name in INSPECTED}, "kpis": row.kpis} for row in seen.rows]
    lost = seen.lost is not None
    return CaptureFindings(text=json.dumps(rows), clean=not lost and all(map(_is_clean, seen.rows)), lost=lost)


def _is_clean(row: Inspected) -> bool:
    return row.download.outcome == Outcome.OK and row.download.accepted is True


def from_findings(text: str, downloads: Sequence[Download]) -> Evidence:
    """The rows of a measurement run whose capture was dropped; a KPI that was not known then is empty.

    Raises:
        UsageError: they have KPIs that this Upshift does not know.
    """
    rows, newer = [], set[str]()
    for download, found in zip(with_identity(downloads), json.loads(text), strict=True):
        kpis: Mapping[str, Any] | None = found["kpis"]
        if kpis is not None:
            if unknown := sorted(set(kpis) - set(KPIS)):
                raise UsageError(
                    f"it has KPIs of dropped captures that this Upshift does not know ({', '.join(unknown)})",
                    where=f"the journal of {download.vantage}",
                    remedy="use the newer Upshift that made them",
                )
            newer |= set(KPIS) - set(kpis)
            kpis = {name: kpis.get(name) for name in KPIS}
        proof = {name: found["proof"].get(name) for name in INSPECTED}
        rows.append(Inspected(download=replace(download, **proof), kpis=kpis))
    return Evidence(rows=tuple(rows), newer=frozenset(newer))
