"""Capture files -> connections -> KPIs, one file or whole directories, several files at once."""

from __future__ import annotations

import functools
import json
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import upshift_native

from analysis.connection import Connection, Side
from analysis.kpi import Value
from analysis.kpis import ALL as KPIS
from upshift import store
from upshift.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

Item = TypeVar("Item")
Result = TypeVar("Result")

SUFFIXES = (".pcap", ".pcapng", ".cap", ".dmp")
"""Names that a directory is searched for, also with `.gz` or `.zst` behind."""

CONNECTION_KIND = "connections"
"""Kind of the Parquet table with one row per connection and its KPIs."""

IDENTITY = (
    ("capture", str, "path of the capture, as it was named"),
    ("connection", int, "index in the capture"),
    ("protocol", str, "tcp or quic"),
    ("client_ip", str, ""),
    ("client_port", int, ""),
    ("server_ip", str, ""),
    ("server_port", int, ""),
    ("started_at", float, "s since 1970-01-01 UTC, first packet"),
)
"""Columns in front of the KPIs: name, type, unit."""

_ROWS_PER_GROUP = 16_384
_FILES_AHEAD = 8
"""Files given to each worker beforehand; results wait in memory until they are taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """What a capture file holds."""

    path: Path
    connections: tuple[Connection, ...]
    packets: int
    """Frames as Wireshark counts them."""
    truncated: bool
    """The file is cut or damaged; what came before is here."""
    warnings: tuple[str, ...]
    skipped: Mapping[str, int]
    """Packets outside connections, by reason."""


def scan_capture(path: Path, *, series: bool = False, rules: str = "4.0") -> Capture:
    """Scans one capture file. Raises UsageError where it is missing, empty or no capture."""
    with readable(path):
        result = upshift_native.scan(path, series=series, rules=rules)
    return Capture(
        path=path,
        connections=tuple(map(Connection.from_record, result.connections)),
        packets=result.packets,
        truncated=result.truncated,
        warnings=tuple(result.warnings),
        skipped=result.skipped,
    )


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turns the engine's refusal of a file into one sentence."""
    try:
        yield
    except upshift_native.CaptureError as error:
        remedy = "name a file that tcpdump or Wireshark wrote"
        raise UsageError(f"this file {error}", where=str(path), remedy=remedy) from None


def find_captures(path: Path) -> list[Path]:
    """The file itself, or all captures below a directory in order of name. Raises UsageError where there are none."""
    if not path.exists():
        raise UsageError("there is no such file or directory", where=str(path), remedy="name a capture")
    if not path.is_dir():
        return [path]
    found = sorted(entry for entry in path.rglob("*") if is_capture_name(entry.name) and entry.is_file())
    if not found:
        wanted = ", ".join(f"*{suffix}" for suffix in SUFFIXES)
        raise UsageError(
            "this directory holds no captures", where=str(path), remedy=f"captures are named {wanted} (.gz, .zst)"
        )
    return found


def is_capture_name(name: str) -> bool:
    """Whether a file of this name counts as a capture."""
    return name.removesuffix(".gz").removesuffix(".zst").endswith(SUFFIXES)


def scan_many(
    paths: Iterable[Path], *, jobs: int | None = None, series: bool = False, rules: str = "4.0"
) -> Iterator[Capture | UsageError]:
    """Scans files on several threads (the engine releases the GIL); results in the order of the paths.

    A file that is no capture gives its error as a value: one bad file must not hide the others.
    """

    def scan(path: Path) -> Capture | UsageError:
        try:
            return scan_capture(path, series=series, rules=rules)
        except UsageError as error:
            return error

    yield from in_order(scan, paths, jobs=jobs)


def in_order(function: Callable[[Item], Result], items: Iterable[Item], *, jobs: int | None) -> Iterator[Result]:
    """`map` on threads that keeps few results in memory."""
    workers = jobs or os.cpu_count() or 1
    with ThreadPoolExecutor(max_workers=workers) as pool:
        waiting: deque[Future[Result]] = deque()
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > workers * _FILES_AHEAD:
                yield waiting.popleft().result()
        for future in waiting:
            yield future.result()


def kpi_values(connection: Connection) -> dict[str, Value]:
    """Every KPI of a connection."""
    return {name: compute(connection) for name, compute in _computations()}


@functools.cache
def _computations() -> tuple[tuple[str, Callable[[Connection], Value]], ...]:
    return tuple((name, kpi.compute) for name, kpi in KPIS.items())


def row(path: Path, connection: Connection) -> dict[str, Value]:
    """The identity columns and every KPI."""
    identity: dict[str, Value] = {
        "capture": str(path),
        "connection": connection.number,
        "protocol": connection.protocol,
        "client_ip": connection.client_ip,
        "client_port": connection.client_port,
        "server_ip": connection.server_ip,
        "server_port": connection.server_port,
        "started_at": connection.first_ns / 1e9,
    }
    return identity | kpi_values(connection)


@functools.cache
def schema() -> pa.Schema:
    """Schema of the table of connections, with the unit of each column."""
    import pyarrow as pa

    arrow = {int: pa.int64(), float: pa.float64(), str: pa.string(), bool: pa.bool_()}
    columns = [*IDENTITY, *((kpi.name, kpi.kind, kpi.unit) for kpi in KPIS.values())]
    fields = [pa.field(name, arrow[kind], metadata={"unit": unit} if unit else None) for name, kind, unit in columns]
    return pa.schema(fields, metadata=table_metadata(CONNECTION_KIND))


def table_metadata(kind: str) -> dict[str, str]:
    """What `upshift.store` wants to see in a file of ours."""
    return {"upshift.kind": kind, "upshift.schema_version": str(store.SCHEMA_VERSIONS[kind])}


class TableWriter:
    """Writes rows to Parquet (zstd) as they come, a bounded number in memory."""

    def __init__(self, path: Path) -> None:
        import pyarrow.parquet as pq

        self._schema = schema()
        self._writer = pq.ParquetWriter(path, self._schema, compression="zstd")
        self._rows: list[Mapping[str, Value]] = []
        self.rows = 0

    def add(self, rows: Sequence[Mapping[str, Value]]) -> None:
        """Adds rows."""
        self._rows.extend(rows)
        self.rows += len(rows)
        if len(self._rows) >= _ROWS_PER_GROUP:
            self._flush()

    def _flush(self) -> None:
        import pyarrow as pa

        arrays = [pa.array([row[field.name] for row in self._rows], type=field.type) for field in self._schema]
        self._writer.write_table(pa.Table.from_arrays(arrays, schema=self._schema))
        self._rows = []

    def close(self) -> None:
        """Writes what is left."""
        if self._rows or self.rows == 0:
            self._flush()
        self._writer.close()


@contextmanager
def table_writer(path: Path) -> Iterator[TableWriter]:
    """A writer whose file appears whole or not at all."""
    with store.whole_file(path) as temporary:
        writer = TableWriter(temporary)
        yield writer
        writer.close()


def document(path: Path, connection: Connection) -> str:
    """The JSON document of one connection: `capture`, `kpis`, `record` (see docs/design/kpi-engine.md for the keys)."""
    record: dict[str, Any] = {name: getattr(connection, name) for name in Connection.__slots__}
    series = record.pop("series")
    for side in ("client", "server"):
        record[side] = {name: getattr(record[side], name) for name in Side.__slots__}
    parts: dict[str, Any] = {"capture": str(path), "connection": connection.number, "kpis": kpi_values(connection)}
    parts["record"] = record
    if series is not None:
        parts["series"] = series
    return json.dumps(parts, ensure_ascii=False, allow_nan=False)
