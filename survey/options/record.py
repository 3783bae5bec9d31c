"""One domain's survey of TCP options: a row of a `survey_options` file, and its vocabulary of failures."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from enum import StrEnum


class HandshakeFailure(StrEnum):
    """Why the handshake failed. The vocabulary is closed."""

    BLOCKED = "blocked"
    """Domain or address is on a block list, or opted out; no packet was sent to it."""
    DNS_ERROR = "dns_error"
    """No usable answer: timeout, SERVFAIL, ..."""
    NO_SUCH_DOMAIN = "no_such_domain"
    """NXDOMAIN."""
    NO_ADDRESS = "no_address"
    """The name has no address of the requested family."""
    ADDRESS_REFUSED = "address_refused"
    """Not a public address, or outside the allowed prefixes; no packet was sent."""
    CONNECTION_REFUSED = "connection_refused"
    """RST in answer to the SYN, or ICMP port unreachable."""
    CONNECT_TIMEOUT = "connect_timeout"
    UNREACHABLE = "unreachable"
    """No route, or a router says so (ICMP)."""
    CONNECT_ERROR = "connect_error"
    """Any other error of connect(2); see the detail."""


_BY_ERRNO = {
    errno.ECONNREFUSED: HandshakeFailure.CONNECTION_REFUSED,
    errno.ETIMEDOUT: HandshakeFailure.CONNECT_TIMEOUT,
    errno.EHOSTUNREACH: HandshakeFailure.UNREACHABLE,
    errno.ENETUNREACH: HandshakeFailure.UNREACHABLE,
    errno.EACCES: HandshakeFailure.ADDRESS_REFUSED,
    errno.EPERM: HandshakeFailure.ADDRESS_REFUSED,  # refused by the host's own packet filter
}

SHAKEN = frozenset({0, errno.ECONNRESET, errno.EPIPE})
"""A reset before the handshake is ECONNREFUSED; these two come after it (net/ipv4/tcp_input.c, tcp_reset)."""

LOCAL_FAULTS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})
"""Faults of this host. They say nothing about the server, so they are not results."""


def failure_of(code: int) -> HandshakeFailure:
    """The failure for an errno of connect(2)."""
    return _BY_ERRNO.get(code, HandshakeFailure.CONNECT_ERROR)


@dataclass(slots=True, kw_only=True)
class OptionsRecord:
    """What the handshakes with one domain's server negotiated. None: no handshake, or unknown."""

    domain: str
    """Rank in the list."""
    rank: int | None = None
    provider: str | None = None
    """Provider, if the input was mapped before the survey."""
    outcome: str = "failed"
    """`ok` (handshake completed) or `failed`."""
    failure: str | None = None
    """One of `HandshakeFailure`; of the first port if several were tried."""
    failure_detail: str | None = None
    """The system's error message."""
    server_ip: str | None = None
    """The address that was contacted."""
    server_port: int | None = None
    """TCP port of the handshake."""
    ecn: bool | None = None
    """An ECN-setup SYN-ACK answered our ECN-setup SYN (RFC 3168, section 6.1.1)."""
    sack: bool | None = None
    """The SYN-ACK permitted SACK (RFC 2018)."""
    window_scaling: bool | None = None
    """The SYN-ACK had the window scale option (RFC 7323)."""
    timestamps: bool | None = None
    """The SYN-ACK had the timestamps option (RFC 7323)."""
    window_scale: int | None = None
    """The server's shift count (RFC 7323, section 2.2)."""
    snd_mss_bytes: int | None = None
    """Largest segment that we could send: the server's MSS minus our TCP options, at most what our own MTU allows."""
    rtt_s: float | None = None
    """Round-trip time of the handshake, as measured by the kernel."""
    syn_retransmissions: int | None = None
    """SYNs retransmitted in the successful attempt, else in the last one."""
    attempts: int = 0
    """SYNs of all other attempts: at other ports, and repeated handshakes."""
    varied: bool | None = None
    """Two handshakes with the same port negotiated different options (a SYN cookie, or several machines behind the
    address); the options are those of both together. None if there was one handshake."""
    cname_chain: str | None = None
    """CNAMEs from the domain to its address, in order, separated by spaces."""
    surveyed_at: float | None = None
    """When the survey of the domain ended."""
