"""Server segments that reach the edge of the client's window. Unit: packets."""

from analysis.connection import Connection
from analysis.kpi import Kpi


def _compute(connection: Connection) -> int | None:
    return None if connection.protocol == "quic" else connection.server_ws_window_full


WS_WINDOW_FULL = Kpi(
    name="ws_window_full", unit="packets", source="Wireshark 4.0, epan/dissectors/packet-tcp.c", compute=_compute
)
