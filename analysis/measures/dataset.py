"""The campaign folders that analysis reads, as one dataset, without duplicates; anything left out is reported."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from analysis.measures.columns import Codes, Downloads, Floats, Mask, Texts, release_memory
from analysis.measures.folders import DOWNLOADS, Design, Folder, check, read_design, read_folder
from analysis.measures.reader import COLUMNS, Names, Reader
from core.domain import Download, Outcome, Superseded, Transport
from core.errors import PlaceError, UsageError
from core.files import disk, schemas, store
from core.files.schemas import build
from core.system import this_host

Value = float | int | str | bool | None

Item = TypeVar("Item")

MOST_RECORDS = 500_000
"""Most downloads that become objects of 10 kB each: quirks change single ones, and a paper's tables are made with them.
All else is made from columns."""

ROW_BYTES = 200
"""Memory that tables and report take for each download (measured: benchmarks/growth)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One download with its folder and KPIs."""

    folder: int
    """Index into `Dataset.folders`: the same names in two folders are two measurement runs."""
    download: Download
    kpis: Mapping[str, Value]
    """KPI name -> value; empty if it has none (`Download.kpi_engine`)."""
    near_ceiling: bool | None = None
    """Whether its client may have been the limit, None if that is not known; see `ceilings.near_ceiling`."""
    starved: bool | None = None
    """Whether its client waited for a CPU, None if that is not known; see `ceilings.starved`."""

    @property
    def run(self) -> tuple[int, str, str, int, str, str]:
        """Identifies the measurement run: downloads are compared only within it."""
        d = self.download
        return (self.folder, d.campaign, d.vantage, d.iteration, d.domain, d.url)

    @property
    def is_warmup(self) -> bool:
        """Whether this download only warmed caches: it is left out of Table 1 and the figures."""
        return self.download.is_warmup

    def number(self, kpi: str) -> float | None:
        """A KPI as a finite number, None if it is missing."""
        value = self.kpis.get(kpi)
        if isinstance(value, (int, float)) and math.isfinite(value):
            return float(value)
        return None


Identity = tuple[int, int, int]
"""Inode, size [B] and time of change [ns] of a file."""

Source = Callable[[Sequence[str]], Iterator["pa.RecordBatch"]]
"""(names of columns) -> batches of a folder's downloads with these columns; columns that it lacks are empty."""


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """All given folders together."""

    folders: tuple[Folder, ...]
    sources: tuple[Source, ...]
    """The downloads of each folder, for columns of which little needs all."""
    downloads: Downloads
    kpi_units: Mapping[str, str]
    """KPI name -> unit, empty without a unit; only KPIs of folders with captures."""
    superseded: tuple[Superseded, ...]
    design: Design
    """The configurations and comparisons."""
    notes: tuple[str, ...]
    """Sentences about what is missing, to be printed."""
    counted: tuple[Identity, ...] = ()
    """The file of each folder, whose rows are known by their indices."""

    def column(self, name: str) -> pa.ChunkedArray:
        """Any column of `downloads`, an element per download, which is empty where a folder lacks the column."""
        chunks = [batch[name] for source in self.sources for batch in source([name])]
        kind = next((chunk.type for chunk in chunks if not pt.is_null(chunk.type)), pa.null())
        return pa.chunked_array([pa.nulls(len(one), kind) if pt.is_null(one.type) else one for one in chunks])

    def texts(self, name: str) -> Texts:
        """A column of texts of `Download`."""
        names = Names()
        codes = [names.encode(batch[name]) for source in self.sources for batch in source([name])]
        return Texts(np.concatenate([np.empty(0, dtype=np.int8), *codes]), names.all)

    def has(self, name: str) -> Mask:
        """The downloads for which a column is not empty."""
        known: Mask = self.column(name).is_valid().to_numpy()
        return known

    def started_at(self) -> Floats:
        """When each download started [Unix time, s]."""
        return _started_at(self.sources)

    def kpi(self, name: str) -> Floats:
        """A KPI of each download as a finite number, NaN if it is missing."""
        return np.concatenate([np.empty(0), *(columns[0] for _, columns in self.kpi_numbers(name))])

    def kpi_numbers(self, *names: str) -> Iterator[tuple[Codes, list[Floats]]]:
        """Batches of downloads (their indices) with these KPIs as finite numbers, NaN where they are missing."""
        for rows, columns in self.kpi_columns(*names):
            yield rows, [finite(column) for column in columns]

    def kpi_columns(self, *names: str) -> Iterator[tuple[Codes, list[pa.Array]]]:
        """Batches of downloads (their indices) with these KPIs, which are empty where a folder lacks the column."""
        first = 0
        for source in self.sources:
            for batch in source(names):
                yield np.arange(first, first + batch.num_rows, dtype=np.int32), [batch[name] for name in names]
                first += batch.num_rows

    @cached_property
    def records(self) -> tuple[Record, ...]:
        """Each download as an object, in the order of `downloads`: for what changes single ones.

        Raises:
            UsageError: there are more than `MOST_RECORDS`.
        """
        _refuse_many(len(self.downloads), [folder.path for folder in self.folders])
        return tuple(self.records_of(np.arange(len(self.downloads))))

    def records_of(self, rows: Codes) -> list[Record]:
        """Some downloads as objects, for what shows single ones: whole rows are read only of row groups that have one.

        Args:
            rows: their indices, in ascending order.
        """
        if (known := self.__dict__.get("records")) is not None:
            return [known[row] for row in rows.tolist()]
        d = self.downloads
        own = {entry.name for entry in dataclasses.fields(Download)}
        # Folders follow each other, so each begins with the first row of its number.
        ends = np.cumsum(np.bincount(d.runs.folder[d.run], minlength=len(self.folders)))
        parts = np.split(rows, np.searchsorted(rows, ends))
        paths = [folder.path / DOWNLOADS for folder in self.folders]
        records = (
            (index, row)
            for index, (path, counted, part) in enumerate(zip(paths, self.counted, parts[:-1], strict=True))
            for row in _of_file(
                path,
                counted,
                store.rows_at(path, "downloads", (part - (ends[index - 1] if index else 0)).tolist()),
            )
        )
        flags = zip(d.near_ceiling[rows].tolist(), d.starved[rows].tolist(), strict=True)
        return [
            Record(
                folder=index,
                download=build(Download, row),
                kpis={} if row.get("kpi_engine") is None else {name: row[name] for name in row if name not in own},
                near_ceiling=_FLAG[near],
                starved=_FLAG[starved],
            )
            for (index, row), (near, starved) in zip(records, flags, strict=True)
        ]

    def with_records(self, records: Sequence[Record]) -> Dataset:
        """The same folders with other downloads, e.g. changed ones."""
        ordered = sorted(records, key=lambda record: record.folder)
        members = [[record for record in ordered if record.folder == index] for index in range(len(self.folders))]
        sources = tuple(partial(_columns_of, part) for part in members)
        reader = Reader(len(ordered))
        for folder, source in zip(self.folders, sources, strict=True):
            reader.add(folder.path, source(COLUMNS), folder.environment)
        downloads = reader.finish(lambda: _started_at(sources))
        changed = dataclasses.replace(self, sources=sources, downloads=downloads)
        changed.__dict__["records"] = tuple(ordered)  # What the property would read again.
        return changed


