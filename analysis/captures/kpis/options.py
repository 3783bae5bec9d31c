"""Options offered and accepted in the handshake, and the size of the ClientHello; for ECN see `ecn`."""

import math

from analysis.captures.connection import Connection
from analysis.captures.kpis import kpi

_MSS = "RFC 9293, section 3.7.1"
_SCALE = "RFC 7323, section 2.2"


@kpi(unit="packets", source="RFC 9293, section 3.5", tcp_only=True)
def syn_packets(connection: Connection) -> int | None:
    """SYNs that the client sent, without copies of the capture's; more than one means a retransmission."""
    return connection.client.syn_packets


@kpi(unit="B", source="RFC 8446, section 4.1.2; RFC 9001, section 4.3")
def client_hello_bytes(connection: Connection) -> int | None:
    """Payload of TCP or UDP that the client sent before the server's first answer, after TCP's handshake: its
    ClientHello with the records, frames and padding around it. TCP: without retransmissions; None without the
    handshake."""
    return connection.client_hello_bytes


@kpi(unit="packets", source="RFC 8446, section 4.1.2; RFC 9001, section 4.3")
def client_hello_datagrams(connection: Connection) -> int | None:
    """Datagrams, or TCP segments, that the client sent before the server's first answer. Packets that the host merged
    before they were captured (TSO) are counted by their size.
    """
    size, packets, mss = connection.client_hello_bytes, connection.client_hello_packets, connection.server.mss
    if size is None or packets is None or connection.protocol == "quic" or not mss:
        return packets
    options = 12 if connection.timestamps_accepted else 0  # RFC 7323, appendix A
    return max(packets, math.ceil(size / (mss - options)))


@kpi(source="RFC 2018, section 2")
def sack(connection: Connection) -> bool | None:
    """Whether both SYNs permit SACK."""
    return connection.sack_accepted


@kpi(source="RFC 7323, section 3.2")
def timestamps(connection: Connection) -> bool | None:
    """Whether both SYNs have timestamps."""
    return connection.timestamps_accepted


@kpi(unit="bit", source=_SCALE)
def window_scale_client(connection: Connection) -> int | None:
    """Window scale shift that the client offered in its first SYN; None without the option."""
    return connection.client.window_scale


@kpi(unit="bit", source=_SCALE)
def window_scale_server(connection: Connection) -> int | None:
    """Window scale shift in the server's SYN-ACK; None without the option."""
    return connection.server.window_scale


@kpi(unit="B", source=_MSS)
def mss_client(connection: Connection) -> int | None:
    """MSS option of the client's first SYN."""
    return connection.client.mss


@kpi(unit="B", source=_MSS)
def mss_server(connection: Connection) -> int | None:
    """MSS option of the server's SYN-ACK."""
    return connection.server.mss


@kpi(source="RFC 9000, section 17.2")
def quic_version(connection: Connection) -> int | None:
    """Version number of the last long header; None for TCP."""
    return connection.quic_version
