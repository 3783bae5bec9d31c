"""The campaign folders that analysis reads, as one dataset, without duplicates; anything left out is reported."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from analysis.measures import memory
from analysis.measures.arrays import Codes, Floats
from analysis.measures.columns import Downloads
from analysis.measures.comparisons import Appearance, Design, read_design
from analysis.measures.folder import Folder, read_folder
from analysis.measures.reader import COLUMNS, Reader
from analysis.measures.run_keys import read_kpi_keys
from core.domain import Download, Outcome, Superseded
from core.errors import UsageError, not_found
from core.files import schemas, store

if TYPE_CHECKING:
    import pyarrow as pa

Value = float | int | str | bool | None

MOST_RECORDS = 500_000
"""Most downloads of which single ones are looked at: each takes 10 kB. The report, figures and quirks need them; tables
and `upshift compare` do not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One download with its folder and KPIs."""

    folder: int
    """Index into `Dataset.folders`: the same names in two folders are two measurement runs."""
    download: Download
    kpis: Mapping[str, Value]
    """KPI name -> value; empty if `kpis.parquet` has no row for this download."""
    near_ceiling: bool | None = None
    """Whether its client may have been the limit, None if that is not known; see `ceilings.near_ceiling`."""
    starved: bool | None = None
    """Whether its client waited for a CPU, None if that is not known; see `processor.starved`."""

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


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """All given folders together."""

    folders: tuple[Folder, ...]
    downloads: Downloads
    kpi_rows: tuple[Codes, ...]
    """Per folder, the download of each row of its `kpis.parquet`; -1 for a download that is not there."""
    kpi_units: Mapping[str, str]
    """KPI name -> unit; empty without a unit."""
    superseded: tuple[Superseded, ...]
    design: Design
    """The configurations and comparisons."""
    notes: tuple[str, ...]
    """Sentences about what is missing, to be printed."""
    given: tuple[Record, ...] | None = None
    """The records, if they are not those of the folders' files; see `of_records`."""

    def started_at(self) -> Floats:
        """When each download started [Unix time, s]; read anew, as little needs it."""
        return _started_at(self.folders) if self.given is None else _given_started_at(self.given)

    def kpi(self, name: str) -> Floats:
        """A KPI of each download as a finite number, NaN if it is missing."""
        found = np.full(len(self.downloads), math.nan)
        for rows, (values,) in self.kpi_numbers(name):
            found[rows] = values
        return found

    def kpi_numbers(self, *names: str) -> Iterator[tuple[Codes, list[Floats]]]:
        """Batches of downloads (their indices) with these KPIs as finite numbers, NaN where they are missing."""
        if self.given is not None:
            rows = [[math.nan if (value := r.number(name)) is None else value for r in self.given] for name in names]
            yield np.arange(len(self.given)), [np.array(values, dtype=np.float64) for values in rows]
            return
        for at, columns in self.kpi_columns(*names):
            yield at, [_finite(column) for column in columns]

    def kpi_columns(self, *names: str) -> Iterator[tuple[Codes, list[pa.Array]]]:
        """Batches of downloads (their indices) with these KPIs, which are empty where a folder lacks the column."""
        import pyarrow as pa

        if self.given is not None:
            yield np.arange(len(self.given)), [pa.array([r.kpis.get(name) for r in self.given]) for name in names]
            return
        for folder, rows in zip(self.folders, self.kpi_rows, strict=True):
            file, first = folder.path / KPIS, 0
            present = [name for name in names if len(rows) and name in store.columns(file, "kpis")]
            for batch in store.scan(file, "kpis", present) if present else ():
                at, first = rows[first : first + batch.num_rows], first + batch.num_rows
                known = np.flatnonzero(at >= 0)
                taken = batch if len(known) == len(at) else batch.take(pa.array(known))
                yield at[known], [taken[name] if name in present else pa.nulls(len(known)) for name in names]

    @cached_property
    def records(self) -> tuple[Record, ...]:
        """Each download as an object, in the order of `downloads`: for what shows single ones.

        Raises:
            UsageError: there are more than `MOST_RECORDS`.
        """
        if self.given is not None:
            return self.given
        _refuse_many(len(self.downloads), [folder.path for folder in self.folders])
        kpis: dict[int, Mapping[str, Value]] = {}
        read: list[tuple[int, Download]] = []
        for index, (folder, rows) in enumerate(zip(self.folders, self.kpi_rows, strict=True)):
            read += [(index, d) for d in store.read_rows(folder.path / DOWNLOADS, "downloads", Download)]
            for at, row in zip(
                rows.tolist(), store.each_row(folder.path / KPIS, "kpis") if len(rows) else (), strict=True
            ):
                kpis[at] = {name: row[name] for name in row if name not in _NO_KPIS}
        flags = zip(self.downloads.near_ceiling.tolist(), self.downloads.starved.tolist(), strict=True)
        return tuple(
            Record(
                folder=index,
                download=download,
                kpis=kpis.get(row, {}),
                near_ceiling=_FLAG[near],
                starved=_FLAG[starved],
            )
            for row, ((index, download), (near, starved)) in enumerate(zip(read, flags, strict=True))
        )

    def with_records(self, records: Sequence[Record]) -> Dataset:
        """The same folders with other downloads, e.g. changed ones."""
        return of_records(
            records,
            folders=self.folders,
            kpi_units=self.kpi_units,
            superseded=self.superseded,
            design=self.design,
            notes=self.notes,
        )


