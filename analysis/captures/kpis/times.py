"""Durations of the parts of a connection; for round trips see `rtt`."""

from analysis.captures.connection import Connection
from analysis.captures.kpis import kpi, seconds_between

_CAPTURE = "Upshift: times of the captured packets"


@kpi(unit="s", source=_CAPTURE)
def duration(connection: Connection) -> float:
    """First to last packet of the connection."""
    return connection.duration_s


@kpi(unit="s", source="RFC 9293, section 3.5; RFC 9001, section 4.1")
def handshake(connection: Connection) -> float | None:
    """TCP: first SYN to the client's first ACK of the SYN-ACK. QUIC: first Initial of the client to its first 1-RTT
    packet, which needs the keys of the finished handshake.
    """
    is_quic = connection.protocol == "quic"
    ended_ns = connection.quic_client_short_ns if is_quic else connection.handshake_ack_ns
    return seconds_between(connection.opened_ns, ended_ns)


@kpi(unit="s", source=_CAPTURE)
def time_to_first_byte(connection: Connection) -> float | None:
    """First SYN, or first Initial of QUIC, to the first packet with a body of the server's largest answer: the first
    with 1,000 bytes of payload or more, as session tickets, `SETTINGS` and a head may come before the server has the
    body (of TCP its first packet, if none in its first 8 KiB is as long). QUIC hides where an answer begins: it is the
    first such 1-RTT datagram after the client's first 1-RTT packet, and after datagrams that came alone and are probes
    of a larger MTU by their sizes.
    """
    return seconds_between(connection.opened_ns, connection.response_first_ns)


@kpi(unit="s", source=f"{_CAPTURE}, and the client's start")
def time_to_answer(connection: Connection) -> float | None:
    """Start of the client, by its own clock, to that packet, where Table 2's *transfer* begins. A client of TCP has its
    first byte only with a whole TLS record. None unless a download is joined."""
    return seconds_between(connection.client_start_ns, connection.response_first_ns)


@kpi(unit="s", source=_CAPTURE)
def transfer(connection: Connection) -> float | None:
    """From that packet (`time_to_first_byte`) to the last data packet of its answer. QUIC datagrams of fewer than 100
    bytes carry acknowledgements, and do not count."""
    return seconds_between(connection.response_first_ns, connection.response_last_ns)
