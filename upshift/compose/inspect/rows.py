"""From the connections of a capture and the downloads in it to rows. Pure: the same input gives the same rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import upshift_native

import upshift
from analysis.captures.connection import Connection
from analysis.captures.kpi import Value
from analysis.captures.kpis import ALL as KPIS
from upshift.compose.inspect.clocks import offset_s
from upshift.compose.inspect.identity import with_identity
from upshift.compose.inspect.matching import match
from upshift.compose.inspect.proof import disturbance, judge_treatment
from upshift.domain import Download, Transport
from upshift.files import store

if TYPE_CHECKING:
    import pyarrow as pa

ENGINE = f"upshift {upshift.__version__}, upshift-native {upshift_native.__version__}"
"""What makes these rows: stored with each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspected:
    """What inspection says of one download."""

    download: Download
    """With its treatment, and what the host did to it."""
    kpis: Mapping[str, Value] | None
    """A row of `kpis`; None where no connection is known to be this download's."""


def inspect_run(
    downloads: Sequence[Download], connections: Sequence[Connection], *, lost: str | None = None
) -> tuple[Inspected, ...]:
    """The rows of the downloads of a measurement run, in their order.

    Args:
        connections: those in its capture.
        lost: why the capture does not have everything, where it does not.
    """
    downloads = with_identity(downloads)
    matched = match(downloads, connections)
    clock_s = offset_s(downloads, matched)
    found = []
    for download, connection in zip(downloads, matched, strict=True):
        ok, detail = judge_treatment(download, connection, lost=lost, clock_s=clock_s)
        judged = replace(download, treatment_ok=ok, treatment_detail=detail, engine=ENGINE)
        if disturbed := disturbance(download, connection, clock_s=clock_s):
            judged = replace(judged, host_disturbance=disturbed[0].value, host_disturbance_detail=disturbed[1])
        kpis = None if connection is None else kpi_row(download, connection)
        found.append(Inspected(download=judged, kpis=kpis))
    return tuple(found)


def kpi_row(download: Download, connection: Connection) -> dict[str, Value]:
    """A row of `kpis`: the download's key, the engine, then every KPI."""
    row: dict[str, Value] = {name: getattr(download, name) for name in store.DOWNLOAD_KEY}
    if download.transport == Transport.QUIC:
        # Retransmissions of QUIC are invisible in a capture: its goodput needs the client's account of the body.
        connection = replace(connection, body_bytes=download.body_bytes)
    return row | {"engine": ENGINE} | {name: kpi.compute(connection) for name, kpi in KPIS.items()}


def kpi_schema() -> pa.Schema:
    """Columns of `kpis.parquet`: key, engine, then one per KPI with its unit in the column's metadata."""
    import pyarrow as pa

    arrow = {int: pa.int64(), float: pa.float64(), str: pa.string(), bool: pa.bool_()}
    keys = store.row_schema("downloads")
    fields = [keys.field(name) for name in (*store.DOWNLOAD_KEY, "engine")]
    fields += [pa.field(name, arrow[kpi.kind], metadata={"unit": kpi.unit}) for name, kpi in KPIS.items()]
    return pa.schema(fields)
