"""Connections with their KPIs as Parquet, as JSON and as a printed table; one row per packet as Parquet."""

from __future__ import annotations

import functools
import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import upshift_native

from analysis.captures.connection import Connection, Side
from analysis.captures.kpis import ALL as KPIS
from analysis.captures.kpis import Value
from analysis.captures.scan import CaptureReader, kpi_values, readable
from core.untrusted import plain

if TYPE_CHECKING:
    import pyarrow as pa

    from core.files import store

CONNECTION_KIND = "connections"
"""Kind of the Parquet table with one row per connection and its KPIs."""

IDENTITY = (
    ("capture", str, ""),
    ("connection", int, ""),
    ("protocol", str, ""),
    ("client_ip", str, ""),
    ("client_port", int, ""),
    ("server_ip", str, ""),
    ("server_port", int, ""),
    ("started_at", float, "s since 1970-01-01 UTC"),
)
"""Columns in front of the KPIs: name, type, unit."""

_AS_THEY_ARE = ("protocol", "client_ip", "client_port", "server_ip", "server_port")


def row(path: Path, connection: Connection) -> dict[str, Value]:
    """The identity columns and every KPI."""
    ends = {name: getattr(connection, name) for name in _AS_THEY_ARE}
    first = {"capture": str(path), "connection": connection.number, **ends, "started_at": connection.first_ns / 1e9}
    return first | kpi_values(connection)


@functools.cache
def schema() -> pa.Schema:
    """Schema of the table of connections, with the unit of each column."""
    import pyarrow as pa

    from core.files import schemas

    columns = [*IDENTITY, *((kpi.name, kpi.kind, kpi.unit) for kpi in KPIS.values())]
    fields = [schemas.column(name, kind, unit or None) for name, kind, unit in columns]
    return schemas.with_metadata(pa.schema(fields), CONNECTION_KIND)


@contextmanager
def table_writer(path: Path) -> Iterator[store.RowWriter]:
    """A writer of rows (see `row`), whose file appears atomically."""
    from core.files import disk, store

    with disk.whole_file(path) as temporary, store.RowWriter(temporary, CONNECTION_KIND, schema()) as writer:
        yield writer


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


PACKET_KIND = "packets"
"""Kind of the Parquet table with one row per packet."""

DIRECTIONS = ("c2s", "s2c")
WS_CLASSES = (
    "",
    "retransmission",
    "fast_retransmission",
    "spurious_retransmission",
    "out_of_order",
    "keep_alive",
    "keep_alive_ack",
    "dup_ack",
    "zero_window_probe",
    "zero_window_probe_ack",
)
"""`ws_class` by number: the engine's `WsClass`, in `rust/pcapscan/src/wireshark/class.rs`."""
TRUE_CLASSES = ("", "new", "retransmission", "reordered", "duplicate", "keep_alive", "out_of_window")
"""`true_class` by number: the engine's `TrueClass`, in `rust/pcapscan/src/truth.rs`."""


@functools.cache
def packet_schema() -> pa.Schema:
    """Schema of the table of packets."""
    import pyarrow as pa

    from core.files import schemas

    names = pa.dictionary(pa.int8(), pa.string())
    columns = pa.schema(
        [
            pa.field("frame", pa.uint64()),
            pa.field("time_ns", pa.int64(), metadata={"unit": "ns since 1970-01-01 UTC"}),
            pa.field("connection", pa.uint32()),
            pa.field("direction", names),
            pa.field("seq", pa.uint32()),
            pa.field("len", pa.uint32(), metadata={"unit": "B"}),
            pa.field("ws_class", names),
            pa.field("true_class", names),
        ]
    )
    return schemas.with_metadata(columns, PACKET_KIND)


def write_packets(capture: Path, out: Path, *, rules: str = "4.0") -> tuple[int, list[str]]:
    """Writes one row per packet. Returns (rows, warnings). Raises UsageError if the file is not a capture."""
    import pyarrow.parquet as pq

    from core.files import disk

    with readable(capture):
        reader = upshift_native.PacketReader(capture, rules=rules)
    rows = 0
    with (
        disk.whole_file(out) as temporary,
        pq.ParquetWriter(temporary, packet_schema(), compression="zstd") as writer,
    ):
        for table in map(_packets, iter(reader.next_batch, None)):
            rows += table.num_rows
            writer.write_table(table)
    return rows, reader.warnings()


def read_packets(capture: Path) -> pa.Table:
    """One row per packet, in memory: for captures of measurement runs. Raises UsageError if it is not a capture."""
    import pyarrow as pa

    with readable(capture):
        reader = upshift_native.PacketReader(capture)
    batches = [_packets(batch) for batch in iter(reader.next_batch, None)]
    return pa.concat_tables(batches) if batches else packet_schema().empty_table()


