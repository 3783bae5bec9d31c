"""The rows of an earlier inspection of a folder, for captures and journals that are missing now.

A table of any length is read alongside the journals, few rows at a time: both have the order vantage point by vantage
point, plan by plan, and an earlier table lacks at most what was recorded after it was made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from analysis.evidence.rows import Inspected
from core.domain import Download
from core.errors import UsageError
from core.files import schemas, store
from core.files.schemas import build

DOWNLOADS = "downloads.parquet"

PROOF = (
    *("treatment_ok", "treatment_reason", "treatment_detail"),
    *("host_disturbance", "host_disturbance_detail", "slow_handshake", "engine"),
)
"""Columns of `downloads` that inspection fills in, besides the KPIs."""

Row = Mapping[str, Any]


class Earlier:
    """The earlier table of a folder, read forward once.

    Args:
        kpis: the KPIs of today.

    Raises:
        UsageError: from any method, for a table that was changed since inspection wrote it.
    """

    def __init__(self, folder: Path, kpis: Sequence[str]) -> None:
        self._path, self._kpis = folder / DOWNLOADS, kpis
        there = self._path.exists()
        columns = set(store.columns(self._path, "downloads")) if there else set()
        self._unknown = sorted(columns - {*kpis, *schemas.row_schema("downloads").names})
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
        return {name: row.get(name) for name in self._kpis}

    def kept(self, new: Inspected, old: Row | None) -> Inspected | None:
        """What stays of an earlier row for a download whose evidence is lost; None if the new row has as much data.

        A truncated capture still has data; it is used if no row was ever made from the complete one.
        """
        if old is None:
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
        """To be called after the last download: checks that every earlier row was used."""
        if (row := self._current) is not None:
            words = f"{row['vantage']}, iteration {row['iteration']}, {row['domain']}, {row['configuration']}"
            raise UsageError(
                f"it has downloads that are not in the journals ({words})",
                where=str(self._path),
                remedy="restore the journal that it was made from, or move the file away",
            )
