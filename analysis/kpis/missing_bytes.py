"""Gaps in the server's data that nothing filled: the capture lost packets, or the connection died. Unit: bytes."""

from analysis.connection import Connection
from analysis.kpi import Kpi


def _compute(connection: Connection) -> int | None:
    return None if connection.protocol == "quic" else connection.server_missing_bytes


MISSING_BYTES = Kpi(
    name="missing_bytes",
    unit="B",
    source="IP-ID order, TSval order, time (docs/design/kpi-engine.md)",
    compute=_compute,
)