def of_records(
    records: Sequence[Record],
    *,
    folders: Sequence[Folder],
    kpi_units: Mapping[str, str],
    superseded: Sequence[Superseded],
    design: Design,
    notes: Sequence[str],
) -> Dataset:
    """A dataset of these records, in the order of their folders; see `Dataset` for the other arguments."""
    ordered = sorted(records, key=lambda record: record.folder)
    reader = Reader(len(ordered))
    for index, folder in enumerate(folders):
        members = [record.download for record in ordered if record.folder == index]
        reader.add(folder.path, [_as_batch(members)], folder.environment)
    downloads, kpi_rows = reader.finish(lambda: _given_started_at(ordered))
    return Dataset(
        folders=tuple(folders),
        downloads=downloads,
        kpi_rows=kpi_rows,
        kpi_units=kpi_units,
        superseded=tuple(superseded),
        design=design,
        notes=tuple(notes),
        given=tuple(ordered),
    )


DOWNLOADS, KPIS = "downloads.parquet", "kpis.parquet"

_NO_KPIS = (*schemas.DOWNLOAD_KEY, "engine")
"""Columns of `kpis` that are not KPIs."""

_FLAG = {1: True, 0: False, -1: None}


def load_few(paths: Sequence[Path]) -> Dataset:
    """Reads campaign folders whose downloads are shown one by one (`Dataset.records`).

    Raises:
        UsageError: as `load`; at once, if there are more downloads than `MOST_RECORDS`.
    """
    for path in paths:
        _check(path)
    _refuse_many(sum(store.count(path / DOWNLOADS, "downloads") for path in paths), paths)
    return load(paths)


def _refuse_many(count: int, paths: Sequence[Path]) -> None:
    if count > MOST_RECORDS:
        raise UsageError(
            f"{count} downloads are more than the {MOST_RECORDS} that can be shown one by one",
            where=", ".join(map(str, paths)),
            remedy="use `upshift tables` without quirks or `upshift compare`, or name fewer folders",
        )


def load(paths: Sequence[Path]) -> Dataset:
    """Reads campaign folders.

    Raises:
        UsageError: a folder is missing, has no `downloads.parquet`, has none in it, has downloads that another
            folder (or the same) already has, or uses the name of a configuration or a comparison for something else.
    """
    folders: list[Folder] = []
    superseded: list[Superseded] = []
    units: dict[str, str] = {}
    read: list[tuple[Path, list[Appearance]]] = []
    resolved: set[Path] = set()
    for path in paths:
        if path.resolve() in resolved:
            raise UsageError("this folder is named twice", where=str(path), remedy="name it once")
        resolved.add(path.resolve())
        _check(path)
    reader = Reader(sum(store.count(path / DOWNLOADS, "downloads") for path in paths))
    with ThreadPoolExecutor(1) as beside:
        for path in paths:
            has_kpis = (path / KPIS).is_file()
            scan = store.scan(path / KPIS, "kpis", schemas.DOWNLOAD_KEY) if has_kpis else ()
            kpi_keys = beside.submit(read_kpi_keys, scan)
            folders.append(read_folder(path))
            batches = store.scan(path / DOWNLOADS, "downloads", COLUMNS)
            appearances = reader.add(path, batches, folders[-1].environment)
            if not appearances:
                raise UsageError("it has no downloads", where=str(path / DOWNLOADS), remedy="run the campaign first")
            read.append((path, appearances))
            reader.add_kpis(kpi_keys.result())
            for name, unit in store.columns(path / KPIS, "kpis").items() if has_kpis else ():
                if name not in _NO_KPIS:
                    units.setdefault(name, unit)
            superseded += _superseded(path)
    memory.release()
    downloads, kpi_rows = reader.finish(lambda: _started_at(folders))
    memory.release()
    design = read_design(read)
    return Dataset(
        folders=tuple(folders),
        downloads=downloads,
        kpi_rows=kpi_rows,
        kpi_units=units,
        superseded=tuple(superseded),
        design=design,
        notes=(*design.notes, *_notes(folders, downloads, kpi_rows)),
    )


