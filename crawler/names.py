"""Names pinned to addresses: a visit resolves each host once, and the HTTP client never resolves it again.

`Pins` is also Scrapy's DNS resolver: a host that is not pinned by a visit does not resolve, so neither a redirect nor
a changed DNS answer can lead the crawl to an address that was not checked.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from typing import Any

from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.interfaces import IHostnameResolver, IHostResolution
from zope.interface import implementer  # type: ignore[import-untyped]


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
