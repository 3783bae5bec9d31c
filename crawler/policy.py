"""What a crawl may contact, and how fast: names pinned to addresses, address policy, robots.txt, block lists, opt-outs,
and the rate per address. `crawler.spider` calls `admit` for every request.

A visit resolves each host once, and the HTTP client never resolves it again: `Pins` is also Scrapy's DNS resolver, and
a host that is not pinned by a visit does not resolve. So neither a redirect nor a changed DNS answer can lead the crawl
to an address that was not checked.
"""

from __future__ import annotations

import asyncio
import ipaddress
import math
import re
from collections import Counter
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from protego import Protego
from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.interfaces import IHostnameResolver, IHostResolution
from zope.interface import implementer  # type: ignore[import-untyped]

from core.errors import BlockedError, ReachError
from core.outreach.pace import Lanes
from core.reach import check_public

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from core.outreach.blocks import BlockLists


@implementer(IHostResolution)
class _Resolution:
    def __init__(self, name: str) -> None:
        self.name = name

    def cancel(self) -> None:
        """Twisted's interface for a name resolution; there is nothing to cancel."""


@implementer(IHostnameResolver)
class Pins:
    """Host -> address for the visits in progress; Scrapy's `DNS_RESOLVER`."""

    current: Pins | None = None
    """The instance that Scrapy made for this process; it makes exactly one."""

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor
        self._pinned: dict[str, str] = {}
        self._users: Counter[str] = Counter()
        Pins.current = self

    @classmethod
    def from_crawler(cls, crawler: Any, reactor: Any) -> Pins:  # noqa: ARG003 - the signature is Scrapy's
        return cls(reactor)

    def install_on_reactor(self) -> None:
        """Scrapy calls this once."""
        self._reactor.installNameResolver(self)

    def pin(self, host: str, address: str) -> str:
        """Pins a host for one more visit. If another visit pinned it already, its address is kept and returned."""
        self._users[host] += 1
        return self._pinned.setdefault(host, address)

    def release(self, host: str) -> None:
        """Releases one visit's pin."""
        self._users[host] -= 1
        if self._users[host] <= 0:
            del self._users[host]
            self._pinned.pop(host, None)

    def get(self, host: str) -> str | None:
        return self._pinned.get(host)

    def resolveHostName(  # noqa: N802 - Twisted's interface
        self,
        resolutionReceiver: Any,  # noqa: N803
        hostName: str,  # noqa: N803
        portNumber: int = 0,  # noqa: N803
        addressTypes: Any = None,  # noqa: ARG002, N803
        transportSemantics: str = "TCP",  # noqa: ARG002, N803
    ) -> Any:
        """Reports the pinned address; no address for a host that is not pinned."""
        resolution = _Resolution(hostName)
        resolutionReceiver.resolutionBegan(resolution)
        address = self._pinned.get(hostName)
        if address is not None:
            kind = IPv4Address if ipaddress.ip_address(address).version == 4 else IPv6Address
            resolutionReceiver.addressResolved(kind("TCP", address, portNumber))
        resolutionReceiver.resolutionComplete()
        return resolution


AGENT = "upshift"
"""Our product token in robots.txt."""

_AGENT_LINE = re.compile(r"\s*(?:user[- ]?agent\s*:|(?:user-?agent|user\s+agent)\s++(?![^:]*:(?:\s|$)))(.*)")
"""What Protego takes for a line with an agent, in lower case and without a comment; see `_with_few_agents`."""

MAX_BYTES = 500 * 1024
"""RFC 9309, section 2.5: at least 500 KiB must be parsed; the rest is ignored."""


def _with_few_agents(line: str) -> str:
    """A line of robots.txt in which all agents that are not us have one name.

    Protego keeps each rule once per agent of its group: 40 KiB with half of it agents took 14 s, 500 KiB all memory.
    With our name as a log has it (`upshift/1.0`), where only the token would be right, it is us.
    """
    match = _AGENT_LINE.match(line.partition("#")[0].lower())
    name = match[1].strip() if match else ""
    if not name or name == "*":
        return line
    name = name.replace("*", "")  # as Protego does
    if name.startswith(f"{AGENT}/"):
        name = AGENT
    return f"user-agent: {name if name and AGENT.startswith(name) else 'others'}"


class Robots:
    """The rules of one origin.

    Attributes:
        delay_s: Crawl-delay for our agent [s], 0 if not set.
        unreachable: the file could not be fetched, so everything is disallowed (RFC 9309, section 2.3.1.4).
    """

    def __init__(self, text: str | None) -> None:
        self.unreachable = text is None
        self._rules = Protego.parse("\n".join(map(_with_few_agents, (text or "").splitlines())))
        delay = self._rules.crawl_delay(AGENT)
        self.delay_s = float(delay) if delay is not None and delay > 0 else 0.0

    def allows(self, url: str) -> bool:
        """Whether we may fetch this URL."""
        return not self.unreachable and bool(self._rules.can_fetch(url, AGENT))


def from_reply(status: int, body: bytes, *, is_cut: bool = False) -> Robots:
    """RFC 9309, section 2.3.1: 2xx is parsed, 4xx means no rules; anything else, and a body that broke off before what
    must be parsed, disallows everything."""
    if 200 <= status < 300:
        whole = not is_cut or len(body) >= MAX_BYTES
        return Robots(body[:MAX_BYTES].decode("utf-8-sig", "replace") if whole else None)
    return Robots("" if 400 <= status < 500 else None)


class RefusedError(Exception):
    """A request that must not be made; `cause` is an outcome of the crawl's closed vocabulary."""

    def __init__(self, cause: str, detail: str) -> None:
        super().__init__(f"{cause}: {detail}")
        self.cause = cause
        self.detail = detail


def admit(blocks: BlockLists, host: str, address: str | None = None) -> None:
    """Raises RefusedError if the host opted out, or the address may not be contacted (None: not known yet)."""
    try:
        if address is not None:
            check_public(address)
        blocks.check(host, address)
    except BlockedError as error:
        raise RefusedError("blocked", error.what) from None
    except ReachError as error:
        raise RefusedError("address_refused", error.sentence()) from None


MAX_CRAWL_DELAY_S = 60.0
"""A site with a longer Crawl-delay is not crawled: its visit would take hours."""

SIZE_GETS = 24
"""Most concurrent GETs for a size: each may hold the minimum size in memory until it is stopped."""


class Throttle:
    """Rate and concurrency per server address, and Crawl-delay per host, shared by all visits."""

    def __init__(self, rate_per_s: float, concurrency: int) -> None:
        self._addresses = Lanes(rate_per_s, concurrency)
        self._hosts = Lanes(math.inf, 1, longest_gap_s=MAX_CRAWL_DELAY_S)
        self._size_gets = asyncio.Semaphore(SIZE_GETS)

    @asynccontextmanager
    async def turn(self, address: str, *, size_get: bool = False) -> AsyncIterator[None]:
        """Waits until the rate limit of this address allows a request, and holds one of its slots during the block.

        Args:
            address: of the server.
            size_get: the request is a GET for a size, limited to `SIZE_GETS` at a time.
        """
        async with AsyncExitStack() as held:

            async def then() -> None:
                if size_get:
                    await held.enter_async_context(self._size_gets)

            await held.enter_async_context(self._addresses.turn(address, then=then))
            yield

    def gap(self, host: str, delay_s: float) -> AbstractAsyncContextManager[None]:
        """Waits until `delay_s` (Crawl-delay) after the end of the last request to this host; one request at a time.

        It does not delay others: thousands of hosts may share the address.
        """
        return self._hosts.turn(host, gap_s=delay_s)
