"""Packets from the server with Congestion Experienced. Unit: packets."""

from analysis.connection import Connection
from analysis.kpi import Kpi


def _compute(connection: Connection) -> int:
    return connection.server_ce_packets


CE_PACKETS = Kpi(
    name="ce_packets",
    unit="packets",
    source="RFC 3168, section 5",
    compute=_compute,
)