_YEAR_10000 = 253_402_300_800.0
"""Where the calendar ends [Unix time, s]."""
_FLAG = {1: True, 0: False, -1: None}


def load_few(paths: Sequence[Path]) -> Dataset:
    """Reads campaign folders whose downloads are changed one by one (`Dataset.records`).

    Raises:
        UsageError: as `load`; at once, if there are more downloads than `MOST_RECORDS`.
    """
    for path in paths:
        check(path)
    _refuse_many(sum(store.count(path / DOWNLOADS, "downloads") for path in paths), paths)
    return load(paths)


def _refuse_many(count: int, paths: Sequence[Path]) -> None:
    if count > MOST_RECORDS:
        raise UsageError(
            f"{count} downloads are more than the {MOST_RECORDS} that can be changed one by one",
            where=", ".join(map(str, paths)),
            remedy="leave out quirks and --beside, or name fewer folders",
        )


def _require_memory(count: int, paths: Sequence[Path]) -> None:
    """Raises PlaceError where so many downloads do not fit into memory: the kernel would end the program later."""
    available = this_host.available_memory()
    if available is not None and count * ROW_BYTES > available:
        raise PlaceError(
            f"{count} downloads take about {disk.size_text(count * ROW_BYTES)} of memory, and "
            f"{disk.size_text(available)} are available",
            where=", ".join(map(str, paths)),
            remedy="name fewer folders",
        )


