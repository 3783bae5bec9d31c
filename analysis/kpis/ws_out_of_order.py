"""Server segments that Wireshark calls out of order. Unit: packets."""

from analysis.connection import Connection
from analysis.kpi import Kpi


def _compute(connection: Connection) -> int | None:
    return None if connection.protocol == "quic" else connection.server_ws_out_of_order


WS_OUT_OF_ORDER = Kpi(
    name="ws_out_of_order", unit="packets", source="Wireshark 4.0, epan/dissectors/packet-tcp.c", compute=_compute
)
