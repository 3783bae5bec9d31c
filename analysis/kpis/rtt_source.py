"""Which samples the other rtt_* columns rest on: timestamps, ack (SEQ/ACK matching), handshake or none."""

from analysis.connection import Connection
from analysis.kpi import Kpi
from analysis.kpis.handshake_rtt import HANDSHAKE_RTT as _HANDSHAKE_RTT


def _compute(connection: Connection) -> str:
    if connection.protocol == "quic":
        return "none" if _HANDSHAKE_RTT.compute(connection) is None else "handshake"
    if connection.client_rtt_ts_count > 0:
        return "timestamps"
    return "ack" if connection.client_rtt_ack_count > 0 else "none"


RTT_SOURCE = Kpi(name="rtt_source", unit="", source="design, section 6", compute=_compute)
