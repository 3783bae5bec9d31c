"""How a download ended (outcome, cause of a failure, what disturbed it), and whether it had the requested options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol


class Outcome(StrEnum):
    """How a download ended; every download has exactly one outcome."""

    OK = "ok"
    FAILED = "failed"
    """It has a cause (`Failure`) and is left out of speed-ups."""
    CENSORED = "censored"
    """It hit its time or byte budget: its measured duration is a lower bound, and enters speed-ups as one."""


class Failure(StrEnum):
    """Why a download is not `ok`. The vocabulary is closed: every client maps its errors onto one of these."""

    ADDRESS_REFUSED = "address_refused"
    """The address may not be contacted from this place; no packet was sent."""
    OPTED_OUT = "opted_out"
    """The domain or the address is on a block list, or was put there while the download ran, which was stopped."""
    DNS_ERROR = "dns_error"
    NETWORK_UNREACHABLE = "network_unreachable"
    CONNECTION_REFUSED = "connection_refused"
    CONNECT_TIMEOUT = "connect_timeout"
    """No connection (for QUIC: no handshake) within the budget."""
    CONNECTION_RESET = "connection_reset"
    TLS_CERTIFICATE = "tls_certificate"
    TLS_ERROR = "tls_error"
    PROTOCOL_ERROR = "protocol_error"
    """The server violated HTTP or QUIC."""
    HTTP_STATUS = "http_status"
    """The status was not 200 (see `http_status`)."""
    CHALLENGE_PAGE = "challenge_page"
    """A bot check, or another HTML page with status 200, was served instead of the file."""
    BLOCK_PAGE = "block_page"
    """A CDN's edge refused the request itself, with status 403 or 429."""
    TRUNCATED_BODY = "truncated_body"
    """The body ended before its Content-Length."""
    LENGTH_MISMATCH = "length_mismatch"
    """The body was longer than its Content-Length."""
    CONTENT_CHANGED = "content_changed"
    """Length or hash differ from the other downloads of the same measurement run."""
    STALLED = "stalled"
    """Censored: the time budget was hit, and nothing arrived in its second half."""
    TIME_BUDGET = "time_budget"
    """Censored: the time budget was hit while data was arriving."""
    BYTE_BUDGET = "byte_budget"
    """Censored: the byte budget was hit."""
    CLIENT_CRASHED = "client_crashed"
    """The client program ended without a valid result."""
    UNKNOWN = "unknown"


class FailureCode(StrEnum):
    """What exactly happened in a failure. Closed, like `Failure`; `FAILURE_CODES` has which go where.

    A client whose library does not tell leaves it out. Those with a number have it in `failure_number`.
    """

    NXDOMAIN = "nxdomain"
    """There is no such name (RFC 1035, section 4.1.1: response code 3)."""
    SERVFAIL = "servfail"
    """The resolver could not answer (response code 2)."""
    REFUSED = "refused"
    """The resolver does not answer us (response code 5)."""
    TIMEOUT = "timeout"
    """No resolver answered in time."""
    NO_ADDRESS = "no_address"
    """The name exists, and has no address of the wanted kind."""
    LAME = "lame"
    """A referral in place of an answer: the server asked neither has the zone nor asks others (RFC 9499, section 7)."""
    BAD_ANSWER = "bad_answer"
    """An answer that is of no use: another response code, or a message that cannot be read."""

    SYN_UNANSWERED = "syn_unanswered"
    """TCP's handshake was not completed."""
    TLS_UNANSWERED = "tls_unanswered"
    """TCP's was, TLS's was not."""
    QUIC_UNANSWERED = "quic_unanswered"
    """QUIC's handshake, which has TLS's in it, was not completed."""

    RST = "rst"
    """The server answered the SYN with RST."""
    ICMP_PORT = "icmp_port"
    """ICMP: port unreachable (RFC 792; RFC 4443, section 3.1; so the other two)."""
    ICMP_HOST = "icmp_host"
    """ICMP: host unreachable, or forbidden by a router."""
    ICMP_NET = "icmp_net"
    """ICMP: network unreachable, or no route there."""
    NO_ROUTE = "no_route"
    """This host has no route to the address, or no address of that family."""
    HOST_FIREWALL = "host_firewall"
    """This host's own rules refuse the packets."""

    IN_HANDSHAKE = "in_handshake"
    """QUIC's handshake was under way, or TCP's."""
    IN_TLS = "in_tls"
    """TCP was connected, TLS's handshake under way."""
    BEFORE_HEADERS = "before_headers"
    """The handshakes were complete; the response had not begun."""
    IN_BODY = "in_body"
    """The response's header had come."""

    EXPIRED = "expired"
    NOT_YET_VALID = "not_yet_valid"
    WRONG_NAME = "wrong_name"
    UNKNOWN_CA = "unknown_ca"
    """No trusted authority issued the certificate."""
    SELF_SIGNED = "self_signed"
    """The server's certificate is its own issuer, and not trusted."""

    ALERT = "alert"
    """A TLS alert ended the handshake, the peer's or ours; the number is the alert's (RFC 8446, section 6)."""
    NOT_TLS = "not_tls"
    """What came is not TLS."""
    VERSION = "version"
    """No common version of TLS."""

    HTTP_SYNTAX = "http_syntax"
    """The response is no valid HTTP message."""
    BAD_LENGTH = "bad_length"
    """Content-Length is not a number, or there are two that differ."""
    UPGRADE = "upgrade"
    """101 Switching Protocols, which nobody asked for."""
    H2_CODE = "h2_code"
    """An error of HTTP/2; the number is its code, if known (RFC 9113, section 7)."""
    H3_CODE = "h3_code"
    """An error of HTTP/3, for which we closed; the number is its code (RFC 9114, section 8.1)."""
    QUIC_TRANSPORT = "quic_transport"
    """An error of QUIC; the number is its code (RFC 9000, section 20.1)."""
    VERSION_NEGOTIATION = "version_negotiation"
    """No common version of QUIC."""


