"""Packets that the client sent and that reached the capture. Unit: packets."""

from analysis.connection import Connection
from analysis.kpi import Kpi


def _compute(connection: Connection) -> int:
    return connection.client_packets


PACKETS_FROM_CLIENT = Kpi(
    name="packets_from_client",
    unit="packets",
    source="design, section 6",
    compute=_compute,
)
