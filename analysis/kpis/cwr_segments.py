"""Segments of the server with CWR, SYNs apart. None with accurate ECN. Unit: packets."""

from analysis.connection import Connection
from analysis.kpi import Kpi


def _compute(connection: Connection) -> int | None:
    if connection.protocol == "quic" or connection.acc_ecn_accepted:
        return None
    return connection.server_cwr_packets


CWR_SEGMENTS = Kpi(
    name="cwr_segments", unit="packets", source="RFC 3168, section 6.1; RFC 9768, section 3.2.2", compute=_compute
)
