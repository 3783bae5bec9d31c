"""Names to addresses: asked once per domain, pinned for its visit, and never asked again by the HTTP client.

`Pins` is also Scrapy's DNS resolver: a host that no visit has pinned cannot be connected to at all, so that neither a
redirect nor a changed DNS answer leads the crawl to an address that was not checked.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from dataclasses import dataclass
from typing import Any

import dns.asyncquery
import dns.exception
import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.resolver
import tldextract
from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.interfaces import IHostnameResolver, IHostResolution
from zope.interface import implementer  # type: ignore[import-untyped]

from crawler.manners import RefusedError
from upshift.errors import UsageError
from upshift.reach import check_address

_extract = tldextract.TLDExtract(suffix_list_urls=(), cache_dir=None, include_psl_private_domains=True)
"""With the public suffix list that comes with the package: fetching a newer one would be traffic nobody asked for.

Private suffixes count (`user.github.io` is a domain of its own), as different people own the names below them.
"""


def registered_domain(host: str) -> str:
    """The part of a name that somebody registered; of a name without a public suffix (the lab's), two labels."""
    found = _extract(host)
    if found.suffix and found.domain:
        return f"{found.domain}.{found.suffix}"
    return ".".join(host.split(".")[-2:])


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What DNS said of a host."""

    addresses: tuple[str, ...]
    chain: tuple[str, ...]
    """CNAMEs from the host to the addresses, in order."""


class Resolver:
    """Asks one name server for A records, twice at most.

    Args:
        nameserver: its address; None for the first of this host.
    """

    def __init__(self, nameserver: str | None, *, port: int = 53, timeout_s: float = 3.0) -> None:
        if nameserver is None:
            try:
                nameserver = str(dns.resolver.Resolver().nameservers[0])
            except (dns.resolver.NoResolverConfiguration, IndexError):
                raise UsageError(
                    "this host has no name server", where="/etc/resolv.conf", remedy="give --nameserver"
                ) from None
        check_address(nameserver)
        self._nameserver = nameserver
        self._port = port
        self._timeout_s = timeout_s

    async def ask(self, host: str) -> Answer:
        """The host's addresses. Raises RefusedError with the cause `dns_error`."""
        for last in (False, True):
            try:
                query = dns.message.make_query(host, "A")
                message, _ = await dns.asyncquery.udp_with_fallback(
                    query, self._nameserver, self._timeout_s, self._port
                )
            except dns.exception.Timeout:
                if last:
                    raise RefusedError("dns_error", "timeout") from None
                continue
            except (dns.exception.DNSException, OSError, UnicodeError) as error:
                raise RefusedError("dns_error", type(error).__name__) from None
            if message.rcode() != dns.rcode.NOERROR:
                raise RefusedError("dns_error", dns.rcode.to_text(message.rcode()))
            return _answer(host, message)
        raise AssertionError("unreachable")


def _answer(host: str, message: dns.message.Message) -> Answer:
    cnames: dict[str, str] = {}
    addresses: dict[str, list[str]] = {}
    for rrset in message.answer:
        owner = rrset.name.to_text(omit_final_dot=True).lower()
        if rrset.rdtype == dns.rdatatype.CNAME:
            cnames[owner] = rrset[0].target.to_text(omit_final_dot=True).lower()
        elif rrset.rdtype == dns.rdatatype.A:
            addresses[owner] = [record.address for record in rrset]
    chain: list[str] = []
    name = host.lower()
    while name in cnames and len(chain) < 16:
        name = cnames[name]
        chain.append(name)
    found = addresses.get(name, [])
    if not found:
        raise RefusedError("dns_error", "no address")
    return Answer(addresses=tuple(found), chain=tuple(chain))


@implementer(IHostResolution)
class _Resolution:
    def __init__(self, name: str) -> None:
        self.name = name

    def cancel(self) -> None:
        """Nothing is under way."""


@implementer(IHostnameResolver)
class Pins:
    """Host -> address for the visits under way; Scrapy's `DNS_RESOLVER`."""

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
        """Pins a host for one more visit; where another visit holds it, that visit's address stays and is returned."""
        self._users[host] += 1
        return self._pinned.setdefault(host, address)

    def release(self, host: str) -> None:
        """Ends one visit's hold."""
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
        """Tells the pinned address; no address at all for a host that is not pinned."""
        resolution = _Resolution(hostName)
        resolutionReceiver.resolutionBegan(resolution)
        address = self._pinned.get(hostName)
        if address is not None:
            kind = IPv4Address if ipaddress.ip_address(address).version == 4 else IPv6Address
            resolutionReceiver.addressResolved(kind("TCP", address, portNumber))
        resolutionReceiver.resolutionComplete()
        return resolution
