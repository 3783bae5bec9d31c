"""Wireshark's verdicts: guesses from arrival times, for comparison with other work."""

from analysis.captures.connection import Connection
from analysis.captures.kpis import kpi

_WIRESHARK = "Wireshark 4.0, epan/dissectors/packet-tcp.c"


@kpi(unit="packets", source=_WIRESHARK, tcp_only=True)
def ws_retransmissions(connection: Connection) -> int | None:
    """Server segments that Wireshark calls a retransmission and neither fast nor spurious."""
    return connection.server.ws_retransmission


@kpi(unit="packets", source=_WIRESHARK, tcp_only=True)
def ws_fast_retransmissions(connection: Connection) -> int | None:
    """Server segments that Wireshark calls a fast retransmission."""
    return connection.server.ws_fast_retransmission


@kpi(unit="packets", source=_WIRESHARK, tcp_only=True)
def ws_spurious_retransmissions(connection: Connection) -> int | None:
    """Server segments that Wireshark calls a spurious retransmission."""
    return connection.server.ws_spurious_retransmission


@kpi(unit="packets", source=_WIRESHARK, tcp_only=True)
def ws_out_of_order(connection: Connection) -> int | None:
    """Server segments that Wireshark calls out of order."""
    return connection.server.ws_out_of_order


@kpi(unit="packets", source=_WIRESHARK, tcp_only=True)
def ws_dup_acks(connection: Connection) -> int | None:
    """ACKs of the client that Wireshark calls duplicate."""
    return connection.client.ws_dup_ack


@kpi(unit="packets", source=_WIRESHARK, tcp_only=True)
def ws_keep_alives(connection: Connection) -> int | None:
    """Keep-alives of the server."""
    return connection.server.ws_keep_alive


@kpi(unit="packets", source=_WIRESHARK, tcp_only=True)
def ws_window_full(connection: Connection) -> int | None:
    """Server segments that reach the edge of the client's window."""
    return connection.server.ws_window_full


@kpi(unit="packets", source=_WIRESHARK, tcp_only=True)
def ws_zero_windows(connection: Connection) -> int | None:
    """Segments of the client that close its window."""
    return connection.client.ws_zero_window


@kpi(unit="packets", source=_WIRESHARK, tcp_only=True)
def ws_zero_window_probes(connection: Connection) -> int | None:
    """Zero window probes of the server."""
    return connection.server.ws_zero_window_probe


@kpi(unit="1", source="ANRW'23, published code (get_packet_loss)", tcp_only=True)
def retransmission_rate_packets(connection: Connection) -> float | None:
    """Server packets that Wireshark calls a retransmission of any kind, over all its packets (ACKs and handshake
    included), as in the published code; TCP only.
    """
    server = connection.server
    marked = server.ws_retransmission + server.ws_fast_retransmission + server.ws_spurious_retransmission
    return marked / server.packets if server.packets else None
