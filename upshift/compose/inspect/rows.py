"""Rows of `kpis.parquet`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from analysis.connection import Connection
from analysis.kpi import Value
from analysis.kpis import ALL as KPIS
from upshift import store
from upshift.domain import Download, Transport


def kpi_row(download: Download, connection: Connection) -> dict[str, Value]:
    """A row of `kpis`: the download's key, then every KPI."""
    row: dict[str, Value] = {name: getattr(download, name) for name in store.DOWNLOAD_KEY}
    if download.transport == Transport.QUIC:
        # Retransmissions of QUIC are invisible in a capture: its goodput needs the client's account of the body.
        connection = replace(connection, body_bytes=download.body_bytes)
    return row | {name: kpi.compute(connection) for name, kpi in KPIS.items()}


def write_kpis(path: Path, rows: Sequence[Mapping[str, Value]]) -> None:
    """Writes `kpis.parquet`: key columns, then one column per KPI with its unit in the column's metadata."""
    import pyarrow as pa

    arrow = {int: pa.int64(), float: pa.float64(), str: pa.string(), bool: pa.bool_()}
    keys = store.row_schema("downloads")
    fields = [keys.field(name) for name in store.DOWNLOAD_KEY]
    fields += [pa.field(name, arrow[kpi.kind], metadata={"unit": kpi.unit}) for name, kpi in KPIS.items()]
    columns = [pa.array([row[field.name] for row in rows], type=field.type) for field in fields]
    store.write_table(path, "kpis", pa.Table.from_arrays(columns, schema=pa.schema(fields)))
