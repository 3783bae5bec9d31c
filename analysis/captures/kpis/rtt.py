"""Round-trip times: of the handshake, by timestamps, by SEQ/ACK, by the spin bit."""

from analysis.captures.connection import Connection
from analysis.captures.kpis import kpi, milliseconds, nanoseconds_between

_TIMESTAMPS = "three-way matching of TSval and TSecr (RFC 7323) at the client"
_ACK = "SEQ/ACK matching with the rule of Karn and Partridge (SIGCOMM 1987)"
_SPIN = "RFC 9000, section 17.4"

_RESENT_NS = 100_000_000
"""Initials this far apart [ns] are not one ClientHello in several packets: one was retransmitted."""


def _handshake_rtt(connection: Connection) -> float | None:
    start_ns = _quic_start(connection) if connection.protocol == "quic" else _tcp_start(connection)
    end_ns = connection.quic_server_initial_ns if connection.protocol == "quic" else connection.syn_ack_ns
    return milliseconds(nanoseconds_between(start_ns, end_ns))


def _tcp_start(connection: Connection) -> int | None:
    if connection.syn_ns == connection.last_syn_ns:
        return connection.syn_ns
    if connection.syn_ack_answers_first_syn:
        # A server whose SYN-ACK was lost answers the next SYN with the TSval of the first (Linux: tcp_check_req).
        since_last_ns = nanoseconds_between(connection.last_syn_ns, connection.syn_ack_ns)
        least_ns = connection.client.rtt_ts_min_ns
        answers_first = since_last_ns is not None and least_ns is not None and since_last_ns < least_ns
        return connection.syn_ns if answers_first else None
    return None if connection.syn_ack_answers_first_syn is None else connection.last_syn_ns


def _quic_start(connection: Connection) -> int | None:
    first_ns, last_ns = connection.quic_client_initial_ns, connection.quic_last_client_initial_ns
    if first_ns is None or last_ns is None or connection.quic_retries or connection.quic_version_negotiations:
        return None
    return first_ns if last_ns - first_ns < _RESENT_NS else None


@kpi(unit="ms", source="RFC 9293, section 3.5; RFC 9000, section 7")
def handshake_rtt(connection: Connection) -> float | None:
    """TCP: SYN to SYN-ACK; with several SYNs, from the last one if the SYN-ACK does not echo the TSval of the first;
    from the first one if it does, and came sooner after the last one than any later round trip; else None. QUIC: first
    Initial of the client to the first of the server; None if the client retransmitted Initials, or after a Retry.
    """
    return _handshake_rtt(connection)


@kpi(unit="ms", source=_TIMESTAMPS)
def rtt_min(connection: Connection) -> float | None:
    """Smallest round-trip time: of the handshake, and from each of the client's ACKs of data to the next data that
    echoes its TSval (SEQ/ACK matching without timestamps). The handshake counts because a large initial
    window can fill the queue before the first ACK, and then it stays filled: on a path of 3 ms, 32 packets at 30 Mbit/s
    give 11 ms. QUIC: the handshake's.
    """
    rtts_ms = [_handshake_rtt(connection)]
    if connection.protocol != "quic":
        client = connection.client
        rtts_ms.append(milliseconds(client.rtt_ts_min_ns if client.rtt_ts_count > 0 else client.rtt_ack_min_ns))
    return min((value for value in rtts_ms if value is not None), default=None)


@kpi(unit="ms", source=_TIMESTAMPS)
def rtt_mean(connection: Connection) -> float | None:
    """Mean round-trip time, from the client's ACK of data to the next data that echoes its TSval; SEQ/ACK matching
    without timestamps; the handshake round trip for QUIC. Includes the queue that the flow itself builds.
    """
    if connection.protocol == "quic":
        return _handshake_rtt(connection)
    client = connection.client
    return milliseconds(client.rtt_ts_mean_ns if client.rtt_ts_count > 0 else client.rtt_ack_mean_ns)


@kpi(unit="ms", source=_TIMESTAMPS)
def rtt_p50(connection: Connection) -> float | None:
    """Median of the round-trip times by timestamps, within 0.5 %."""
    return milliseconds(connection.client.rtt_ts_p50_ns)


@kpi(unit="ms", source=_TIMESTAMPS)
def rtt_p95(connection: Connection) -> float | None:
    """95th percentile of the round-trip times by timestamps, within 0.5 %."""
    return milliseconds(connection.client.rtt_ts_p95_ns)


@kpi(unit="ms", source=_TIMESTAMPS)
def rtt_p99(connection: Connection) -> float | None:
    """99th percentile of the round-trip times by timestamps, within 0.5 %."""
    return milliseconds(connection.client.rtt_ts_p99_ns)


@kpi(unit="ms", source=_TIMESTAMPS)
def rtt_max(connection: Connection) -> float | None:
    """Largest round-trip time by timestamps."""
    return milliseconds(connection.client.rtt_ts_max_ns)


@kpi(unit="samples", source=_TIMESTAMPS)
def rtt_samples(connection: Connection) -> int:
    """Number of round-trip times by timestamps."""
    return connection.client.rtt_ts_count


@kpi(source="Upshift: timestamps before SEQ/ACK, the handshake for QUIC")
def rtt_source(connection: Connection) -> str:
    """Which samples the other rtt_* columns are based on: timestamps, ack (SEQ/ACK matching), handshake or none."""
    if connection.protocol == "quic":
        return "none" if _handshake_rtt(connection) is None else "handshake"
    if connection.client.rtt_ts_count > 0:
        return "timestamps"
    return "ack" if connection.client.rtt_ack_count > 0 else "none"


@kpi(unit="ms", source=_ACK)
def rtt_ack_min(connection: Connection) -> float | None:
    """Smallest time from a segment of the client (including its SYN) to the ACK that ends at it."""
    return milliseconds(connection.client.rtt_ack_min_ns)


@kpi(unit="ms", source=_ACK)
def rtt_ack_mean(connection: Connection) -> float | None:
    """Mean time from a segment of the client to the ACK that ends at it; including the delay of delayed ACKs."""
    return milliseconds(connection.client.rtt_ack_mean_ns)


@kpi(unit="ms", source=_SPIN)
def spin_rtt_min(connection: Connection) -> float | None:
    """Smallest time between edges of the spin bit in the server's packets; None if it does not spin."""
    return milliseconds(connection.quic_spin_rtt_min_ns)


@kpi(unit="ms", source=_SPIN)
def spin_rtt_mean(connection: Connection) -> float | None:
    """Mean time between edges of the spin bit in the server's packets; None if it does not spin."""
    return milliseconds(connection.quic_spin_rtt_mean_ns)
