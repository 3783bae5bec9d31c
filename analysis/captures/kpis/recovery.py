"""Loss, reordering and the receiver's reports; for Wireshark's verdicts see `wireshark`."""

from analysis.captures.connection import Connection
from analysis.captures.kpis import kpi

_TRUTH = "IP-ID order, TSval order, time (docs/design/kpi-engine.md)"


@kpi(unit="packets", source=_TRUTH, tcp_only=True)
def true_retransmissions(connection: Connection) -> int | None:
    """Segments that the server retransmitted."""
    return connection.server.true_retransmission


@kpi(unit="packets", source=_TRUTH, tcp_only=True)
def true_reordered(connection: Connection) -> int | None:
    """Server segments that arrived after later ones (reordered by the network)."""
    return connection.server.true_reordered


@kpi(unit="packets", source=_TRUTH, tcp_only=True)
def true_duplicates(connection: Connection) -> int | None:
    """Server packets that the network or the capture duplicated."""
    return connection.server.true_duplicate


@kpi(unit="B", source=_TRUTH, tcp_only=True)
def retransmitted_bytes(connection: Connection) -> int | None:
    """Payload that the server retransmitted."""
    return connection.server.retransmitted_bytes


@kpi(unit="1", source="ANRW'23, section 5.2 (share of data)", tcp_only=True)
def retransmission_rate(connection: Connection) -> float | None:
    """Payload bytes that the server retransmitted, by `true_class`, over all its payload bytes, without copies; TCP
    only.
    """
    server = connection.server
    return server.retransmitted_bytes / server.payload_bytes if server.payload_bytes else None


@kpi(unit="B", source=_TRUTH, tcp_only=True)
def missing_bytes(connection: Connection) -> int | None:
    """Gaps in the server's data that were never filled: the capture lost packets, or the connection failed."""
    return connection.server.missing_bytes


@kpi(unit="packets", source="RFC 2018, section 3", tcp_only=True)
def sack_segments(connection: Connection) -> int | None:
    """Segments of the client with SACK blocks: how often SACK was used. Without those that have only a D-SACK block."""
    return connection.client.sack_segments


@kpi(unit="blocks", source="RFC 2018, section 3", tcp_only=True)
def sack_blocks(connection: Connection) -> int | None:
    """SACK blocks that the client sent, without D-SACK blocks."""
    return connection.client.sack_blocks


@kpi(unit="blocks", source="RFC 2883, section 4", tcp_only=True)
def dsack_blocks(connection: Connection) -> int | None:
    """D-SACK blocks that the client sent: it received something twice."""
    return connection.client.dsack_blocks


@kpi(unit="episodes", source="RFC 9002, section 6.1.1 (packet threshold)")
def quic_loss_episodes(connection: Connection) -> int | None:
    """How often a part of the body stayed missing for three packets or more: packets of the server were lost, one or
    several at once. As reported by a QUIC client that counts them.
    """
    return connection.quic_loss_episodes


@kpi(unit="packets", source="TCP: IP-ID order, TSval order, time (docs/design/kpi-engine.md); QUIC: RFC 9002")
def client_losses(connection: Connection) -> int | None:
    """Packets of the client that were lost on the way to the server. TCP: segments with data, SYN or FIN that it
    retransmitted. QUIC: packets declared lost, as reported by the client, if it reports them.
    """
    if connection.protocol == "quic":
        return connection.quic_client_lost
    return connection.client.true_retransmission
