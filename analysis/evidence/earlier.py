"""The rows of an earlier inspection of a folder, for captures and journals that are missing now.

Tables of any length are read alongside the journals, few rows at a time: both have the order vantage point by vantage
point, plan by plan, and an earlier table lacks at most what was recorded after it was made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from analysis.captures.kpi import Value
from analysis.evidence.rows import Inspected
from core.domain import Download
from core.errors import UsageError
from core.files import schemas, store
from core.files.rows import build

DOWNLOADS, KPIS = "downloads.parquet", "kpis.parquet"

INSPECTED = (
    *("treatment_ok", "treatment_reason", "treatment_detail"),
    *("host_disturbance", "host_disturbance_detail", "slow_handshake", "engine"),
)
"""Columns of `downloads` that inspection fills in."""

Key = tuple[Value, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Old:
    """The earlier rows of one download."""

    download: Mapping[str, Any] | None
    kpis: Mapping[str, Any] | None


class Earlier:
    """The earlier tables of a folder, both read forward once.

    Args:
        columns: those that `kpis` has today.

    Raises:
        UsageError: from any method, for a table that was changed since inspection wrote it.
    """

    def __init__(self, folder: Path, columns: Sequence[str]) -> None:
        self._downloads = _Forward(folder / DOWNLOADS, "downloads")
        self._kpis = _Forward(folder / KPIS, "kpis")
        self._where, self._columns = str(folder / KPIS), columns
        self._unknown = sorted(self._kpis.columns - set(columns))

    def of(self, download: Download) -> Old:
        """The earlier rows of this download. Call it for each download, in order."""
        key = tuple(getattr(download, name) for name in schemas.DOWNLOAD_KEY)
        return Old(download=self._downloads.take(key), kpis=self._kpis.take(key))

    def without_journal(self, is_known: Callable[[str], bool]) -> Iterator[Inspected]:
        """The next rows that belong to vantage points whose journals are missing."""
        while (row := self._downloads.current) is not None and not is_known(row["vantage"]):
            old = Old(download=row, kpis=self._kpis.take(_key(row)))
            self._downloads.take(_key(row))
            yield Inspected(download=build(Download, row), kpis=self.kpi_row(old))

    def kpi_row(self, old: Old) -> Mapping[str, Value] | None:
        """An earlier row of `kpis` with today's columns: KPIs that it lacks are empty."""
        if old.kpis is None:
            return None
        if self._unknown:
            raise UsageError(
                f"captures of KPIs in it are missing, and this Upshift does not know {', '.join(self._unknown)}",
                where=self._where,
                remedy="use the newer Upshift that made them",
            )
        return {name: old.kpis.get(name) for name in self._columns}

    def end(self) -> None:
        """To be called after the last download: checks that every earlier row was used."""
        for table in (self._downloads, self._kpis):
            if table.current is not None:
                raise UsageError(
                    f"it has downloads that are not in the journals ({_shown(table.current)})",
                    where=str(table.path),
                    remedy="restore the journal that it was made from, or move the file away",
                )


class _Forward:
    """A table whose rows are read in order."""

    def __init__(self, path: Path, kind: str) -> None:
        self.path = path
        there = path.exists()
        self.columns = set(store.columns(path, kind)) if there else set()
        self._rows = store.each_row(path, kind) if there else iter(())
        self.current = next(self._rows, None)

    def take(self, key: Key) -> Mapping[str, Any] | None:
        """The next row if it has this key; then advances."""
        row = self.current
        if row is None or _key(row) != key:
            return None
        self.current = next(self._rows, None)
        return row


def _key(row: Mapping[str, Any]) -> Key:
    return tuple(row[name] for name in schemas.DOWNLOAD_KEY)


def _shown(row: Mapping[str, Any]) -> str:
    return f"{row['vantage']}, iteration {row['iteration']}, {row['domain']}, {row['configuration']}"


def kept(new: Inspected, old: Old, earlier: Earlier) -> Inspected | None:
    """Earlier rows to keep for a download whose evidence is lost; None if the new ones have as much data.

    A truncated capture still has data; it is used if no rows were ever made from the complete one.
    """
    has_kpis = old.kpis is not None and (new.kpis is None or not old.kpis.get("truncated"))
    has_proof = old.download is not None and old.download["treatment_ok"] is not None and (has_kpis or not new.kpis)
    if not has_kpis and not has_proof:
        return None
    download, kpis = new.download, new.kpis
    if old.download is not None and has_proof:
        inspected: dict[str, Any] = {name: old.download.get(name) for name in INSPECTED}
        download = replace(download, **inspected)
    if has_kpis:
        kpis = earlier.kpi_row(old)
    return Inspected(download=download, kpis=kpis)
