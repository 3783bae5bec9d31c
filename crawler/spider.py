"""The Scrapy spider: workers that take domains from the ledger and visit them through Scrapy's downloader.

Visits are coroutines that await `engine.download_async` and bypass Scrapy's scheduler. Without its request queue,
memory depends on the number of workers, not on the list, and a crash loses no queued requests.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import scrapy
from scrapy import signals
from scrapy.exceptions import (
    CannotResolveHostError,
    DownloadCancelledError,
    DownloadConnectionRefusedError,
    DownloadFailedError,
    DownloadTimeoutError,
    ResponseDataLossError,
    StopDownload,
)
from twisted.web._newclient import ParseError

from core.outreach.blocks import BlockLists
from core.outreach.dns import Resolver
from crawler.components import ASK
from crawler.ledger import CrawlLedger, DomainResult
from crawler.manners import RefusedError, Throttle
from crawler.names import Pins
from crawler.visit import Ask, CrawlLimits, CrawlOutcome, Reply, Visit, Want


class FileSpider(scrapy.Spider):
    """Finds one large file per domain."""

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

    async def _work(self, domains: Any) -> None:
        for domain, _ in domains:
            assert Pins.current is not None  # noqa: S101 - Scrapy creates it before the spider
            visit = Visit(
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

    async def _fetch(self, ask: Ask) -> Reply:
        """One request through Scrapy."""
        request = scrapy.Request(
            ask.url,
            method="HEAD" if ask.want is Want.HEAD else "GET",
            meta={ASK: ask, "download_slot": ask.address, "download_timeout": self._timeout_s},
            dont_filter=True,
        )
        try:
            response = await self.crawler.engine.download_async(request)
        except Exception as error:
            raise _cause(error) from None
        headers = {
            name.decode("latin-1").lower(): values[0].decode("latin-1")
            for name, values in response.headers.items()
            if values
        }
        address = None if response.ip_address is None else str(response.ip_address)
        return Reply(
            status=response.status,
            headers=headers,
            body=response.body,
            address=address,
            stopped="download_stopped" in response.flags,
        )

    def headers_received(self, headers: Any, body_length: Any, request: Any, **_: Any) -> None:  # noqa: ARG002
        """Notes length and kind. For a HEAD without Content-Length Scrapy reports 0, which we treat as unknown."""
        ask: Ask = request.meta[ASK]
        kind = (headers.get(b"Content-Type") or b"").split(b";")[0].strip().lower()
        ask.html = kind in (b"", b"text/html", b"application/xhtml+xml")
        ask.encoded = (headers.get(b"Content-Encoding") or b"identity").strip().lower() != b"identity"
        length = headers.get(b"Content-Length") or b""
        ask.length = int(length) if length.isdigit() and int(length) > 0 and not ask.encoded else None

    def bytes_received(self, data: bytes, request: Any, **_: Any) -> None:
        """Stops the download when the rest is not needed. (Stopping at the headers would lose the server's address.)"""
        ask: Ask = request.meta[ASK]
        ask.received += len(data)
        if ask.enough:
            raise StopDownload(fail=False)


_CAUSES: tuple[tuple[type[BaseException], CrawlOutcome], ...] = (
    (
        CannotResolveHostError,
        CrawlOutcome.OTHER_ADDRESS,
    ),  # no longer pinned: connections to it are not allowed
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