def load(paths: Sequence[Path]) -> Dataset:
    """Reads campaign folders.

    Raises:
        UsageError: a folder is missing, has no `campaign.json` or `downloads.parquet`, has none in it, has downloads
            that another folder (or the same) already has, is inspected meanwhile, or uses the name of a configuration
            or a comparison for something else.
        PlaceError: they do not fit into memory.
    """
    folders: list[Folder] = []
    sources: list[Source] = []
    superseded: list[Superseded] = []
    resolved: set[Path] = set()
    for path in paths:
        if path.resolve() in resolved:
            raise UsageError("this folder is named twice", where=str(path), remedy="name it once")
        resolved.add(path.resolve())
        check(path)
    design = read_design(paths)
    counted = tuple(_identity(path / DOWNLOADS) for path in paths)
    rows = sum(store.count(path / DOWNLOADS, "downloads") for path in paths)
    _require_memory(rows, paths)
    reader = Reader(rows)
    for path, identity in zip(paths, counted, strict=True):
        folders.append(read_folder(path))
        sources.append(partial(_columns_in, path / DOWNLOADS, identity))
        batches = _of_file(path / DOWNLOADS, identity, store.scan(path / DOWNLOADS, "downloads", COLUMNS))
        if not reader.add(path, batches, folders[-1].environment):
            raise UsageError("it has no downloads", where=str(path / DOWNLOADS), remedy="run the campaign first")
        superseded += _superseded(path)
    release_memory()
    downloads = reader.finish(lambda: _started_at(sources))
    release_memory()
    return Dataset(
        folders=tuple(folders),
        sources=tuple(sources),
        downloads=downloads,
        kpi_units=_kpi_units(folders, downloads),
        superseded=tuple(superseded),
        design=design,
        notes=(*_without_http3(design, downloads), *_notes(folders, downloads)),
        counted=counted,
    )


def _kpi_units(folders: Sequence[Folder], downloads: Downloads) -> dict[str, str]:
    """The KPIs of the folders that have some."""
    own = {entry.name for entry in dataclasses.fields(Download)}
    units: dict[str, str] = {}
    for index in np.unique(downloads.runs.folder[downloads.run[downloads.has_kpis]]).tolist():
        for name, unit in store.columns(folders[index].path / DOWNLOADS, "downloads").items():
            if name not in own:
                units.setdefault(name, unit)
    return units


def _without_http3(design: Design, downloads: Downloads) -> Iterator[str]:
    """At how many domains nothing was planned over QUIC."""
    domains = downloads.runs.domain.present()
    apart = design.without_http3 & domains
    if apart:  # in another folder, or at another URL, they may have been measured over QUIC
        is_quic = downloads.transport.are(Transport.QUIC)
        apart -= downloads.runs.domain[downloads.run[is_quic]].present()
    if apart:
        yield (
            f"Not planned over QUIC: {len(apart)} of {len(domains)} domains, known to be without HTTP/3 "
            "(campaign.json, without_http3)."
        )


