"""TCP: SYN to SYN-ACK; with several SYNs the one whose TSval the SYN-ACK echoes, None where nothing tells. QUIC:
first Initial of the client to the first of the server; None where the client sent Initials again, or after a
Retry. Unit: ms.
"""

from analysis.connection import Connection
from analysis.kpi import Kpi, milliseconds

_RESENT_NS = 100_000_000
"""Initials this far apart are not one ClientHello in several packets: one was sent again after a timeout."""


def _compute(connection: Connection) -> float | None:
    start_ns = _quic_start(connection) if connection.protocol == "quic" else _tcp_start(connection)
    end_ns = connection.quic_server_initial_ns if connection.protocol == "quic" else connection.syn_ack_ns
    return None if start_ns is None or end_ns is None else milliseconds(end_ns - start_ns)


def _tcp_start(connection: Connection) -> int | None:
    if connection.syn_ns == connection.last_syn_ns or connection.syn_ack_answers_first_syn:
        return connection.syn_ns
    return None if connection.syn_ack_answers_first_syn is None else connection.last_syn_ns


def _quic_start(connection: Connection) -> int | None:
    first_ns, last_ns = connection.quic_client_initial_ns, connection.quic_last_client_initial_ns
    if first_ns is None or last_ns is None or connection.quic_retries or connection.quic_version_negotiations:
        return None
    return first_ns if last_ns - first_ns < _RESENT_NS else None


HANDSHAKE_RTT = Kpi(
    name="handshake_rtt", unit="ms", source="RFC 9293, section 3.5; RFC 9000, section 7", compute=_compute
)
