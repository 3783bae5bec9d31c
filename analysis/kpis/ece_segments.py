"""Segments of the client with ECE, SYNs apart. None with accurate ECN, which makes the bit part of a counter. Unit:
packets.
"""

from analysis.connection import Connection
from analysis.kpi import Kpi


def _compute(connection: Connection) -> int | None:
    if connection.protocol == "quic" or connection.acc_ecn_accepted:
        return None
    return connection.client_ece_packets


ECE_SEGMENTS = Kpi(
    name="ece_segments", unit="packets", source="RFC 3168, section 6.1; RFC 9768, section 3.2.2", compute=_compute
)
