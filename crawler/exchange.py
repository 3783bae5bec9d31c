"""One request of a crawl: what it is for, when enough of its answer has come, and what came."""

from __future__ import annotations

import zlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum

from crawler.policy import RefusedError, Robots


class CrawlOutcome(StrEnum):
    """How a visit ended."""

    FOUND = "found"
    NO_FILE = "no_file"
    BLOCKED = "blocked"
    DNS_ERROR = "dns_error"
    ADDRESS_REFUSED = "address_refused"
    ROBOTS_DISALLOWED = "robots_disallowed"
    ROBOTS_UNREACHABLE = "robots_unreachable"
    CRAWL_DELAY = "crawl_delay"
    CONNECTION_FAILED = "connection_failed"
    TIMEOUT = "timeout"
    TLS_ERROR = "tls_error"
    HTTP_STATUS = "http_status"
    TOO_MANY_REQUESTS = "too_many_requests"
    """Status 429 (RFC 6585): the visit ends at once."""
    OFF_DOMAIN = "off_domain"
    """The start page, or its robots.txt, redirects to another domain, scheme or port."""
    OTHER_ADDRESS = "other_address"
    """The start page, or its robots.txt, redirects to another server, or another server answered."""
    TOO_MANY_REDIRECTS = "too_many_redirects"
    TIME_BUDGET = "time_budget"
    PROTOCOL_ERROR = "protocol_error"
    INTERNAL_ERROR = "internal_error"
    """A bug of Upshift, triggered by this domain; please report the detail."""


MOST_TEXT_BYTES = 5_000_000
"""Bytes of a page, style sheet or robots.txt that are unpacked, at most: gzip packs zeros a thousand to one."""


class RequestPurpose(StrEnum):
    """Purpose of a request; determines when its download is stopped."""

    ROBOTS = "robots"
    PAGE = "page"
    WHOLE = "whole"
    """A GET of which the body is read, whatever its type: a style sheet."""
    HEAD = "head"
    SIZE = "size"
    """A GET that is stopped as soon as the size is known or the minimum has arrived."""


@dataclass(slots=True, kw_only=True)
class CrawlRequest:
    """A request, and the part of its response received so far."""

    url: str
    want: RequestPurpose
    address: str
    robots: Robots | None
    """None for robots.txt itself."""
    min_size: int
    max_page_bytes: int
    gzip: bool = False
    """Whether the answer may be compressed: its size on the wire is asked for."""
    length: int | None = None
    """Content-Length; unknown of an encoded body that was not asked for."""
    html: bool = False
    encoded: bool = False
    received: int = 0

    @property
    def reads(self) -> bool:
        """Whether the body is read, not only its size."""
        read = (RequestPurpose.ROBOTS, RequestPurpose.WHOLE)
        return self.want in read or (self.want is RequestPurpose.PAGE and self.html)

    @property
    def enough(self) -> bool:
        """Whether the rest of the body is not needed."""
        if self.reads:
            return self.received >= self.max_page_bytes
        return self.length is not None or self.received >= self.min_size


@dataclass(frozen=True, slots=True, kw_only=True)
class CrawlReply:
    """The response."""

    status: int
    headers: dict[str, str]
    """Lower-case names."""
    body: bytes
    """Unpacked by `DomainVisit`, if it is read."""
    address: str | None
    stopped: bool
    """We stopped it, or the server broke off: more would have come."""

    @property
    def charset(self) -> str | None:
        """The character encoding that its Content-Type states, whether or not it is one."""
        _, _, after = self.headers.get("content-type", "").lower().partition("charset=")
        return after.split(";")[0].strip(" \"'") or None


def unpacked(body: bytes, ask: CrawlRequest) -> bytes:
    """The text of a body. Raises RefusedError if it is packed by anything but gzip, or unpacks to too much."""
    if not ask.encoded:
        return body
    unpacker = zlib.decompressobj(wbits=31)  # gzip
    try:
        text = unpacker.decompress(body, MOST_TEXT_BYTES)
    except zlib.error as error:
        raise RefusedError(CrawlOutcome.PROTOCOL_ERROR, f"{ask.url} cannot be unpacked: {error}") from None
    if unpacker.unconsumed_tail:
        raise RefusedError(CrawlOutcome.PROTOCOL_ERROR, f"{ask.url} unpacks to more than {MOST_TEXT_BYTES:,} bytes")
    return text


Fetch = Callable[[CrawlRequest], Awaitable[CrawlReply]]
"""Makes one request. Raises RefusedError with a cause if there is no response."""
