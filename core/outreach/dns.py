"""The DNS client of crawl, mapping and surveys: one name server, queried over a few shared UDP sockets.

Answers are matched by ID, name and type; truncated ones are requested again over TCP. HTTPS records (RFC 9460) are
parsed by dnspython, addresses by `core.outreach.dns_wire`, which is ten times as fast.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import dns._features

dns._features.force("doq", False)  # DNS over QUIC, for which dns.query would import aioquic: 0.15 s of each start

import dns.asyncquery
import dns.exception
import dns.message
import dns.name
import dns.rcode
import dns.rdatatype
import dns.rdtypes.svcbbase
import dns.resolver

from core.errors import PlaceError, UsageError
from core.outreach import dns_wire as wire
from core.reach import check_address, unmapped
from core.untrusted import is_address

SOCKETS = 4
"""Number of sockets. A forged answer has to guess the port of one of them, and the ID."""

TCP_AT_ONCE = 32
"""Most connections for answers that are too long for UDP; a confined process may open 64 files."""

TRIES = 2
"""Queries before a look-up fails by time-out."""

AT_ONCE = 500
"""Most queries in flight: more would overflow the name server's socket and time out."""

LONGEST_ALIAS = 8
"""Most AliasMode records that are followed (RFC 9460, section 2.4.2)."""


class Cause(StrEnum):
    """Why a name could not be resolved."""

    DNS_ERROR = "dns_error"
    """No answer, or an error: the detail has its code (SERVFAIL, REFUSED, ...), or `timeout`."""
    NO_SUCH_DOMAIN = "no_such_domain"
    """NXDOMAIN."""
    NO_ADDRESS = "no_address"
    """The name exists, but has no address of the requested family."""


class ResolveError(Exception):
    """A name that could not be resolved.

    Attributes:
        cause: of the closed vocabulary.
        detail: as text.
    """

    def __init__(self, cause: Cause, detail: str) -> None:
        super().__init__(f"{cause}: {detail}")
        self.cause = cause
        self.detail = detail