def _packets(batch: dict[str, bytes]) -> pa.Table:
    import pyarrow as pa
    import pyarrow.compute as pc

    def numbers(name: str, kind: pa.DataType) -> pa.Array:
        values = batch[name]
        return pa.Array.from_buffers(kind, len(values) * 8 // kind.bit_width, [None, pa.py_buffer(values)])

    def names(name: str, values: tuple[str, ...]) -> pa.Array:
        return pa.DictionaryArray.from_arrays(numbers(name, pa.int8()), pa.array(values))

    seq = numbers("seq", pa.int64())
    columns = [
        numbers("frame", pa.uint64()),
        numbers("time_ns", pa.int64()),
        numbers("connection", pa.uint32()),
        names("direction", DIRECTIONS),
        # The engine gives -1 for a packet without a sequence number (QUIC).
        pc.if_else(pc.less(seq, 0), None, seq).cast(pa.uint32()),
        numbers("len", pa.uint32()),
        names("ws_class", WS_CLASSES),
        names("true_class", TRUE_CLASSES),
    ]
    return pa.Table.from_arrays(columns, schema=packet_schema())


SUMMARY_COLUMNS = (
    ("mean_throughput", "Mbit/s", 2),
    ("goodput", "goodput", 2),
    ("duration", "s", 3),
    ("ip_bytes_from_server", "server bytes", 0),
    ("rtt_min", "RTT min ms", 2),
    ("rtt_mean", "mean ms", 2),
    ("true_retransmissions", "sent again", 0),
    ("true_reordered", "reordered", 0),
    ("ecn", "ECN", 0),
    ("sack", "SACK", 0),
    ("window_scale_client", "WS client", 0),
    ("window_scale_server", "WS server", 0),
)
"""Columns of the printed table: KPI, heading, decimals."""

_GAP = "  "

_PIPE_COLUMNS = 200
"""Width without a terminal."""

_MOST_ROWS = 1_000
"""Most connections in the printed table; Parquet has all."""


class KpiSummary:
    """The printed summary of captures: a line per file, then one table of their connections."""

    def __init__(self) -> None:
        self._headings: list[str] = []
        self._rows: list[list[str]] = []
        self._connections = 0
        self._in_file = 0
        self._gro = False

    def add(self, path: Path, connection: Connection) -> None:
        """Adds a connection of the file that is being read."""
        self._in_file += 1
        self._gro |= connection.gro
        if len(self._rows) < _MOST_ROWS:
            cells = [_cell(KPIS[name].compute(connection), decimals) for name, _, decimals in SUMMARY_COLUMNS]
            self._rows.append([path.name, str(connection.number), connection.protocol, _ends(connection), *cells])

    def end(self, reader: CaptureReader) -> None:
        """Ends the lines of a file."""
        skipped = sum(reader.skipped.values())
        parts = [f"{reader.packets} frames", f"{self._in_file} connections"]
        if skipped:
            parts.append(f"{skipped} frames outside them")
        if reader.truncated:
            parts.append("the file is truncated")
        if self._gro:
            parts.append("merged packets (GRO) make packet counts, IP bytes and their rates too small")
        self._headings.append(f"{reader.path}: {', '.join(parts)}")
        self._connections += self._in_file
        self._in_file, self._gro = 0, False

    def show(self) -> None:
        """Prints it to standard output: a table as wide as the terminal, with the columns that fit."""
        lines = list(self._headings)
        if self._rows:
            columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else _PIPE_COLUMNS
            lines += ["", *table(self._rows, columns=columns, with_file=len(self._headings) > 1), ""]
        if self._connections > len(self._rows):
            more = self._connections - len(self._rows)
            lines.append(f"... and {more} connections more: --json or -o FILE.parquet has all.")
        lines.append("All KPIs: --json or -o FILE.parquet. What each means: upshift kpis --help.")
        print("\n".join(map(plain, lines)))  # noqa: T201 - standard output is the product


def table(rows: Sequence[Sequence[str]], *, columns: int, with_file: bool) -> list[str]:
    """Lines of the printed table; the last KPIs are left out if they do not fit.

    Not by rich: importing it takes longer than reading a capture.
    """
    headings = ["capture", "#", "", "client -> server", *(heading for _, heading, _ in SUMMARY_COLUMNS)]
    cells = [[plain(cell) for cell in row[not with_file :]] for row in [headings, *rows]]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    names = 3 + with_file
    shown = names
    while shown < len(widths) and sum(widths[: shown + 1]) + len(_GAP) * shown <= columns:
        shown += 1
    left = {names - 1, names - 2, *((0,) if with_file else ())}
    lines = []
    for row in cells:
        padded = [
            cell.ljust(width) if index in left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row[:shown], widths, strict=False))
        ]
        lines.append(_GAP.join(padded).rstrip())
    lines.insert(1, "-" * (sum(widths[:shown]) + len(_GAP) * (shown - 1)))
    return lines


def _ends(connection: Connection) -> str:
    def end(address: str, port: int) -> str:
        return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"

    client = end(connection.client_ip, connection.client_port)
    return f"{client} -> {end(connection.server_ip, connection.server_port)}"


def _cell(value: Value, decimals: int) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.{decimals}f}" if isinstance(value, float) else str(value)
