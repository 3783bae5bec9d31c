"""Keep-alives of the server. Unit: packets."""

from analysis.connection import Connection
from analysis.kpi import Kpi


def _compute(connection: Connection) -> int | None:
    return None if connection.protocol == "quic" else connection.server_ws_keep_alive


WS_KEEP_ALIVES = Kpi(
    name="ws_keep_alives", unit="packets", source="Wireshark 4.0, epan/dissectors/packet-tcp.c", compute=_compute
)