_UNREACHED = frozenset(
    {FailureCode.RST, FailureCode.ICMP_PORT, FailureCode.ICMP_HOST, FailureCode.ICMP_NET}
    | {FailureCode.NO_ROUTE, FailureCode.HOST_FIREWALL}
)

FAILURE_CODES: Mapping[Failure, frozenset[FailureCode]] = {
    Failure.DNS_ERROR: frozenset(
        {FailureCode.NXDOMAIN, FailureCode.SERVFAIL, FailureCode.REFUSED, FailureCode.TIMEOUT}
        | {FailureCode.NO_ADDRESS, FailureCode.LAME, FailureCode.BAD_ANSWER}
    ),
    Failure.CONNECT_TIMEOUT: frozenset(
        {FailureCode.SYN_UNANSWERED, FailureCode.TLS_UNANSWERED, FailureCode.QUIC_UNANSWERED}
    ),
    Failure.CONNECTION_REFUSED: _UNREACHED | {FailureCode.QUIC_TRANSPORT},
    Failure.NETWORK_UNREACHABLE: _UNREACHED,
    Failure.CONNECTION_RESET: frozenset(
        {FailureCode.IN_HANDSHAKE, FailureCode.IN_TLS, FailureCode.BEFORE_HEADERS, FailureCode.IN_BODY}
    ),
    Failure.TLS_CERTIFICATE: frozenset(
        {FailureCode.EXPIRED, FailureCode.NOT_YET_VALID, FailureCode.WRONG_NAME}
        | {FailureCode.UNKNOWN_CA, FailureCode.SELF_SIGNED}
    ),
    Failure.TLS_ERROR: frozenset({FailureCode.ALERT, FailureCode.NOT_TLS, FailureCode.VERSION}),
    Failure.PROTOCOL_ERROR: frozenset(
        {FailureCode.HTTP_SYNTAX, FailureCode.BAD_LENGTH, FailureCode.UPGRADE, FailureCode.H2_CODE}
        | {FailureCode.H3_CODE, FailureCode.QUIC_TRANSPORT, FailureCode.VERSION_NEGOTIATION}
    ),
}
"""Failure -> its failure codes; the others have none."""


class VoidReason(StrEnum):
    """Why an attempt of a measurement run does not count. The vocabulary is closed, like `Failure`."""

    INTERRUPTED = "interrupted"
    """The campaign was stopped or killed during the run; not an error of the place."""
    EMULATOR_LATE = "emulator_late"
    """The path emulator delivered packets late, or stood still."""
    EMULATOR_LOST = "emulator_lost"
    """The path emulator lost packets that it was not programmed to drop."""
    HOST_DROPPED = "host_dropped"
    """The host, or a device of the lab, dropped packets outside the path."""
    PORT_REUSED = "port_reused"
    """Two downloads of the run had the same client port, so their packets cannot be told apart."""
    SLOT_ENDED = "slot_ended"
    """The run took longer than its worst case, and the vantage point's slot ended."""
    CLOCK_STEPPED = "clock_stepped"
    """The host's clock was set during the run, by more than 5 ms."""
    CONNTRACK_INVALID = "conntrack_invalid"
    """The host's connection tracking called packets of the run invalid, and dropped them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbance:
    """Why a measurement run is void."""

    reason: VoidReason
    detail: str
    """One clause of text, with the numbers."""


class HostDisturbance(StrEnum):
    """How the host falsified one download whose options were as requested. The vocabulary is closed, like `Failure`."""

    CLIENT_LATE = "client_late"
    """By the capture, the last byte arrived well before the client read it: the client waited for a processor. Of
    TCP alone: a late client of QUIC acknowledges late, and its download stays in."""


class CacheState(StrEnum):
    """Whether a response came from the edge's cache, by its header fields. The vocabulary is closed."""

    HIT = "hit"
    """The edge answered from its cache, without contacting another server."""
    MISS = "miss"
    """The edge asked another server first: it did not have the file, may not keep it, or had to validate it."""
    UNKNOWN = "unknown"
    """No header field shows it."""


