"""Explicit congestion notification: negotiation, marks and echoes."""

from analysis.captures.connection import Connection
from analysis.captures.kpis import kpi

_NEGOTIATION = "RFC 3168, section 6.1.1"
_ECHO = "RFC 3168, section 6.1; RFC 9768, section 3.2.2"


@kpi(source=_NEGOTIATION)
def ecn(connection: Connection) -> bool | None:
    """Whether ECN was negotiated, classic or accurate. None unless SYN and SYN-ACK are in the capture."""
    return connection.ecn_accepted


@kpi(source=_NEGOTIATION)
def ecn_requested(connection: Connection) -> bool | None:
    """Whether the first SYN requested ECN."""
    return connection.ecn_requested


@kpi(source="RFC 3168, section 6.1.1.1")
def ecn_fallback(connection: Connection) -> bool | None:
    """Whether the client did not request ECN any more in a retransmitted SYN."""
    return connection.ecn_fallback


@kpi(source="RFC 9768, section 3.1")
def acc_ecn(connection: Connection) -> bool | None:
    """Whether accurate ECN was negotiated. None unless SYN and SYN-ACK are in the capture."""
    return connection.acc_ecn_accepted


@kpi(unit="packets", source="RFC 3168, section 5")
def ce_packets(connection: Connection) -> int:
    """Packets from the server with Congestion Experienced."""
    return connection.server.ce_packets


@kpi(unit="1", source="RFC 3168, section 5")
def ect_share(connection: Connection) -> float | None:
    """Share of the server's data packets (TCP and QUIC) that arrived with ECT(0), ECT(1) or CE. If ECN was
    negotiated and this is small, the field was cleared (bleached) on the path.
    """
    server = connection.server
    return server.ecn_data_packets / server.data_packets if server.data_packets else None


@kpi(unit="packets", source="RFC 3168, section 5; RFC 9331, section 4.1")
def ect1_packets(connection: Connection) -> int:
    """Packets from the server with ECT(1). Senders with classic ECN use ECT(0), so there the field was rewritten on the
    path.
    """
    return connection.server.ect1_packets


@kpi(unit="packets", source=_ECHO, tcp_only=True)
def ece_segments(connection: Connection) -> int | None:
    """Segments of the client with ECE, without SYNs. None with accurate ECN, where the bit is part of a counter, and
    without the handshake, which tells whether it is.
    """
    return connection.client.ece_packets if connection.acc_ecn_accepted is False else None


@kpi(unit="packets", source=_ECHO, tcp_only=True)
def cwr_segments(connection: Connection) -> int | None:
    """Segments of the server with CWR, without SYNs. None as `ece_segments`."""
    return connection.server.cwr_packets if connection.acc_ecn_accepted is False else None