def _notes(folders: Sequence[Folder], downloads: Downloads) -> Iterator[str]:
    """Which KPIs are missing, and which campaigns imitated the published code."""
    of_folder = downloads.runs.folder[downloads.run]
    unmatched = downloads.outcome.are(Outcome.OK) & ~downloads.has_kpis
    for index, folder in enumerate(folders):
        members = of_folder == index
        if folder.published_quirks:
            yield (
                f"{folder.path} was measured with quirks of the published code: {', '.join(folder.published_quirks)}."
            )
        if not (members & downloads.has_kpis).any():
            yield (
                f"{folder.path} has no KPIs, so figures from its captures are missing; "
                "`upshift inspect` makes them from the captures."
            )
        elif missing := np.count_nonzero(unmatched & members):
            yield f"{folder.path}: {missing} of {np.count_nonzero(members)} downloads are ok and have no KPIs."


def _columns_in(path: Path, counted: Identity, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    return _of_file(path, counted, store.scan(path, "downloads", names, all_optional=True))


def _identity(path: Path) -> Identity:
    state = path.stat()
    return state.st_ino, state.st_size, state.st_mtime_ns


def _of_file(path: Path, counted: Identity, items: Iterator[Item]) -> Iterator[Item]:
    """What is read of a folder's downloads. Raises UsageError if they are not those that were counted, since
    `upshift inspect` has put a new file in their place."""
    while True:
        try:
            item = next(items, None)
        finally:  # also where the other file broke the reader
            if path.exists() and _identity(path) != counted:
                remedy = "run the same command again"
                raise UsageError("it was rebuilt meanwhile", where=str(path), remedy=remedy) from None
        if item is None:
            return
        yield item


def _columns_of(records: Sequence[Record], names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Records as `store.scan` gives the rows of a file."""
    known = {field.name: field.type for field in schemas.row_schema("downloads")}
    columns = {}
    for name in names:
        if name == "run":  # A change of the records may have moved them to other runs.
            numbers: dict[tuple[object, ...], int] = {}
            column = pa.array([numbers.setdefault(record.run, len(numbers)) for record in records], type=known[name])
        elif name in known:
            column = pa.array([getattr(record.download, name) for record in records], type=known[name])
        else:
            column = pa.array([record.kpis.get(name) for record in records])
        columns[name] = column.dictionary_encode() if pa.types.is_string(column.type) else column
    yield pa.RecordBatch.from_pydict(columns)


def _started_at(sources: Sequence[Source]) -> Floats:
    """When each download started [Unix time, s]."""
    batches = (batch["started_at"] for source in sources for batch in source(["started_at"]))
    # Also without any download.
    return np.concatenate([np.empty(0), *(column.to_numpy(zero_copy_only=False) for column in batches)])


def dates(times: Floats) -> str:
    """`2026-11-22 16:00 to 2026-11-23 04:10`: first and last of Unix times [s], in UTC; `?` if none is a date."""
    known = times[(times >= 0) & (times < _YEAR_10000)]
    ends = (known.min(), known.max()) if len(known) else ()
    return " to ".join(datetime.fromtimestamp(end, UTC).strftime("%Y-%m-%d %H:%M") for end in ends) or "?"


def finite(column: pa.Array) -> Floats:
    """Numbers, NaN for those that are missing or not finite, and for text."""
    kind = column.type
    if not (pt.is_integer(kind) or pt.is_floating(kind) or pt.is_boolean(kind)):
        return np.full(len(column), math.nan)
    values: Floats = column.cast("int8" if pt.is_boolean(kind) else kind).cast("float64").to_numpy(zero_copy_only=False)
    return np.where(np.isfinite(values), values, math.nan)


def _superseded(path: Path) -> list[Superseded]:
    file = path / "superseded.parquet"
    return store.read_rows(file, "superseded", Superseded) if file.is_file() else []
