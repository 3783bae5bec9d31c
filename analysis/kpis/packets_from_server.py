"""Packets that the server sent and that reached the capture. Unit: packets."""

from analysis.connection import Connection
from analysis.kpi import Kpi


def _compute(connection: Connection) -> int:
    return connection.server_packets


PACKETS_FROM_SERVER = Kpi(
    name="packets_from_server",
    unit="packets",
    source="design, section 6",
    compute=_compute,
)
