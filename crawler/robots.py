"""robots.txt (RFC 9309) for our agent name, with Crawl-delay."""

from __future__ import annotations

from protego import Protego

AGENT = "upshift"
"""Our product token in robots.txt."""

MAX_BYTES = 500 * 1024
"""RFC 9309, section 2.5: at least 500 KiB must be parsed; the rest is ignored."""


class Robots:
    """The rules of one origin.

    Attributes:
        delay_s: Crawl-delay for our agent [s], 0 if not set.
        unreachable: the file could not be fetched, so everything is disallowed (RFC 9309, section 2.3.1.4).
    """

    def __init__(self, text: str | None) -> None:
        self.unreachable = text is None
        self._rules = Protego.parse(text or "")
        delay = self._rules.crawl_delay(AGENT)
        self.delay_s = float(delay) if delay is not None and delay > 0 else 0.0

    def allows(self, url: str) -> bool:
        """Whether we may fetch this URL."""
        return not self.unreachable and bool(self._rules.can_fetch(url, AGENT))


def from_reply(status: int, body: bytes) -> Robots:
    """RFC 9309, section 2.3.1: 2xx is parsed, 4xx means no rules, anything else disallows everything."""
    if 200 <= status < 300:
        return Robots(body[:MAX_BYTES].decode("utf-8", "replace"))
    return Robots("" if 400 <= status < 500 else None)
