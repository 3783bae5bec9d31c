"""Segments of the client that close its window. Unit: packets."""

from analysis.connection import Connection
from analysis.kpi import Kpi


def _compute(connection: Connection) -> int | None:
    return None if connection.protocol == "quic" else connection.client_ws_zero_window


WS_ZERO_WINDOWS = Kpi(
    name="ws_zero_windows", unit="packets", source="Wireshark 4.0, epan/dissectors/packet-tcp.c", compute=_compute
)