def _notes(folders: Sequence[Folder], downloads: Downloads, kpi_rows: Sequence[Codes]) -> Iterator[str]:
    """Which KPIs are missing, and which campaigns imitated the published code."""
    is_ok = downloads.outcome.are(Outcome.OK)
    of_folder = downloads.of_run(downloads.runs.folder)
    for index, (folder, rows) in enumerate(zip(folders, kpi_rows, strict=True)):
        if folder.published_quirks:
            yield (
                f"{folder.path} was measured with quirks of the published code: {', '.join(folder.published_quirks)}."
            )
        if not (folder.path / KPIS).is_file():
            yield (
                f"{folder.path} has no kpis.parquet, so figures from its captures are missing; "
                "`upshift inspect` makes the file from them."
            )
        elif len(rows):
            members = of_folder == index
            unmatched = members & is_ok
            unmatched[rows[rows >= 0]] = False
            if unmatched.any():
                yield (
                    f"{folder.path}: {np.count_nonzero(unmatched)} of {np.count_nonzero(members)} downloads are ok and "
                    "have no row in kpis.parquet."
                )


def _started_at(folders: Sequence[Folder]) -> Floats:
    """When each download in the files started [Unix time, s]."""
    batches = (
        batch for folder in folders for batch in store.scan(folder.path / DOWNLOADS, "downloads", ["started_at"])
    )
    # Also without any download.
    return np.concatenate([np.empty(0), *(batch["started_at"].to_numpy(zero_copy_only=False) for batch in batches)])


def _given_started_at(records: Sequence[Record]) -> Floats:
    return np.array([record.download.started_at for record in records], dtype=np.float64)


def _finite(column: pa.Array) -> Floats:
    """Numbers, NaN for those that are missing or not finite, and for text."""
    import pyarrow.types as pt

    kind = column.type
    if not (pt.is_integer(kind) or pt.is_floating(kind) or pt.is_boolean(kind)):
        return np.full(len(column), math.nan)
    found: Floats = column.cast("int8" if pt.is_boolean(kind) else kind).cast("float64").to_numpy(zero_copy_only=False)
    return np.where(np.isfinite(found), found, math.nan)


def _as_batch(downloads: Sequence[Download]) -> pa.RecordBatch:
    """Downloads as `store.scan` gives them."""
    import pyarrow as pa

    schema = schemas.row_schema("downloads")
    columns = {}
    for name in COLUMNS:
        column = pa.array(map(operator.attrgetter(name), downloads), type=schema.field(name).type)
        columns[name] = column.dictionary_encode() if pa.types.is_string(column.type) else column
    return pa.RecordBatch.from_pydict(columns)


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


def _check(path: Path) -> None:
    """Raises UsageError if this is not a campaign folder."""
    if not path.exists():
        raise not_found(path, "folder", remedy="name the --out folder of `upshift run`")
    if not (path / DOWNLOADS).is_file():
        raise UsageError(
            "this folder has no downloads.parquet",
            where=str(path),
            remedy="name the --out folder of `upshift run`, or let `upshift run` finish there",
        )


def _superseded(path: Path) -> list[Superseded]:
    file = path / "superseded.parquet"
    return store.read_rows(file, "superseded", Superseded) if file.is_file() else []
