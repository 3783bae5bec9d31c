"""Findings of an inspection as text, for the journal: what is left of a capture that was dropped on purpose."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from analysis.captures.kpis import ALL as KPIS
from analysis.evidence.earlier import PROOF
from analysis.evidence.evidence import Evidence, from_file
from analysis.evidence.identity import with_identity
from analysis.evidence.rows import Inspected
from core.domain import Download, Outcome, Proven
from core.errors import UsageError
from core.files.journal import CaptureFindings

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
