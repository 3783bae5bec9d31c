"""Connections with their KPIs as Parquet and JSON, and one row per packet as Parquet."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import upshift_native

from analysis.captures.connection import Connection, Side
from analysis.captures.kpis import ALL as KPIS
from analysis.captures.kpis import Value
from analysis.captures.scan import kpi_values, readable

if TYPE_CHECKING:
    import pyarrow as pa

CONNECTION_KIND = "connections"
"""Kind of the Parquet table with one row per connection and its KPIs."""

IDENTITY = (
    ("capture", str, "path of the capture, as given"),
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
    """The metadata that `core.files.schemas` requires."""
    from core.files import schemas

    return {"upshift.kind": kind, "upshift.schema_version": str(schemas.SCHEMA_VERSIONS[kind])}


class TableWriter:
    """Writes rows to Parquet (zstd) as they come; a bounded number is in memory."""

    def __init__(self, path: Path) -> None:
        import pyarrow.parquet as pq

        self._schema = schema()
        self._writer = pq.ParquetWriter(path, self._schema, compression="zstd")
        self._columns: dict[str, list[Value]] = {field.name: [] for field in self._schema}
        self.rows = 0

    def add(self, row: Mapping[str, Value]) -> None:
        """Adds a row."""
        for name, column in self._columns.items():
            column.append(row[name])
        self.rows += 1
        if self.rows % _ROWS_PER_GROUP == 0:
            self._flush()

    def _flush(self) -> None:
        import pyarrow as pa

        arrays = [pa.array(self._columns[field.name], type=field.type) for field in self._schema]
        self._writer.write_table(pa.Table.from_arrays(arrays, schema=self._schema))
        for column in self._columns.values():
            column.clear()

    def close(self) -> None:
        """Writes the remaining rows."""
        if self.rows % _ROWS_PER_GROUP or self.rows == 0:
            self._flush()
        self._writer.close()


@contextmanager
def table_writer(path: Path) -> Iterator[TableWriter]:
    """A writer whose file appears atomically."""
    from core.files import disk

    with disk.whole_file(path) as temporary:
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

    names = pa.dictionary(pa.int8(), pa.string())
    return pa.schema(
        [
            pa.field("frame", pa.uint64()),
            pa.field("time_ns", pa.int64(), metadata={"unit": "ns since 1970-01-01 UTC"}),
            pa.field("connection", pa.uint32()),
            pa.field("direction", names),
            pa.field("seq", pa.uint32()),
            pa.field("len", pa.uint32(), metadata={"unit": "B"}),
            pa.field("ws_class", names),
            pa.field("true_class", names),
        ],
        metadata=table_metadata(PACKET_KIND),
    )


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
        while (batch := reader.next_batch()) is not None:
            table = _packets(batch)
            rows += table.num_rows
            writer.write_table(table)
    return rows, reader.warnings()


def read_packets(capture: Path, *, rules: str = "4.0") -> pa.Table:
    """One row per packet, in memory: for captures of measurement runs. Raises UsageError if it is not a capture."""
    import pyarrow as pa

    with readable(capture):
        reader = upshift_native.PacketReader(capture, rules=rules)
    batches = []
    while (batch := reader.next_batch()) is not None:
        batches.append(_packets(batch))
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
