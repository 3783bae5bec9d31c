"""One domain's survey of TCP options (a row of a `survey_options` file, its vocabulary of failures), and the figures of
many: those of the paper's section 6.1, with 95 % intervals.

Hosts are those that completed a handshake; for the others only the causes are counted.
"""

from __future__ import annotations

import errno
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import product

from survey.figures import Breakdown, Figures, Share, cell, results_of, shares_by_group, shares_of


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
    """The domain, as in the list."""
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
    """SYNs retransmitted in the last successful attempt, else in the last one."""
    attempts: int = 0
    """Handshakes that were tried, at all ports and again: SYNs that were no retransmissions, all attempts together."""
    varied: bool | None = None
    """Two handshakes with the same port negotiated different options (a SYN cookie, or several machines behind the
    address); the options are those of both together. None if there was one handshake."""
    cname_chain: str | None = None
    """CNAMEs from the domain to its address, in order, separated by spaces."""
    surveyed_at: float | None = None
    """When the survey of the domain ended."""


PAPER = {"ecn": 85.8, "sack": 91.4, "window_scaling": 91.1, "all": 81.0, "none": 5.3}
"""Section 6.1 of the paper [% of hosts]."""

SHARES: Mapping[str, Callable[[OptionsRecord], bool]] = {
    "ecn": lambda r: bool(r.ecn),
    "sack": lambda r: bool(r.sack),
    "window_scaling": lambda r: bool(r.window_scaling),
    "timestamps": lambda r: bool(r.timestamps),
    "all": lambda r: bool(r.ecn and r.sack and r.window_scaling),
    "none": lambda r: not (r.ecn or r.sack or r.window_scaling),
}
"""Name -> whether a host counts. `all` and `none` are of ECN, SACK and window scaling, as in the paper."""

LABELS = {"ecn": "ECN", "sack": "SACK", "window_scaling": "WS", "timestamps": "TS", "all": "all 3", "none": "none"}


def combination(record: OptionsRecord) -> str:
    """E.g. `ECN+WS`; `none` where none of the three was negotiated."""
    return combination_name(bool(record.ecn), bool(record.sack), bool(record.window_scaling))


def combination_name(ecn: bool, sack: bool, window_scaling: bool) -> str:
    names = [name for name, on in (("ECN", ecn), ("SACK", sack), ("WS", window_scaling)) if on]
    return "+".join(names) or "none"


COMBINATIONS = tuple(combination_name(*on) for on in product((True, False), repeat=3))


def figures(records: Sequence[OptionsRecord]) -> Figures:
    """Counts records. A domain that is in several files counts as often as it is there."""
    hosts = [record for record in records if record.outcome == "ok"]
    failures = ((record.domain, record.failure or "unknown") for record in records if record.outcome != "ok")
    again = shares_of((record.domain, record.syn_retransmissions or 0) for record in hosts)
    retransmitted = shares_of(((record.domain, bool(record.syn_retransmissions)) for record in hosts), (True,))[True]
    varied = sum(bool(record.varied) for record in hosts)
    rtts = [record.rtt_s for record in hosts if record.rtt_s is not None]
    median_s = statistics.median(rtts) if rtts else None
    return Figures(
        title=f"{len(hosts):,} of {results_of(records)} completed a handshake. "
        "Shares of these hosts in %, 95 % intervals:",
        counts={"domains": len(records), "hosts": len(hosts)},
        shares=shares_by_group(hosts, "all hosts", SHARES),
        labels=LABELS,
        paper=PAPER,
        breakdowns={
            "combinations": Breakdown(
                title="Combinations of ECN, SACK and window scaling, in % of these hosts:",
                heading=("combination", "hosts %"),
                group="all hosts",
                shares=shares_of(((record.domain, combination(record)) for record in hosts), COMBINATIONS),
            ),
            "failures": Breakdown(
                title="Domains without a handshake, in % of all, by cause:",
                heading=("cause", "domains %"),
                group="all domains",
                shares=shares_of(failures, of=(record.domain for record in records)),
            ),
            "syn_retransmissions": Breakdown(
                title="SYN retransmissions:",
                heading=("SYNs", "hosts %"),
                group="all hosts",
                shares={str(count): share for count, share in sorted(again.items())},
                shown=False,
            ),
        },
        values={"varied": varied, "rtt_median_s": median_s},
        notes=_notes(retransmitted, varied, median_s),
    )


def _notes(again: Share, varied: int, median_s: float | None) -> list[str]:
    notes = [f"SYN retransmitted to {again.count:,} hosts that answered ({cell(again)} %)."]
    if varied:
        notes.append(f"{varied:,} hosts negotiated different options in the second handshake.")
    if median_s is not None:
        notes.append(f"Median handshake RTT: {median_s * 1000:.1f} ms.")
    return notes
