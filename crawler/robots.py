"""robots.txt by our own agent name (RFC 9309), with Crawl-delay."""

from __future__ import annotations

from protego import Protego

AGENT = "upshift"
"""The product token that site owners write into robots.txt to address us."""

MAX_BYTES = 500 * 1024
"""RFC 9309, section 2.5: at least 500 KiB must be parsed; what comes after is ignored."""


class Robots:
    """The rules of one origin.

    Attributes:
        delay_s: Crawl-delay for us [s], 0 where none is asked for.
        unreachable: the file could not be had, so everything is disallowed (RFC 9309, section 2.3.1.4).
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
    """RFC 9309, section 2.3.1: 2xx is parsed, 4xx means no rules, anything else means that all is disallowed."""
    if 200 <= status < 300:
        return Robots(body[:MAX_BYTES].decode("utf-8", "replace"))
    return Robots("" if 400 <= status < 500 else None)
