"""How visits reach servers: DNS, block lists, address policy, and rate limits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import lru_cache

from core.errors import BlockedError, ReachError
from core.outreach.blocks import BlockLists
from core.outreach.dns import Answer, ResolveError, Resolver
from core.outreach.pace import Lanes, TokenBucket
from core.reach import check_public
from core.untrusted import is_address
from survey.lookups import Lookups
from survey.subjects import Subject

BLOCKED, ADDRESS_REFUSED, NO_ADDRESS = "blocked", "address_refused", "no_address"


class NotAskedError(Exception):
    """No packet was sent to the server.

    Attributes:
        failure: blocked, address_refused, dns_error, no_such_domain, no_address, or a word of the survey.
        detail: as text.
    """

    def __init__(self, failure: str, detail: str) -> None:
        super().__init__(f"{failure}: {detail}")
        self.failure = failure
        self.detail = detail


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Shared by all visits of a run."""

    resolver: Resolver | Lookups
    """A survey that starts programs has its names looked up by another process."""
    blocks: BlockLists
    names: TokenBucket
    """Rate limit of DNS look-ups."""
    rate: TokenBucket
    """Rate limit of handshakes and probes."""
    lanes: Lanes
    """Rate and concurrency limits per server address."""
    places: asyncio.Semaphore
    """Limits the servers contacted at the same time."""
    ipv6: bool = False
    ready: Callable[[], Awaitable[None]] | None = None
    """Awaited before a turn is granted: a prober that holds requests back. Block lists are looked at after it."""

    def admit(self, domain: str, address: str | None = None) -> None:
        """Raises NotAskedError if the domain or the address must not be contacted."""
        try:
            self.blocks.check(domain, address)
        except BlockedError as error:
            raise NotAskedError(BLOCKED, error.what) from None
        refusal = None if address is None else _refusal(address)
        if refusal is not None:
            raise NotAskedError(ADDRESS_REFUSED, refusal)

    async def address(self, subject: Subject) -> tuple[str, tuple[str, ...]]:
        """The address of its host to contact, as `choose` says, and CNAMEs. Raises NotAskedError if there is none."""
        for name in subject.names:
            self.admit(name, subject.host if is_address(subject.host) else None)
        if is_address(subject.host):
            return subject.host, ()
        await self.names.turn()
        try:
            answer = await self.resolver.addresses(subject.host, ipv6=self.ipv6)
        except ResolveError as error:
            raise NotAskedError(str(error.cause), error.detail) from None
        return self.choose(answer, subject.server_ip, *subject.names), answer.chain

    def choose(self, answer: Answer, crawled: str | None, *names: str) -> str:
        """The address to contact: of those that may be, the crawl's if DNS still returns it, else the first one.

        Raises NotAskedError with the first refusal if none may.
        """
        refused: NotAskedError | None = None
        for address in sorted(answer.addresses, key=lambda address: address != crawled):
            try:
                for name in names:
                    self.admit(name, address)
            except NotAskedError as error:
                refused = refused or error
            else:
                return address
        raise refused or NotAskedError(NO_ADDRESS, "no address")

    @asynccontextmanager
    async def turn(
        self, *names: str, address: str, place: AbstractAsyncContextManager[object] | None = None
    ) -> AsyncIterator[None]:
        """Waits until the address may be contacted, and holds its slot during the block.

        Args:
            names: the domain that is surveyed, and other hosts of it that are contacted: where a redirect leads.
            address: their address.
            place: held instead of one of `places`.

        Raises:
            NotAskedError: the owner of one opted out, perhaps while this waited.
        """
        async with AsyncExitStack() as held:

            async def then() -> None:
                await held.enter_async_context(self.places if place is None else place)
                await self.rate.turn(self.ready)

            await held.enter_async_context(self.lanes.turn(address, then=then))
            for name in names:
                self.admit(name, address)
            yield


@lru_cache(maxsize=1 << 12)
def _refusal(address: str) -> str | None:
    """Why an address may not be contacted, None if it may.

    Cached, as a CDN's address serves thousands of domains; a scan of a million addresses must not fill the memory.
    """
    try:
        check_public(address)
    except ReachError as error:
        return error.what
    return None
