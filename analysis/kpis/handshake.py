"""TCP: first SYN to the client's first ACK of the SYN-ACK. QUIC: first Initial of the client to its first 1-RTT
packet, which needs the keys of the finished handshake. Unit: s.
"""

from analysis.connection import Connection
from analysis.kpi import Kpi, seconds_between


def _compute(connection: Connection) -> float | None:
    if connection.protocol == "quic":
        return seconds_between(connection.quic_client_initial_ns, connection.quic_client_short_ns)
    return seconds_between(connection.syn_ns, connection.handshake_ack_ns)


HANDSHAKE = Kpi(name="handshake", unit="s", source="design, section 6", compute=_compute)
