"""What we plug into Scrapy: the spider, the gate that checks every request, and connections that stay small.

The spider's workers take domains from the ledger and visit them through Scrapy's downloader. Visits are coroutines that
await `engine.download_async` and bypass Scrapy's scheduler. Without its request queue, memory depends on the number of
workers, not on the list, and a crash loses no queued requests.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Hashable, Iterator
from typing import Any
from urllib.parse import urlsplit

import scrapy
from scrapy import signals
from scrapy.core.downloader.handlers.http11 import HTTP11DownloadHandler
from scrapy.exceptions import (
    CannotResolveHostError,
    DownloadCancelledError,
    DownloadConnectionRefusedError,
    DownloadFailedError,
    DownloadTimeoutError,
    ResponseDataLossError,
    StopDownload,
)
from twisted.python.failure import Failure
from twisted.web._newclient import HEADER, STATUS, ParseError

from core.outreach.blocks import BlockLists
from core.outreach.dns import Resolver
from crawler.exchange import CrawlOutcome, CrawlReply, CrawlRequest, RequestPurpose
from crawler.ledger import CrawlLedger, DomainResult
from crawler.objects import ObjectVisit
from crawler.policy import Pins, RefusedError, Throttle, admit
from crawler.visit import CrawlLimits, DomainVisit

IDLE_S = 3
"""How long an idle connection stays open [s]: longer than the pause between two requests at the default rate. With
Twisted's 240 s a crawl that has moved on would leave thousands open."""

RECEIVE_BUFFER = 1 << 18
"""Receive buffer of each connection [bytes]; the kernel doubles it, and net.core.rmem_max limits it (socket(7)).

Left to itself the kernel lets a window grow to tens of megabytes (net.ipv4.tcp_rmem), which a server may fill while a
busy crawl is about to close the connection. On loopback 2.9 MB had come beyond what was read of a stopped download,
0.7 MB with this buffer.
"""

MOST_HEADER_BYTES = 1 << 18
"""A longer header is a protocol error: Twisted limits a line, but not how many there are."""

HOSTS_REMEMBERED = 4_096
"""Hosts without a connection are forgotten when there are more than this many."""


class ShortIdleHandler(HTTP11DownloadHandler):
    """The handler for http and https."""

    def __init__(self, crawler: Any) -> None:
        super().__init__(crawler)
        self._pool.cachedConnectionTimeout = IDLE_S
        self._pool._factory = with_small_window(self._pool._factory)

    async def download_request(self, request: Any) -> Any:
        """As Scrapy's."""
        forget_idle_hosts(self._pool)
        return await super().download_request(request)


def with_small_window(factory: type[Any]) -> type[Any]:
    """A Twisted factory of HTTP clients with a receive buffer of `RECEIVE_BUFFER`, and `MOST_HEADER_BYTES` at most."""

    class Small(factory):  # type: ignore[misc]
        def buildProtocol(self, addr: Any) -> Any:  # noqa: N802 - Twisted's name
            protocol = super().buildProtocol(addr)
            made = protocol.connectionMade

            def connection_made() -> None:
                protocol.transport.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
                made()

            protocol.connectionMade = connection_made
            limit_header(protocol)
            return protocol

    return Small


def limit_header(protocol: Any) -> None:
    """Ends a Twisted `HTTP11ClientProtocol` when a header has more than `MOST_HEADER_BYTES`."""
    feed, header_bytes = protocol.dataReceived, 0

    def data_received(data: bytes) -> None:
        nonlocal header_bytes
        header_bytes += len(data)
        feed(data)
        if getattr(protocol._parser, "state", None) not in (STATUS, HEADER):
            header_bytes = 0
        elif header_bytes > MOST_HEADER_BYTES:
            protocol._disconnectParser(Failure(ParseError("the header is too long", b"")))  # type: ignore[no-untyped-call]
            protocol.transport.abortConnection()

    protocol.dataReceived = data_received


