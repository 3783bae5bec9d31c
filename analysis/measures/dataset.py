"""The campaign folders that analysis reads, as one dataset, without duplicates; anything left out is reported."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.measures.ceilings import NOT_CALIBRATED, Ceiling, ceiling, near_ceiling
from analysis.measures.comparisons import Design, read_design
from upshift.domain import Download, Superseded
from upshift.errors import UsageError, not_found
from upshift.files import store
from upshift.files.config import parse_json, read_json

Value = float | int | str | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """One campaign folder."""

    path: Path
    environment: Mapping[str, Any] | None
    """`environment.json`, if present."""
    lab: Mapping[str, Any] | None
    """`lab.json` (see docs/design/house.md), for a campaign that ran in a lab."""
    composition: Mapping[str, Any] | None = None
    """`targets/composition.json`, the report of `upshift targets compose`, if present."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A download with its folder and KPIs."""

    folder: int
    """Index into `Dataset.folders`: the same names in two folders are two measurement runs."""
    download: Download
    kpis: Mapping[str, Value]
    """KPI name -> value; empty if `kpis.parquet` has no row for this download."""
    ceiling: Ceiling = NOT_CALIBRATED
    """What is known of its client's highest rate at its vantage point."""

    @property
    def near_ceiling(self) -> bool | None:
        """Whether its client may have been the limit, None if that is not known; see `ceilings.near_ceiling`."""
        return near_ceiling(self.download, self.ceiling)

    @property
    def run(self) -> tuple[int, str, str, int, str, str]:
        """Identifies the measurement run: downloads are compared only within it."""
        d = self.download
        return (self.folder, d.campaign, d.vantage, d.iteration, d.domain, d.url)

    @property
    def is_warmup(self) -> bool:
        """Whether this download only warmed caches: it is left out of Table 1 and the figures."""
        return self.download.is_warmup

    def accepted(self, *, unproven: bool) -> bool:
        """Whether its treatment is proven (or, with `unproven`, not disproved) and its run is not void."""
        return self.download.accepted is True or (unproven and self.download.accepted is None)

    def number(self, kpi: str) -> float | None:
        """A KPI as a finite number, None if it is missing."""
        value = self.kpis.get(kpi)
        if isinstance(value, (int, float)) and math.isfinite(value):
            return float(value)
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """All given folders together."""

    folders: tuple[Folder, ...]
    records: tuple[Record, ...]
    kpi_units: Mapping[str, str]
    """KPI name -> unit; empty without a unit."""
    superseded: tuple[Superseded, ...]
    design: Design
    """The configurations and comparisons."""
    notes: tuple[str, ...]
    """Sentences about what is missing, to be printed."""


def load(paths: Sequence[Path]) -> Dataset:
    """Reads campaign folders.

    Raises:
        UsageError: a folder is missing, has no `downloads.parquet`, has none in it, has downloads that another
            folder (or the same) already has, or uses the name of a configuration or a comparison for something else.
    """
    folders: list[Folder] = []
    records: list[Record] = []
    superseded: list[Superseded] = []
    units: dict[str, str] = {}
    notes: list[str] = []
    read: list[tuple[Path, list[Download]]] = []
    resolved: set[Path] = set()
    for path in paths:
        if path.resolve() in resolved:
            raise UsageError("this folder is named twice", where=str(path), remedy="name it once")
        resolved.add(path.resolve())
        downloads = _downloads(path)
        read.append((path, downloads))
        kpis = _kpis(path, units, notes)
        index = len(folders)
        documents = {
            "environment": _json(path, "environment.json"),
            "lab": _json(path, "lab.json"),
            "composition": _json(path, "targets/composition.json"),
        }
        folders.append(Folder(path=path, **documents))
        known = {
            (vantage, client): ceiling(documents["environment"], vantage=vantage, client=client)
            for vantage, client in {(d.vantage, d.client) for d in downloads}
        }
        records += [
            Record(folder=index, download=d, kpis=kpis.get(_key(d), {}), ceiling=known[d.vantage, d.client])
            for d in downloads
        ]
        unmatched = sum(1 for d in downloads if kpis and d.outcome == "ok" and _key(d) not in kpis)
        if unmatched:
            notes.append(f"{path}: {unmatched} of {len(downloads)} downloads are ok and have no row in kpis.parquet.")
        superseded += _superseded(path)
    _refuse_repeats(records, folders)
    design = read_design(read)
    return Dataset(
        folders=tuple(folders),
        records=tuple(records),
        kpi_units=units,
        superseded=tuple(superseded),
        design=design,
        notes=(*design.notes, *notes),
    )


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turns errors of the file system into UsageError."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"this cannot be written ({error.strerror or error})",
            where=str(folder),
            remedy="use another --out",
        ) from None