class _UnreachableError(Exception):
    """The kernel says that a query did not reach the name server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Addresses of a host; at least one."""

    addresses: tuple[str, ...]
    chain: tuple[str, ...]
    """CNAMEs from the host to the addresses, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """An HTTPS record in service mode (RFC 9460, sections 2.4.3 and 7)."""

    priority: int
    target: str
    """The host to contact, in lower case; where CNAMEs alone lead to it, the name that was asked."""
    alpn: tuple[str, ...]
    """Protocols, `http/1.1` included unless `no-default-alpn` says otherwise."""
    port: int | None
    ipv4_hints: tuple[str, ...]
    """May differ from the A records: hints are for use until those are known."""
    ipv6_hints: tuple[str, ...]


def system_nameserver() -> str:
    """The first name server of this host. Raises UsageError if there is none."""
    try:
        return str(dns.resolver.Resolver().nameservers[0])
    except (dns.resolver.NoResolverConfiguration, IndexError):
        raise UsageError("this host has no name server", where="/etc/resolv.conf", remedy="give --nameserver") from None


def check_route(nameserver: str) -> None:
    """Raises PlaceError if this host has no route to its name server.

    No packet is sent: connect(2) on a datagram socket only looks the route up.
    """
    family = socket.AF_INET6 if ":" in nameserver else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((nameserver, 53))
    except OSError as error:
        raise PlaceError(
            f"this host has no network to its name server {nameserver} ({error.strerror})",
            remedy="check the network, then run the same command again",
        ) from None


_Waiting = dict[int, tuple[bytes, asyncio.Future[bytes]]]
"""ID of a query -> the query, and the future of its answer."""


class Resolver:
    """Queries one name server. Use it as an asynchronous context manager.

    Args:
        nameserver: its address; None: this host's first.
        port: its UDP and TCP port.
        timeout_s: time-out of one query.

    Raises:
        UsageError: the name server is not an address, or this host has none.
        ReachError: it may not be contacted.
        PlaceError: this host has no network to it.
    """

    def __init__(
        self,
        nameserver: str | None = None,
        *,
        port: int = 53,
        timeout_s: float = 3.0,
    ) -> None:
        self.nameserver = nameserver or system_nameserver()
        if not is_address(self.nameserver):
            what = f"{self.nameserver!r} is not a valid address"
            raise UsageError(what, where="--nameserver", remedy="write 192.0.2.53 or 2001:db8::53")
        check_address(self.nameserver)
        check_route(self.nameserver)
        self.port = port
        self._timeout_s = timeout_s
        self._waiting: _Waiting = {}
        self._transports: list[asyncio.DatagramTransport] = []
        self._deadlines: deque[tuple[float, asyncio.Future[bytes]]] = deque()
        self._sweeper: asyncio.TimerHandle | None = None
        self._places = asyncio.Semaphore(AT_ONCE)
        self._by_tcp = asyncio.Semaphore(TCP_AT_ONCE)

    async def __aenter__(self) -> Resolver:
        loop = asyncio.get_running_loop()
        for _ in range(SOCKETS):
            transport, _ = await loop.create_datagram_endpoint(
                lambda: _Receiver(self._waiting), remote_addr=(self.nameserver, self.port)
            )
            sock: Any = transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
            self._transports.append(transport)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        for transport in self._transports:
            transport.close()
        self._transports.clear()

    async def addresses(self, host: str, *, ipv6: bool = False) -> Answer:
        """A host's addresses of one family, CNAMEs followed; an IPv4-mapped one in an AAAA record is of neither.

        Raises:
            ResolveError: it has none.
            PlaceError: the name server cannot be reached.
        """
        _, reply = await self._ask(host, wire.Type.AAAA if ipv6 else wire.Type.A)
        version = 6 if ipv6 else 4
        addresses = tuple(address for address in reply.addresses if unmapped(address).version == version)
        if not addresses:
            raise ResolveError(Cause.NO_ADDRESS, f"no {'AAAA' if ipv6 else 'A'} record")
        return Answer(addresses=addresses, chain=reply.chain)

    async def cnames(self, host: str) -> tuple[str, ...]:
        """CNAMEs of a host, in order, even if the last name has no address.

        Raises:
            ResolveError: no answer, or an error.
            PlaceError: the name server cannot be reached.
        """
        _, reply = await self._ask(host, wire.Type.A)
        return reply.chain

    async def services(self, host: str) -> tuple[Service, ...]:
        """HTTPS records of a host, best first, aliases followed; empty without any. Raises ResolveError, PlaceError."""
        name = host
        for _ in range(LONGEST_ALIAS):
            data, _ = await self._ask(name, wire.Type.HTTPS)
            services, alias = read_services(data)
            if alias is None:
                return services
            name = alias
        raise ResolveError(Cause.DNS_ERROR, f"more than {LONGEST_ALIAS} aliases")

    async def _ask(self, name: str, kind: wire.Type) -> tuple[bytes, wire.DnsReply]:
        """The reply, if it is not an error. Raises ResolveError; PlaceError, as no domain is to blame for an outage."""
        for left in reversed(range(TRIES)):
            try:
                async with self._places:
                    data = await self._ask_once(name, kind)
                if wire.is_truncated(data):
                    data = await self._ask_by_tcp(name, kind)
                reply = wire.parse(data)
            except TimeoutError:
                continue
            except _UnreachableError as error:
                if left == 0:
                    raise PlaceError(
                        f"the name server {self.nameserver} cannot be reached ({error})",
                        remedy="check the network, then run the same command again",
                    ) from None
                await asyncio.sleep(self._timeout_s)  # it may be restarting
                continue
            except (wire.WireError, dns.exception.DNSException, OSError, EOFError, UnicodeError) as error:
                raise ResolveError(Cause.DNS_ERROR, str(error) or type(error).__name__) from None
            if reply.rcode == wire.NXDOMAIN:
                raise ResolveError(Cause.NO_SUCH_DOMAIN, "NXDOMAIN")
            if reply.rcode != wire.NOERROR:
                raise ResolveError(Cause.DNS_ERROR, dns.rcode.to_text(dns.rcode.Rcode.make(reply.rcode)))
            return data, reply
        raise ResolveError(Cause.DNS_ERROR, "timeout")

    async def _ask_once(self, name: str, kind: wire.Type) -> bytes:
        number = int.from_bytes(os.urandom(2), "big")
        while number in self._waiting:
            number = int.from_bytes(os.urandom(2), "big")
        question = wire.query(number, name, kind)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bytes] = loop.create_future()
        self._deadlines.append((loop.time() + self._timeout_s, future))
        if self._sweeper is None:
            self._sweeper = loop.call_later(self._timeout_s, self._sweep)
        self._waiting[number] = (question, future)
        try:
            self._transports[number % SOCKETS].sendto(question)
            return await future
        finally:
            del self._waiting[number]

    def _sweep(self) -> None:
        """Ends queries that timed out. One timer for all: deadlines are in the order of the queries."""
        loop = asyncio.get_running_loop()
        while self._deadlines and (self._deadlines[0][1].done() or self._deadlines[0][0] <= loop.time()):
            _, future = self._deadlines.popleft()
            if not future.done():
                future.set_exception(TimeoutError())
        self._sweeper = loop.call_at(self._deadlines[0][0], self._sweep) if self._deadlines else None

    async def _ask_by_tcp(self, name: str, kind: wire.Type) -> bytes:
        query = dns.message.make_query(name, dns.rdatatype.RdataType.make(int(kind)))
        try:
            async with self._by_tcp:
                message = await dns.asyncquery.tcp(query, self.nameserver, self._timeout_s, self.port)
        except dns.exception.Timeout:
            raise TimeoutError from None
        return message.to_wire(max_size=65_535)


class _Receiver(asyncio.DatagramProtocol):
    """Passes each reply to the query that waits for it; others are dropped."""

    def __init__(self, waiting: _Waiting) -> None:
        self._waiting = waiting

    def datagram_received(self, data: bytes, _: Any) -> None:
        waiting = self._waiting.get(int.from_bytes(data[:2], "big"))
        if waiting is None:
            return
        question, future = waiting
        if wire.answers(data, question) and not future.done():
            future.set_result(data)

    def error_received(self, exc: Exception) -> None:
        """The name server's port is closed, or its network unreachable: pending queries end at once."""
        for _, future in list(self._waiting.values()):
            if not future.done():
                future.set_exception(_UnreachableError(str(exc)))