def forget_idle_hosts(pool: Any) -> None:
    """Drops hosts without idle connections from a Twisted `HTTPConnectionPool`.

    The pool keeps an empty list for every host that it ever had a connection to (twisted/web/client.py,
    `_removeConnection`): 0.35 kB each, or 350 MB for a list of a million domains.
    """
    hosts: dict[Hashable, list[Any]] = pool._connections
    if len(hosts) > HOSTS_REMEMBERED:
        for host in [host for host, connections in hosts.items() if not connections]:
            del hosts[host]


MOST_LENGTH_DIGITS = 18
"""Tables have 64 bits for a size: a Content-Length with more digits counts as unknown."""

ASK = "upshift_ask"
"""Key of the request's `CrawlRequest` in its meta."""


class GateMiddleware:
    """Refuses requests that must not be sent: not pinned, not public, blocked, or disallowed by robots.txt.

    `crawler.visit` makes the same checks earlier, to choose what to do; this is the enforcement.
    """

    def __init__(self, blocks: BlockLists) -> None:
        self._blocks = blocks

    @classmethod
    def from_crawler(cls, crawler: Any) -> GateMiddleware:
        return cls(crawler.spider.blocks)

    def process_request(self, request: Any) -> None:
        """Returns None, which lets the request pass. Raises RefusedError."""
        ask: CrawlRequest | None = request.meta.get(ASK)
        host = urlsplit(request.url).hostname or ""
        pinned = Pins.current.get(host) if Pins.current is not None else None
        if ask is None or pinned is None or pinned != ask.address:
            raise RefusedError(CrawlOutcome.OTHER_ADDRESS, f"{host} is not pinned to a checked address")
        admit(self._blocks, host, pinned)
        if ask.want is not RequestPurpose.ROBOTS and (ask.robots is None or not ask.robots.allows(request.url)):
            raise RefusedError(CrawlOutcome.ROBOTS_DISALLOWED, request.url)


class FileSpider(scrapy.Spider):
    """Finds one large file per domain, or measures the objects of its start page."""

    name = "upshift"

    def __init__(
        self,
        *,
        ledger: CrawlLedger,
        limits: CrawlLimits,
        resolver: Resolver,
        blocks: BlockLists,
        pace: Throttle,
        workers: int,
        timeout_s: float,
        faults: list[BaseException],
        on_done: Callable[[Counter[str]], None],
    ) -> None:
        super().__init__()
        self.blocks = blocks
        self._ledger = ledger
        self._limits = limits
        self._resolver = resolver
        self._pace = pace
        self._workers = workers
        self._timeout_s = timeout_s
        self._faults = faults
        self._on_done = on_done
        self._outcomes = ledger.counts()[1]

    @classmethod
    def from_crawler(cls, crawler: Any, *args: Any, **kwargs: Any) -> FileSpider:
        spider: FileSpider = super().from_crawler(crawler, *args, **kwargs)
        crawler.signals.connect(spider.headers_received, signal=signals.headers_received)
        crawler.signals.connect(spider.bytes_received, signal=signals.bytes_received)
        return spider

    async def start(self) -> AsyncIterator[Any]:
        """Runs the workers until the list is done; yields no requests itself."""
        domains = self._ledger.take()
        try:
            async with self._resolver, asyncio.TaskGroup() as group:
                for _ in range(self._workers):
                    group.create_task(self._work(domains))
        except BaseExceptionGroup as error:  # Scrapy would log the exception and go on
            self._faults.extend(error.exceptions)
        return
        yield  # makes this an asynchronous generator, which Scrapy requires

    async def _work(self, domains: Iterator[str]) -> None:
        for domain in domains:
            assert Pins.current is not None  # noqa: S101 - Scrapy creates it before the spider
            visit = (ObjectVisit if self._limits.objects else DomainVisit)(
                domain=domain,
                limits=self._limits,
                fetch=self._fetch,
                resolver=self._resolver,
                pins=Pins.current,
                blocks=self.blocks,
                pace=self._pace,
            )
            result: DomainResult = await visit.run()
            self._ledger.finish(result)
            self._outcomes[result.outcome] += 1
            self._on_done(self._outcomes)

    async def _fetch(self, ask: CrawlRequest) -> CrawlReply:
        """One request through Scrapy."""
        request = scrapy.Request(
            ask.url,
            method="HEAD" if ask.want is RequestPurpose.HEAD else "GET",
            headers={"Accept-Encoding": "gzip"} if ask.gzip else None,
            meta={ASK: ask, "download_slot": ask.address, "download_timeout": self._timeout_s},
            dont_filter=True,
        )
        try:
            response = await self.crawler.engine.download_async(request)
        except Exception as error:
            raise _cause(error) from None
        if not 100 <= response.status <= 999:  # three digits (RFC 9112, section 4); Twisted takes any number
            raise RefusedError(CrawlOutcome.PROTOCOL_ERROR, "not a valid status")
        headers = {
            name.decode("latin-1").lower(): _text(name, values) for name, values in response.headers.items() if values
        }
        address = None if response.ip_address is None else str(response.ip_address)
        return CrawlReply(
            status=response.status,
            headers=headers,
            body=response.body,
            address=address,
            stopped=not {"download_stopped", "dataloss"}.isdisjoint(response.flags),
        )

    def headers_received(self, headers: Any, body_length: Any, request: Any, **_: Any) -> None:  # noqa: ARG002
        """Notes length and kind. For a HEAD without Content-Length Scrapy reports 0, which we treat as unknown."""
        ask: CrawlRequest = request.meta[ASK]
        kind = (headers.get(b"Content-Type") or b"").split(b";")[0].strip().lower()
        ask.html = kind in (b"", b"text/html", b"application/xhtml+xml")
        ask.encoded = (headers.get(b"Content-Encoding") or b"identity").strip().lower() != b"identity"
        length = headers.get(b"Content-Length") or b""
        is_size = length.isdigit() and len(length) <= MOST_LENGTH_DIGITS and (ask.gzip or not ask.encoded)
        ask.length = int(length) or None if is_size else None

    def bytes_received(self, data: bytes, request: Any, **_: Any) -> None:
        """Stops the download when the rest is not needed. (Stopping at the headers would lose the server's address.)"""
        ask: CrawlRequest = request.meta[ASK]
        ask.received += len(data)
        if ask.enough:
            raise StopDownload(fail=False)


