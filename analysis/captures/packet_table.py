"""One row per packet as Parquet; the CSV form is written by the engine itself."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import upshift_native

from analysis.captures.scan import readable, table_metadata
from core.files import disk

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

_NAMES = pa.dictionary(pa.int8(), pa.string())

SCHEMA = pa.schema(
    [
        pa.field("frame", pa.uint64()),
        pa.field("time_ns", pa.int64(), metadata={"unit": "ns since 1970-01-01 UTC"}),
        pa.field("connection", pa.uint32()),
        pa.field("direction", _NAMES),
        pa.field("seq", pa.uint32()),
        pa.field("len", pa.uint32(), metadata={"unit": "B"}),
        pa.field("ws_class", _NAMES),
        pa.field("true_class", _NAMES),
    ],
    metadata=table_metadata(PACKET_KIND),
)


def write_parquet(capture: Path, out: Path, *, rules: str = "4.0") -> tuple[int, list[str]]:
    """Writes one row per packet. Returns (rows, warnings). Raises UsageError if the file is not a capture."""
    with readable(capture):
        reader = upshift_native.PacketReader(capture, rules=rules)
    rows = 0
    with disk.whole_file(out) as temporary, pq.ParquetWriter(temporary, SCHEMA, compression="zstd") as writer:
        while (batch := reader.next_batch()) is not None:
            table = _table(batch)
            rows += table.num_rows
            writer.write_table(table)
    return rows, reader.warnings()


def read(capture: Path, *, rules: str = "4.0") -> pa.Table:
    """One row per packet, in memory: for captures of measurement runs. Raises UsageError if it is not a capture."""
    with readable(capture):
        reader = upshift_native.PacketReader(capture, rules=rules)
    batches = []
    while (batch := reader.next_batch()) is not None:
        batches.append(_table(batch))
    return pa.concat_tables(batches) if batches else SCHEMA.empty_table()


def _table(batch: dict[str, bytes]) -> pa.Table:
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
    return pa.Table.from_arrays(columns, schema=SCHEMA)
