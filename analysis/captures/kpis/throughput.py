"""Rates: one definition each, for TCP and QUIC alike."""

from analysis.captures.connection import Connection
from analysis.captures.kpis import kpi, megabits_per_second, seconds_between


def _until_last_data_s(connection: Connection) -> float | None:
    """First packet of the connection to the last data packet of the server's largest answer [s].

    Later data belongs to the end of the connection: TLS's close_notify, acknowledgements of QUIC. `first_ns` is the
    earliest time, which is not that of the first packet where the capture's clock was set back.
    """
    opened_ns, answer_ns = connection.opened_ns, connection.response_last_ns
    return seconds_between(
        connection.first_ns if opened_ns is None else opened_ns,
        connection.server.last_data_ns if answer_ns is None else answer_ns,
    )


@kpi(unit="Mbit/s", source="ANRW'23, section 5.1; ends with the data, not with the connection")
def mean_throughput(connection: Connection) -> float | None:
    """IP bytes from the server up to the last data packet of its largest answer, over the time from the first packet of
    the connection to that one. Excludes what follows: later answers, and the close, which takes TCP a round trip longer
    than QUIC; and data that was captured twice. Of merged packets (`gro`) one header counts.
    """
    size_bytes = connection.server.ip_bytes
    if connection.response_last_ns is not None and connection.response_ip_bytes is not None:
        size_bytes = connection.response_ip_bytes
    return megabits_per_second(size_bytes, _until_last_data_s(connection))


@kpi(unit="Mbit/s", source="ANRW'23, section 5.1 and published code")
def throughput_published(connection: Connection) -> float | None:
    """IP bytes from the server, over the time from the first to the last packet of the connection (both directions).
    IPv6 counts payload length + 40; the published code did not count the 40.
    """
    return megabits_per_second(connection.server.ip_bytes, connection.duration_s)


@kpi(unit="Mbit/s", source="RFC 2647, section 3.17; time as in mean_throughput")
def goodput(connection: Connection) -> float | None:
    """Body bytes as reported by the client, over the time of `mean_throughput`: without headers and retransmissions,
    which are invisible in a capture of QUIC. None unless a download is joined."""
    if connection.body_bytes is None:
        return None
    return megabits_per_second(connection.body_bytes, _until_last_data_s(connection))


@kpi(unit="Mbit/s", source="Upshift: body over the time of its packets")
def delivery_rate(connection: Connection) -> float | None:
    """Rate at which the body arrived: its bytes as reported by the client, over the time from the first to the last
    data packet of the answer (see `transfer`), without the share that had come by the first. None unless a download is
    joined."""
    if connection.body_bytes is None or not connection.response_bytes:
        return None
    share = 1 - connection.response_first_bytes / connection.response_bytes
    elapsed_s = seconds_between(connection.response_first_ns, connection.response_last_ns)
    return megabits_per_second(connection.body_bytes * share, elapsed_s)
