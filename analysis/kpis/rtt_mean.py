"""Mean round-trip time, from the client's ACK of data to the next data that echoes its TSval; SEQ/ACK matching where
there are no timestamps; the handshake round trip for QUIC. The queue that the flow itself builds is in it. Unit:
ms.
"""

from analysis.connection import Connection
from analysis.kpi import Kpi, milliseconds
from analysis.kpis.handshake_rtt import HANDSHAKE_RTT as _HANDSHAKE_RTT


def _compute(connection: Connection) -> float | None:
    if connection.protocol == "quic":
        value = _HANDSHAKE_RTT.compute(connection)
        return value if isinstance(value, float) else None
    if connection.client_rtt_ts_count > 0:
        return milliseconds(connection.client_rtt_ts_mean_ns)
    return milliseconds(connection.client_rtt_ack_mean_ns)


RTT_MEAN = Kpi(
    name="rtt_mean",
    unit="ms",
    source="three-way matching of TSval and TSecr (RFC 7323) at the client",
    compute=_compute,
)
