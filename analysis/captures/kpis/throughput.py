"""Rates."""

from analysis.captures.connection import Connection
from analysis.captures.kpi import kpi, megabits_per_second, seconds_between

_PAPER = "ANRW'23, section 3"


@kpi(unit="Mbit/s", source=_PAPER)
def mean_throughput(connection: Connection) -> float | None:
    """IP bytes from the server, over the time from the first to the last packet of the connection (both directions).
    IPv6 counts payload length + 40; the published code did not count the 40.
    """
    return megabits_per_second(connection.server.ip_bytes, connection.duration_s)


@kpi(unit="Mbit/s", source=_PAPER)
def goodput(connection: Connection) -> float | None:
    """TCP: mean throughput without the server's retransmissions, by `true_class`. QUIC: body bytes as reported by the
    client over the same time, as retransmissions are invisible in a capture; None unless a download is joined.
    """
    if connection.protocol == "quic":
        if connection.body_bytes is None:
            return None
        return megabits_per_second(connection.body_bytes, connection.duration_s)
    useful = connection.server.ip_bytes - connection.server.retransmitted_ip_bytes
    return megabits_per_second(useful, connection.duration_s)


@kpi(unit="Mbit/s", source="Upshift: payload of the largest answer over its transfer time")
def delivery_rate(connection: Connection) -> float | None:
    """Rate of the answer: its payload after the first packet, over the time from its first to its last
    data packet (TLS records and HTTP headers included). QUIC: body bytes over the time from the first to the last
    packet of the server after its handshake; None unless a download is joined.
    """
    if connection.protocol == "quic":
        if connection.body_bytes is None:
            return None
        elapsed_s = seconds_between(connection.quic_server_short_ns, connection.server.last_data_ns)
        return megabits_per_second(connection.body_bytes, elapsed_s)
    elapsed_s = seconds_between(connection.response_first_ns, connection.response_last_ns)
    return megabits_per_second(connection.response_bytes - connection.response_first_bytes, elapsed_s)
