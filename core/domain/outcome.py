"""How a download ended, and why it is not `ok`."""

from __future__ import annotations

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
