"""How a download ended: its outcome, the cause of a failure, what disturbed it, and whether the run had one file."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


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


class VoidReason(StrEnum):
    """Why an attempt of a measurement run does not count. The vocabulary is closed, like `Failure`."""

    INTERRUPTED = "interrupted"
    """The campaign was stopped or killed during the run; not an error of the place."""
    EMULATOR_LATE = "emulator_late"
    """The path emulator delivered packets late."""
    EMULATOR_LOST = "emulator_lost"
    """The path emulator lost packets that it was not programmed to drop."""
    HOST_DROPPED = "host_dropped"
    """The host, or a device of the lab, dropped packets outside the path."""
    PORT_REUSED = "port_reused"
    """Two downloads of the run had the same client port, so their packets cannot be told apart."""
    SLOT_ENDED = "slot_ended"
    """The run took longer than its worst case, and the vantage point's slot ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbance:
    """Why a measurement run is void."""

    reason: VoidReason
    detail: str
    """One clause of text, with the numbers."""


class HostDisturbance(StrEnum):
    """How the host falsified one download whose options were as requested. The vocabulary is closed, like `Failure`."""

    CLIENT_LATE = "client_late"
    """By the capture, the last byte arrived well before the client read it: the client waited for a processor."""


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
