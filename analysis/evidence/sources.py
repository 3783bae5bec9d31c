"""Sources for the rows of a measurement run: its capture, the journal where that was dropped on purpose, earlier rows.

For captures and journals that are missing now, the rows of an earlier inspection stay. Its table of any length is read
alongside the journals, few rows at a time: both have the order vantage point by vantage point, plan by plan, and an
earlier table lacks at most what was recorded after it was made.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Protocol

from analysis.captures.kpis import ALL as KPIS
from analysis.captures.scan import CaptureReader
from analysis.evidence.identity import with_identity
from analysis.evidence.rows import ENGINE, Inspected, inspect_run
from core.domain import Download, Outcome, ProofColumns, Proven
from core.errors import PlaceError, UsageError
from core.files import schemas, store
from core.files.journal import CaptureFindings, RecordedFindings, is_own
from core.files.schemas import build

DOWNLOADS = "downloads.parquet"

INSPECTED = tuple(entry.name for entry in fields(ProofColumns))
"""Columns of `downloads` that inspection fills in, besides KPIs."""

PROOF = tuple(name for name in INSPECTED if name != "kpi_engine")
"""The same without the engine of the KPIs."""

Row = Mapping[str, Any]

_MISSING = "the capture is missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """A source's result for a measurement run."""

    rows: tuple[Inspected, ...]
    """One per download, in their order."""
    lost: str | None = None
    """Why data that was measured is missing; None if nothing is."""
    newer: frozenset[str] = frozenset()
    """KPIs that were not known when the capture was dropped; they are empty."""
    is_recorded: bool = False
    """The rows are what the journal has."""


Run = tuple[Sequence[Download], RecordedFindings | None]
"""A measurement run as the journal has it: its downloads, and what was found in their capture right after it."""


class CampaignCaptures(Protocol):
    """Where the captures of a campaign lie, by their paths in its folder. Other processes get a copy."""

    def require(self) -> None:
        """Raises PlaceError if that place cannot be seen from this process."""
        ...

    def opened(self, name: str) -> AbstractContextManager[Path]:
        """A file with the capture, to read meanwhile; there is none at the path if the capture is missing."""
        ...


@dataclass(frozen=True, slots=True)
class OnDisk:
    """Captures in the campaign's folder."""

    folder: Path

    def require(self) -> None:
        """Raises PlaceError if the folder is not there."""
        if not self.folder.is_dir():
            remedy = "mount it under the same path, or give --captures s3://BUCKET/PREFIX"
            raise PlaceError("there is no such folder", where=str(self.folder), remedy=remedy)

    def opened(self, name: str) -> AbstractContextManager[Path]:
        """The capture where it is."""
        return nullcontext(self.folder / name)


def evidence_of(run: Run, captures: CampaignCaptures, factors: Mapping[str, Proven], *, again: bool) -> Evidence:
    """The evidence of a run: from the journal where it says as much as the capture, else from that.

    That is so if today's code made the findings from the whole capture, and if the capture is not here: one that was
    dropped may have been collected before.

    Args:
        again: a capture that was not dropped has to be read, whoever looked at it.
    """
    downloads, findings = run
    if findings is None:
        return from_capture(captures, downloads, factors)
    document = json.loads(findings.text)
    rows = document if isinstance(document, list) else document["rows"]
    if rows is document and not again and all(row["proof"].get("engine") == ENGINE for row in rows):
        return from_findings(rows, downloads)
    return from_capture(captures, downloads, factors, found=rows, is_whole=rows is document, dropped=findings.dropped)


def from_capture(
    captures: CampaignCaptures,
    downloads: Sequence[Download],
    factors: Mapping[str, Proven],
    *,
    found: Sequence[Any] | None = None,
    is_whole: bool = False,
    dropped: bool = False,
) -> Evidence:
    """Evidence from the run's capture. A run without one had no successful DNS look-up, so nothing is lost.

    Args:
        found: what was found in it right after the run, if anything was: that counts where it is missing.
        is_whole: the capture was whole then, so that counts also where what is here was cut or damaged since.
        dropped: it was dropped on purpose, so it is not lost. A power cut may undo that mark, not the file's removal.
    """
    name = downloads[0].capture
    if name is None:
        return Evidence(rows=inspect_run(downloads, (), factors))
    if not is_own(name, downloads[0].vantage):
        return _lost(downloads, factors, "the capture is not in the vantage point's folder")
    with captures.opened(name) as path:
        if not path.exists():
            if not dropped:
                captures.require()
            if found is not None:
                return replace(from_findings(found, downloads), lost=None if dropped else _MISSING)
        evidence = from_file(path, downloads, factors)
    if is_whole and found is not None and evidence.lost is not None:
        return replace(from_findings(found, downloads), lost=evidence.lost)
    return evidence


def from_file(path: Path, downloads: Sequence[Download], factors: Mapping[str, Proven]) -> Evidence:
    """Evidence from a capture, plain or packed."""
    if not path.exists():
        return _lost(downloads, factors, _MISSING)
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


