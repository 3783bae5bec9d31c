"""Payload that the server sent again. Unit: bytes."""

from analysis.connection import Connection
from analysis.kpi import Kpi


def _compute(connection: Connection) -> int | None:
    return None if connection.protocol == "quic" else connection.server_retransmitted_bytes


RETRANSMITTED_BYTES = Kpi(
    name="retransmitted_bytes",
    unit="B",
    source="IP-ID order, TSval order, time (docs/design/kpi-engine.md)",
    compute=_compute,
)