def output_folder(paths: Sequence[Path], out: Path | None) -> Path:
    """Where results go: `out`, else the folder itself, else for several folders `combined/` in the first."""
    if out is not None:
        return out
    return paths[0] if len(paths) == 1 else paths[0] / "combined"


def _downloads(path: Path) -> list[Download]:
    if not path.exists():
        raise not_found(path, "folder", remedy="name the --out folder of `upshift run`")
    file = path / "downloads.parquet"
    if not file.is_file():
        raise UsageError(
            "this folder has no downloads.parquet",
            where=str(path),
            remedy="name the --out folder of `upshift run`, or let `upshift run` finish there",
        )
    downloads = store.read_rows(file, "downloads", Download)
    for text in {download.levels for download in downloads}:
        parse_json(text, where=f"{file}: column levels", remedy="export it again with `upshift run`")
    if not downloads:
        raise UsageError("it has no downloads", where=str(file), remedy="run the campaign first")
    return downloads


def _key(download: Download) -> tuple[Value, ...]:
    return tuple(getattr(download, name) for name in store.DOWNLOAD_KEY)


def _kpis(path: Path, units: dict[str, str], notes: list[str]) -> dict[tuple[Value, ...], Mapping[str, Value]]:
    file = path / "kpis.parquet"
    if not file.is_file():
        notes.append(
            f"{path} has no kpis.parquet, so figures from its captures are missing; "
            "`upshift inspect` makes the file from them."
        )
        return {}
    table = store.read_table(file, "kpis")
    missing = [name for name in store.DOWNLOAD_KEY if name not in table.column_names]
    if missing:
        raise UsageError(f"column {missing[0]} is missing", where=str(file), remedy="make the file again")
    names = [field.name for field in table.schema if field.name not in (*store.DOWNLOAD_KEY, "engine")]
    for name in names:
        metadata = table.schema.field(name).metadata or {}
        units.setdefault(name, metadata.get(b"unit", b"").decode())
    found: dict[tuple[Value, ...], Mapping[str, Value]] = {}
    for row in table.to_pylist():
        key = tuple(row[name] for name in store.DOWNLOAD_KEY)
        if key in found:
            raise UsageError(f"two rows for download {_words(key)}", where=str(file), remedy="make the file again")
        found[key] = {name: row[name] for name in names}
    return found


def _superseded(path: Path) -> list[Superseded]:
    file = path / "superseded.parquet"
    return store.read_rows(file, "superseded", Superseded) if file.is_file() else []


def _json(path: Path, name: str) -> Mapping[str, Any] | None:
    file = path / name
    return read_json(file) if file.exists() else None


def _refuse_repeats(records: Sequence[Record], folders: Sequence[Folder]) -> None:
    """Raises UsageError for duplicate downloads, e.g. a copy of a folder."""
    within: set[tuple[object, ...]] = set()
    across: dict[tuple[object, ...], int] = {}
    for record in records:
        key = _key(record.download)
        where = str(folders[record.folder].path / "downloads.parquet")
        if (record.folder, key) in within:
            raise UsageError(f"download {_words(key)} is listed twice", where=where, remedy="export it again")
        within.add((record.folder, key))
        other = across.setdefault((*key, record.download.started_at), record.folder)
        if other != record.folder:
            raise UsageError(
                f"download {_words(key)} is also in {folders[other].path}", where=where, remedy="name one of the two"
            )


def _words(key: tuple[Value, ...]) -> str:
    named = dict(zip(store.DOWNLOAD_KEY, key, strict=True))
    return f"{named['vantage']}, iteration {named['iteration']}, {named['domain']}, {named['configuration']}"