def inspect_capture(path: Path, downloads: Sequence[Download], *, factors: Mapping[str, Proven]) -> CaptureFindings:
    """What is in the capture of a measurement run, for the journal that outlives the capture."""
    evidence = from_file(path, downloads, factors)
    rows = [
        {"proof": {name: getattr(row.download, name) for name in INSPECTED}, "kpis": row.kpis} for row in evidence.rows
    ]
    lost = evidence.lost is not None
    text = json.dumps({"lost": evidence.lost, "rows": rows} if lost else rows)
    return CaptureFindings(text=text, clean=not lost and all(map(_is_clean, evidence.rows)), lost=lost)


def _is_clean(row: Inspected) -> bool:
    return row.download.outcome == Outcome.OK and row.download.accepted is True


def from_findings(recorded_rows: Sequence[Any], downloads: Sequence[Download]) -> Evidence:
    """The rows of a measurement run from what an inspection recorded; a KPI that was not known then is empty.

    Raises:
        UsageError: they have KPIs that this Upshift does not know.
    """
    rows, newer = [], set[str]()
    for download, recorded in zip(with_identity(downloads), recorded_rows, strict=True):
        kpis: Mapping[str, Any] | None = recorded["kpis"]
        if kpis is not None:
            if unknown := sorted(set(kpis) - set(KPIS)):
                raise UsageError(
                    f"it has KPIs of dropped captures that this Upshift does not know ({', '.join(unknown)})",
                    where=f"the journal of {download.vantage}",
                    remedy="use the newer Upshift that made them",
                )
            newer |= set(KPIS) - set(kpis)
            kpis = {name: kpis.get(name) for name in KPIS}
        proof = {name: recorded["proof"].get(name) for name in INSPECTED}
        rows.append(Inspected(download=replace(download, **proof), kpis=kpis))
    return Evidence(rows=tuple(rows), newer=frozenset(newer), is_recorded=True)


class Earlier:
    """The earlier table of a folder, read forward once.

    Raises:
        UsageError: from any method, for a table that was changed since inspection wrote it.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / DOWNLOADS
        there = self._path.exists()
        columns = set(store.columns(self._path, "downloads")) if there else set()
        self._unknown = sorted(columns - {*KPIS, *schemas.row_schema("downloads").names})
        self._rows = store.each_row(self._path, "downloads") if there else iter(())
        self._current = next(self._rows, None)

    def of(self, download: Download) -> Row | None:
        """The earlier row of this download. Call it for each download, in order."""
        row = self._current
        if row is None or any(row[name] != getattr(download, name) for name in schemas.DOWNLOAD_KEY):
            return None
        self._current = next(self._rows, None)
        return row

    def without_journal(self, is_known: Callable[[str], bool]) -> Iterator[Inspected]:
        """The next rows that belong to vantage points whose journals are missing."""
        while (row := self._current) is not None and not is_known(row["vantage"]):
            yield Inspected(download=build(Download, row), kpis=self._kpis_of(row))
            self._current = next(self._rows, None)

    def _kpis_of(self, row: Row) -> Row | None:
        """The KPIs of an earlier row with today's names: those that it lacks are empty."""
        if row.get("kpi_engine") is None:
            return None
        if self._unknown:
            raise UsageError(
                f"captures of KPIs in it are missing, and this Upshift does not know {', '.join(self._unknown)}",
                where=str(self._path),
                remedy="use the newer Upshift that made them",
            )
        return {name: row.get(name) for name in KPIS}

    def kept(self, new: Inspected, old: Row | None, *, lost: bool) -> Inspected | None:
        """What stays of an earlier row of the same attempt; None if the new row has as much data.

        That is so where the evidence is lost, and where the new row is what the journal has of a dropped capture, by
        other code: an inspection that read the capture came later. A truncated capture still has data; it is used if
        no row was ever made from the complete one.
        """
        if old is None or old["attempts"] != new.download.attempts:
            return None
        if not lost and (new.download.engine in (None, ENGINE) or old["engine"] in (None, new.download.engine)):
            return None
        has_kpis = old.get("kpi_engine") is not None and (new.kpis is None or not old.get("truncated"))
        has_proof = old.get("treatment_ok") is not None and (has_kpis or not new.kpis)
        if not has_kpis and not has_proof:
            return None
        download, kpis = new.download, new.kpis
        if has_proof:
            proof: dict[str, Any] = {name: old.get(name) for name in PROOF}
            download = replace(download, **proof)
        if has_kpis:
            download, kpis = replace(download, kpi_engine=old.get("kpi_engine")), self._kpis_of(old)
        return Inspected(download=download, kpis=kpis)

    def end(self) -> None:
        """Checks that every earlier row was used; call it after the last download."""
        if (row := self._current) is not None:
            words = f"{row['vantage']}, iteration {row['iteration']}, {row['domain']}, {row['configuration']}"
            raise UsageError(
                f"it has downloads that are not in the journals ({words})",
                where=str(self._path),
                remedy="restore the journal that it was made from, or move the file away",
            )
