"""ACKs of the client that Wireshark calls duplicate. Unit: packets."""

from analysis.connection import Connection
from analysis.kpi import Kpi


def _compute(connection: Connection) -> int | None:
    return None if connection.protocol == "quic" else connection.client_ws_dup_ack


WS_DUP_ACKS = Kpi(
    name="ws_dup_acks", unit="packets", source="Wireshark 4.0, epan/dissectors/packet-tcp.c", compute=_compute
)
