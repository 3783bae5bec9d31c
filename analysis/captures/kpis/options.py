"""Options offered and accepted in the handshake; for ECN see `ecn`."""

from analysis.captures.connection import Connection
from analysis.captures.kpi import kpi

_MSS = "RFC 9293, section 3.7.1"
_SCALE = "RFC 7323, section 2.2"


@kpi(unit="packets", source="RFC 9293, section 3.5", tcp_only=True)
def syn_packets(connection: Connection) -> int | None:
    """SYNs that the client sent; more than one means a retransmission."""
    return connection.client.syn_packets


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