def _text(name: bytes, values: list[bytes]) -> str:
    """A header field. Of one that comes more than once the first counts; Alt-Svc is a list (RFC 9110, section 5.3)."""
    value = b", ".join(values) if name.lower() == b"alt-svc" else values[0]
    try:
        return value.decode("utf-8")  # as browsers read a Location that is not ASCII
    except UnicodeDecodeError:
        return value.decode("latin-1")


_CAUSES: tuple[tuple[type[BaseException], CrawlOutcome], ...] = (
    (CannotResolveHostError, CrawlOutcome.OTHER_ADDRESS),  # no longer pinned: connections to it are not allowed
    (DownloadTimeoutError, CrawlOutcome.TIMEOUT),
    (DownloadConnectionRefusedError, CrawlOutcome.CONNECTION_FAILED),
    (ResponseDataLossError, CrawlOutcome.PROTOCOL_ERROR),
    (DownloadCancelledError, CrawlOutcome.PROTOCOL_ERROR),
)


def _cause(error: Exception) -> RefusedError:
    """Scrapy's and Twisted's exceptions as one of our outcomes."""
    if isinstance(error, RefusedError):
        return error
    text = f"{type(error).__name__}: {error}"
    reasons = getattr(error.__cause__, "reasons", ())  # Twisted's exception, of which Scrapy's holds only the text
    if any(reason.check(ParseError) for reason in reasons):
        return RefusedError(CrawlOutcome.PROTOCOL_ERROR, text)
    for kind, outcome in _CAUSES:
        if isinstance(error, kind):
            return RefusedError(outcome, text)
    if isinstance(error, DownloadFailedError) or "SSL" in text or "TLS" in text:
        tls = any(word in text for word in ("SSL", "TLS", "ertificate", "VerificationError"))
        return RefusedError(CrawlOutcome.TLS_ERROR if tls else CrawlOutcome.CONNECTION_FAILED, text)
    if isinstance(error, OSError):
        return RefusedError(CrawlOutcome.CONNECTION_FAILED, text)
    return RefusedError(CrawlOutcome.PROTOCOL_ERROR, text)
