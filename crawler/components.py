"""What we plug into Scrapy's downloader: the gate that checks every request, and connections that stay small."""

from __future__ import annotations

import socket
from collections.abc import Hashable
from typing import Any
from urllib.parse import urlsplit

from scrapy.core.downloader.handlers.http11 import HTTP11DownloadHandler

from core.outreach.blocks import BlockLists
from crawler.manners import RefusedError, admit
from crawler.names import Pins
from crawler.visit import Ask, CrawlOutcome, Want

IDLE_S = 3
"""How long an idle connection stays open [s]: longer than the pause between two requests at the default rate. With
Twisted's 240 s a crawl that has moved on would leave thousands open."""

RECEIVE_BUFFER = 1 << 18
"""Receive buffer of each connection [bytes]; the kernel doubles it, and net.core.rmem_max limits it (socket(7)).

Left to itself the kernel lets a window grow to tens of megabytes (net.ipv4.tcp_rmem), which a server may fill while a
busy crawl is about to close the connection. On loopback 2.9 MB had come beyond what was read of a stopped download,
0.7 MB with this buffer.
"""

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
    """A Twisted factory of HTTP clients whose connections have a receive buffer of `RECEIVE_BUFFER`."""

    class Small(factory):  # type: ignore[misc]
        def buildProtocol(self, addr: Any) -> Any:  # noqa: N802 - Twisted's name
            protocol = super().buildProtocol(addr)
            made = protocol.connectionMade

            def connection_made() -> None:
                protocol.transport.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
                made()

            protocol.connectionMade = connection_made
            return protocol

    return Small


def forget_idle_hosts(pool: Any) -> None:
    """Drops hosts without idle connections from a Twisted `HTTPConnectionPool`.

    The pool keeps an empty list for every host that it ever had a connection to (twisted/web/client.py,
    `_removeConnection`): 0.35 kB each, or 350 MB for a list of a million domains.
    """
    hosts: dict[Hashable, list[Any]] = pool._connections
    if len(hosts) > HOSTS_REMEMBERED:
        for host in [host for host, connections in hosts.items() if not connections]:
            del hosts[host]


ASK = "upshift_ask"
"""Key of the request's `Ask` in its meta."""


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
        ask: Ask | None = request.meta.get(ASK)
        host = urlsplit(request.url).hostname or ""
        pinned = Pins.current.get(host) if Pins.current is not None else None
        if ask is None or pinned is None or pinned != ask.address:
            raise RefusedError(CrawlOutcome.OTHER_ADDRESS, f"{host} is not pinned to a checked address")
        admit(self._blocks, host, pinned)
        if ask.want is not Want.ROBOTS and (ask.robots is None or not ask.robots.allows(request.url)):
            raise RefusedError(CrawlOutcome.ROBOTS_DISALLOWED, request.url)
