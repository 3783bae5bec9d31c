"""What a crawl may contact, and how fast: address policy, block lists, opt-out, pace per address.

`Guard.admit` is the one gate: `crawler.gate` calls it for every request, whatever asked for it.
"""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections.abc import Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from upshift.errors import ReachError, UsageError
from upshift.reach import IPNetwork, check_address, environment_prefixes, is_allowed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

REREAD_S = 5.0
"""How often block lists are looked at for a change [s]."""


class RefusedError(Exception):
    """A request that must not be made; `cause` is an outcome of the crawl's closed vocabulary."""

    def __init__(self, cause: str, detail: str) -> None:
        super().__init__(f"{cause}: {detail}")
        self.cause = cause
        self.detail = detail


def check_public(address: str) -> None:
    """Raises RefusedError for an address that no public web server has.

    Private, loopback, link-local, shared, reserved, documentation and multicast addresses (IANA's special-purpose
    registries, RFC 6890) are refused, unless the environment says that the lab is where we are: then its prefixes are
    all that may be contacted.
    """
    ip = ipaddress.ip_address(address)
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped:
        ip = ip.ipv4_mapped
    if environment_prefixes() is None and (not ip.is_global or ip.is_multicast):
        raise RefusedError("address_refused", f"{address} is no public address")
    try:
        check_address(address)
    except ReachError as error:
        raise RefusedError("address_refused", error.sentence()) from None


@dataclass(frozen=True, slots=True)
class Blocked:
    """Domains (with all names below them) and prefixes that are left alone."""

    domains: frozenset[str] = frozenset()
    prefixes: tuple[IPNetwork, ...] = ()

    def domain(self, host: str) -> bool:
        """Whether the host or a name above it is listed."""
        labels = host.split(".")
        return any(".".join(labels[start:]) in self.domains for start in range(len(labels)))

    def address(self, address: str) -> bool:
        return is_allowed(address, self.prefixes)


def read_blocked(path: Path) -> Blocked:
    """A block list: one domain or prefix a line, `#` begins a comment. Raises UsageError with the line."""
    from crawler.lists import domain_of

    domains, prefixes = set(), []
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except FileNotFoundError:
        raise UsageError("there is no such file", where=str(path), remedy="check the path") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"it cannot be read ({error})", where=str(path), remedy="write it as UTF-8 text") from None
    for number, line in enumerate(lines, 1):
        entry = line.partition("#")[0].strip()
        if not entry:
            continue
        try:
            prefixes.append(ipaddress.ip_network(entry))
            continue
        except ValueError:
            pass
        try:
            domains.add(domain_of(entry.removeprefix("*.")))
        except ValueError:
            raise UsageError(
                f"line {number}: {entry[:60]!r} is neither a domain nor a prefix",
                where=str(path),
                remedy="write www.example.org or 192.0.2.0/24, one a line",
            ) from None
    return Blocked(frozenset(domains), tuple(prefixes))


class BlockLists:
    """Several block lists, read again while the crawl runs: whoever opts out is left alone within seconds.

    Attributes:
        complaints: faults of lists that became unreadable later; the last readable state goes on being honoured.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = list(paths)
        self._state = {path: (self._stamp(path), read_blocked(path)) for path in self._paths}
        self._looked = time.monotonic()
        self.complaints: list[str] = []

    @staticmethod
    def _stamp(path: Path) -> tuple[int, int]:
        try:
            status = path.stat()
        except OSError:
            return (0, 0)
        return (status.st_mtime_ns, status.st_size)

    def check(self, host: str, address: str | None) -> None:
        """Raises RefusedError where host or address is listed."""
        self._refresh()
        for path, (_, blocked) in self._state.items():
            if blocked.domain(host):
                raise RefusedError("blocked", f"{host} is in {path.name}")
            if address is not None and blocked.address(address):
                raise RefusedError("blocked", f"{address} is in {path.name}")

    def _refresh(self) -> None:
        now = time.monotonic()
        if now - self._looked < REREAD_S:
            return
        self._looked = now
        for path, (stamp, _) in list(self._state.items()):
            fresh = self._stamp(path)
            if fresh == stamp:
                continue
            try:
                self._state[path] = (fresh, read_blocked(path))
            except UsageError as error:
                self.complaints.append(error.sentence())
                self._state[path] = (fresh, self._state[path][1])


@dataclass(slots=True)
class _Lane:
    """One address: who may go next, and when."""

    slots: asyncio.Semaphore
    next_at: float = 0.0
    users: int = 0


@dataclass(slots=True)
class Pace:
    """Rate and concurrency per server address, shared by all domains that the address serves."""

    rate_per_s: float
    concurrency: int
    _lanes: dict[str, _Lane] = field(default_factory=dict)

    @asynccontextmanager
    async def turn(self, address: str, *, interval_s: float = 0.0) -> AsyncIterator[None]:
        """Waits for this address's turn, and holds one of its places for the time of the block.

        Args:
            interval_s: least time between two requests that this caller asks for (Crawl-delay); the rate's own interval
                holds anyway.
        """
        lane = self._lanes.get(address)
        if lane is None:
            lane = self._lanes[address] = _Lane(asyncio.Semaphore(self.concurrency))
        lane.users += 1
        try:
            async with lane.slots:
                loop = asyncio.get_running_loop()
                start = max(loop.time(), lane.next_at)
                lane.next_at = start + max(interval_s, 1 / self.rate_per_s)
                await asyncio.sleep(start - loop.time())
                yield
        finally:
            lane.users -= 1
            self._forget()

    def _forget(self) -> None:
        """Lanes that nobody uses and whose time has come are dropped: a list has a million addresses."""
        if len(self._lanes) < 4_096:
            return
        now = asyncio.get_running_loop().time()
        for address in [a for a, lane in self._lanes.items() if not lane.users and lane.next_at <= now]:
            del self._lanes[address]