class IdentityFlag(StrEnum):
    """How a download differs from most others of its measurement run. The vocabulary is closed, like `Failure`.

    Warm-ups are not compared. Only values that both responses have are compared.
    """

    STATUS = "status_differs"
    """Another HTTP status."""
    OBJECT = "object_differs"
    """Another length or hash."""
    NETWORK = "network_differs"
    """A server address in another network: neither one announced prefix nor one /24 (IPv6: /48) has both."""
    MISS = "cache_miss"
    """A cache miss after the warm-up."""
    EDGE = "edge_differs"
    """Another edge location."""
    AGE = "age_differs"
    """Another cached copy: its Age does not agree with that of the others and the time between them."""
    ETAG = "etag_differs"
    """Another entity tag."""


class TreatmentReason(StrEnum):
    """Why a treatment is disproved or unproven. The vocabulary is closed, like `Failure`.

    At the client alone, a server that refuses and a path that strips cannot be distinguished. That needs data from the
    server's end (`Download.server_end`), which the lab records.
    """

    WRONG_OFFER = "wrong_offer"
    """The client's first SYN did not have the requested options."""
    NO_SYN_ACK = "no_syn_ack"
    """The client requested the option, and no SYN-ACK was captured."""
    FELL_BACK = "fell_back"
    """The client's kernel retransmitted its SYN without ECN (tcp_ecn_fallback)."""
    REFUSED_OR_STRIPPED = "refused_or_stripped"
    """The SYN-ACK lacks the option: the server refused it, or the path removed it; it is unknown which."""
    SERVER_REFUSED = "server_refused"
    """The server received the request and did not accept it; or it accepted ECN and sent no packets with ECT."""
    STRIPPED = "stripped"
    """The path removed the option from the SYN or from the SYN-ACK."""
    REWRITTEN = "rewritten"
    """The path changed the handshake in both directions: as requested for the client, but not for the server."""
    BLEACHED = "bleached"
    """ECN was negotiated, and under 10 % of 50 or more data packets arrived with ECT or CE."""
    CE_CLEARED = "ce_cleared"
    """The path marked packets CE, and under 10 % of these marks arrived."""
    QUIC_VERSION = "quic_version"
    """The QUIC version was not the requested one."""
    HTTP_VERSION = "http_version"
    """The HTTP version, or the protocol that TLS selected (ALPN), was not the client's: it fell back to another one."""
    ACCOUNTS_DIFFER = "accounts_differ"
    """Client and capture contradict each other."""
    NO_EVIDENCE = "no_evidence"
    """There is no capture, no SYN in it, or no report by the client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refutation:
    """Why a download did not have what was requested."""

    reason: TreatmentReason
    detail: str
    """One clause of text, with the numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Handshake:
    """What the first SYN and its SYN-ACK carried, at the client or at the server: the proof of treatment for TCP.

    `None` in a `synack_*` field means that no SYN-ACK was captured. Sources: RFC 9293 (flags, MSS), RFC 7323 (window
    scale, timestamps), RFC 2018 (SACK permitted), RFC 3168 section 6.1.1 (ECN-setup SYN has ECE and CWR, ECN-setup
    SYN-ACK has ECE only).
    """

    syn_ecn: bool
    synack_ecn: bool | None
    syn_sack: bool
    synack_sack: bool | None
    syn_window_scale: int | None
    """The shift count, None if the option is absent."""
    synack_window_scale: int | None
    synack_seen: bool
    syn_timestamps: bool
    synack_timestamps: bool | None
    syn_mss: int | None
    synack_mss: int | None
    syn_window: int
    """Unscaled window of the SYN [bytes]."""
    later_syn_without_ecn: bool
    """The first SYN requested ECN and a retransmitted one did not (the kernel's `tcp_ecn_fallback`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EcnDelivery:
    """Delivery of the ECN field (RFC 3168, section 5) of the server's packets. All counts are packets."""

    data: int
    """Data packets of the server that arrived."""
    marked: int
    """Data packets that arrived with ECT(0), ECT(1) or CE."""
    ce: int
    """Packets of the server that arrived with CE."""
    sent_marked: int | None = None
    """Packets that left the server with ECT or CE; None without data from the server's end."""
    ce_set: int | None = None
    """Packets that the path marked CE; likewise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """The data of a TCP connection that factors check."""

    client: Handshake
    """The handshake as the client sent and received it."""
    server: Handshake | None = None
    """The handshake as the server received and sent it; None without data from the server's end."""
    ecn: EcnDelivery | None = None
    """None if the capture is incomplete."""
    levels: Mapping[str, str] = field(default_factory=dict)
    """The requested levels: factor -> level."""
    kpi: Callable[[str], bool | int | float | str | None] = lambda _: None
    """(name of a KPI) -> its value for the connection, as in the tables; None if it has none."""


class Proven(Protocol):
    """A factor as inspection sees it: an option that the packets of a connection can prove."""

    @property
    def name(self) -> str: ...

    def proof(self, level: str, wire: Wire, /) -> Refutation | None:
        """None if the packets had the option at this level, else the reason."""
        ...
