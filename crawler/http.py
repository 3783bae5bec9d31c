"""Scrapy's HTTP client with a short memory for idle connections."""

from __future__ import annotations

from typing import Any

from scrapy.core.downloader.handlers.http11 import HTTP11DownloadHandler

IDLE_S = 3
"""How long a connection stays open unused [s]: longer than the pause between two requests at the default rate. With
Twisted's 240 s a crawl that has moved on would leave thousands open."""


class ShortIdleHandler(HTTP11DownloadHandler):
    """The handler for http and https."""

    def __init__(self, crawler: Any) -> None:
        super().__init__(crawler)
        self._pool.cachedConnectionTimeout = IDLE_S
