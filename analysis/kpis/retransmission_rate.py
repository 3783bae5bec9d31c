"""Payload bytes that the server sent again, by `true_class`, over all its payload bytes; TCP only. Unit: a share."""

from analysis.connection import Connection
from analysis.kpi import Kpi


def _compute(connection: Connection) -> float | None:
    if connection.protocol == "quic" or connection.server_payload_bytes == 0:
        return None
    return connection.server_retransmitted_bytes / connection.server_payload_bytes


RETRANSMISSION_RATE = Kpi(
    name="retransmission_rate", unit="1", source="ANRW'23, section 3 (share of data)", compute=_compute
)