def read_services(data: bytes) -> tuple[tuple[Service, ...], str | None]:
    """Services in a reply to an HTTPS query, best first, and the name to query next if it is an alias.

    Records with unknown mandatory keys are ignored (RFC 9460, section 8). Raises ResolveError.
    """
    try:
        message: Any = dns.message.from_wire(data)
        resolved = message.resolve_chaining()
    except dns.exception.DNSException as error:
        raise ResolveError(Cause.DNS_ERROR, f"the HTTPS record cannot be parsed ({error})") from None
    services: list[Service] = []
    for record in resolved.answer or ():
        # "." is the owner (section 2.5.2). CNAMEs of the name that was asked lead there, so it is its own host.
        is_own = record.target in (dns.name.root, resolved.canonical_name)
        target = message.question[0].name if is_own else record.target
        name = target.to_text(omit_final_dot=True).lower()
        if record.priority == 0:
            # An alias to "." means that the service is not available (section 2.5.1).
            return (), (None if record.target == dns.name.root else name)
        service = _service(record, name)
        if service is not None:
            services.append(service)
    return tuple(sorted(services, key=lambda service: service.priority)), None


_KNOWN = {1, 2, 3, 4, 5, 6}
"""alpn, no-default-alpn, port, ipv4hint, ech, ipv6hint (RFC 9460, section 14.3.2; RFC 9848 for ech)."""


def _service(record: Any, target: str) -> Service | None:
    keys = dns.rdtypes.svcbbase.ParamKey
    params = record.params
    mandatory = params.get(keys.MANDATORY)
    if mandatory is not None and any(int(key) not in _KNOWN for key in mandatory.keys):
        return None
    alpn = params.get(keys.ALPN)
    protocols = tuple(name.decode("latin-1") for name in alpn.ids) if alpn is not None else ()
    if keys.NO_DEFAULT_ALPN not in params and "http/1.1" not in protocols:
        protocols += ("http/1.1",)
    port, ipv4, ipv6 = (params.get(key) for key in (keys.PORT, keys.IPV4HINT, keys.IPV6HINT))
    return Service(
        priority=record.priority,
        target=target,
        alpn=protocols,
        port=None if port is None else port.port,
        ipv4_hints=tuple(ipv4.addresses) if ipv4 is not None else (),
        ipv6_hints=tuple(ipv6.addresses) if ipv6 is not None else (),
    )
