"""How a domain's QUIC survey ends: a closed vocabulary."""

from __future__ import annotations

from enum import StrEnum


class Cause(StrEnum):
    """How it ended; every domain has exactly one cause."""

    OK = "ok"
    """A verified handshake with ALPN h3, and a response below 500 over HTTP/3."""
    NO_CANDIDATE = "no_candidate"
    """Neither an HTTPS record nor Alt-Svc offers h3; nothing was sent to the servers."""
    DNS_ERROR = "dns_error"
    ADDRESS_REFUSED = "address_refused"
    """No address that may be contacted; no packet was sent."""
    BLOCKED = "blocked"
    """Domain or address is on a block list; no packet was sent."""
    NO_ANSWER = "no_answer"
    """Not offered, probed all the same (`--all`), and silent."""
    ADVERTISED_ONLY = "advertised_only"
    """Offered, but neither the probe nor the handshake was answered."""
    VERSION_NEGOTIATION_ONLY = "version_negotiation_only"
    """It lists a version that we support, and then does not answer a handshake of that version."""
    VERSION_MISMATCH = "version_mismatch"
    """It lists no version that we support (1, 2)."""
    CERTIFICATE = "certificate"
    """The certificate is not valid for the domain, or not to be trusted."""
    TLS_ALERT = "tls_alert"
    ALPN = "alpn"
    """No h3 in the handshake."""
    TRANSPORT_ERROR = "transport_error"
    """Either side closed with a QUIC error, or its packets cannot be parsed."""
    HANDSHAKE_TIMEOUT = "handshake_timeout"
    """Packets were received, but the handshake was not complete in time."""
    HTTP_ERROR = "http_error"
    """Handshake complete, but no response, a broken one, 421, or 500 and above."""


NOT_ASKED = frozenset({Cause.DNS_ERROR, Cause.ADDRESS_REFUSED, Cause.BLOCKED})
"""These say nothing about the server: whether it supports QUIC stays unknown."""
