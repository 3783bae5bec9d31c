"""Scrapy's HTTP client, with a short timeout for idle connections."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from scrapy.core.downloader.handlers.http11 import HTTP11DownloadHandler

IDLE_S = 3
"""How long an idle connection stays open [s]: longer than the pause between two requests at the default rate. With
Twisted's 240 s a crawl that has moved on would leave thousands open."""

HOSTS_REMEMBERED = 4_096
"""Hosts without a connection are forgotten when there are more than this many."""


class ShortIdleHandler(HTTP11DownloadHandler):
    """The handler for http and https."""

    def __init__(self, crawler: Any) -> None:
        super().__init__(crawler)
        self._pool.cachedConnectionTimeout = IDLE_S

    async def download_request(self, request: Any) -> Any:
        """As Scrapy's."""
        forget_idle_hosts(self._pool)
        return await super().download_request(request)


def forget_idle_hosts(pool: Any) -> None:
    """Drops hosts without idle connections from a Twisted `HTTPConnectionPool`.

    The pool keeps an empty list for every host that it ever had a connection to (twisted/web/client.py,
    `_removeConnection`): 0.35 kB each, or 350 MB for a list of a million domains.
    """
    hosts: dict[Hashable, list[Any]] = pool._connections
    if len(hosts) > HOSTS_REMEMBERED:
        for host in [host for host, connections in hosts.items() if not connections]:
            del hosts[host]
