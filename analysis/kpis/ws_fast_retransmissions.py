"""Server segments that Wireshark calls a fast retransmission. Unit: packets."""

from analysis.connection import Connection
from analysis.kpi import Kpi


def _compute(connection: Connection) -> int | None:
    return None if connection.protocol == "quic" else connection.server_ws_fast_retransmission


WS_FAST_RETRANSMISSIONS = Kpi(
    name="ws_fast_retransmissions",
    unit="packets",
    source="Wireshark 4.0, epan/dissectors/packet-tcp.c",
    compute=_compute,
)
