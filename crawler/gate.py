"""The gate: the only downloader middleware of the crawl. It checks every request."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from core.outreach.blocks import BlockLists
from crawler.manners import RefusedError, admit
from crawler.names import Pins
from crawler.visit import Ask, Outcome, Want

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
            raise RefusedError(Outcome.OTHER_ADDRESS, f"{host} is not pinned to a checked address")
        admit(self._blocks, host, pinned)
        if ask.want is not Want.ROBOTS and (ask.robots is None or not ask.robots.allows(request.url)):
            raise RefusedError(Outcome.ROBOTS_DISALLOWED, request.url)
