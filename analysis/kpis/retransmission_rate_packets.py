"""Server packets that Wireshark calls a retransmission of any kind, over all its packets (ACKs and handshake
included), as the published code had it; TCP only. Unit: a share.
"""

from analysis.connection import Connection
from analysis.kpi import Kpi


def _compute(connection: Connection) -> float | None:
    if connection.protocol == "quic" or connection.server_packets == 0:
        return None
    marked = (
        connection.server_ws_retransmission
        + connection.server_ws_fast_retransmission
        + connection.server_ws_spurious_retransmission
    )
    return marked / connection.server_packets


RETRANSMISSION_RATE_PACKETS = Kpi(
    name="retransmission_rate_packets", unit="1", source="ANRW'23, published code (get_packet_loss)", compute=_compute
)
