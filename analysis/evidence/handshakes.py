"""Handshakes that took longer than their round trips. Pure.

QUIC needs one round trip, TCP with TLS 1.3 two and with TLS 1.2 three (RFC 9000, section 7; RFC 8446, section 2; RFC
5246, section 7.3). A longer one waited for a retransmission, a HelloRetryRequest, a QUIC Retry, a server that did not
answer at once, or a client without a processor: then the server's or the host's state, not the transport, decides which
configuration is faster.
"""

from __future__ import annotations

from collections.abc import Iterable

from analysis.captures.connection import Connection
from analysis.captures.kpis.rtt import rtt_min
from core.domain import Download, Transport

SLACK_SHARE = 1.3
SLACK_S = 0.015
"""A handshake is slow if it took longer than its round trips times `SLACK_SHARE` plus `SLACK_S`."""

_TLS_ROUND_TRIPS = {"TLSv1.3": 1, "TLSv1.2": 2}


def smallest_rtt_s(connections: Iterable[Connection | None]) -> float | None:
    """The smallest round-trip time of a measurement run [s], whose downloads all go to one address; None if unknown.

    That of the slow handshake itself would not do: what delays a server's first packet of QUIC is in it.
    """
    found = [rtt_min.compute(connection) for connection in connections if connection is not None]
    return min((value / 1e3 for value in found if isinstance(value, int | float)), default=None)


def is_slow(download: Download, rtt_s: float | None) -> bool | None:
    """Whether the handshake took longer than its round trips; None if it did not complete, or the RTT is unknown."""
    tls = _TLS_ROUND_TRIPS.get(download.tls_version or "")
    took_s = download.connect_s if download.transport == Transport.QUIC else download.tls_s
    if tls is None or took_s is None or rtt_s is None:
        return None
    round_trips = tls if download.transport == Transport.QUIC else 1 + tls
    return took_s > round_trips * SLACK_SHARE * rtt_s + SLACK_S
