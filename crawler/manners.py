"""What a crawl may contact, and how fast: address policy, block lists, opt-out, pace per address.

`admit` is asked by `crawler.gate` for every request, whatever asked for it.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from upshift.errors import BlockedError, ReachError
from upshift.reach import check_public

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from upshift.blocks import BlockLists


class RefusedError(Exception):
    """A request that must not be made; `cause` is an outcome of the crawl's closed vocabulary."""

    def __init__(self, cause: str, detail: str) -> None:
        super().__init__(f"{cause}: {detail}")
        self.cause = cause
        self.detail = detail


def admit(blocks: BlockLists, host: str, address: str | None = None) -> None:
    """Raises RefusedError where the host opted out, or the address may not be contacted (None: not known yet)."""
    try:
        if address is not None:
            check_public(address)
        blocks.check(host, address)
    except BlockedError as error:
        raise RefusedError("blocked", error.what) from None
    except ReachError as error:
        raise RefusedError("address_refused", error.sentence()) from None


MAX_CRAWL_DELAY_S = 60.0
"""A site that asks for more is not crawled at all: its visit would take hours."""

SIZE_GETS = 24
"""GETs for a size at the same time in all: each may hold the minimum size in memory until it is stopped."""

LANES_REMEMBERED = 4_096


@dataclass(slots=True)
class _Lane:
    """One address or host: who may go next, and when."""

    slots: asyncio.Semaphore
    next_at: float = 0.0
    users: int = 0


class _Lanes:
    """Lanes by name, with `places` in each; those that are long out of use are dropped: a list has a million names."""

    def __init__(self, places: int) -> None:
        self._places = places
        self._lanes: dict[str, _Lane] = {}
        self._room = LANES_REMEMBERED

    @asynccontextmanager
    async def place(self, name: str) -> AsyncIterator[_Lane]:
        """Waits for a place in the lane, and holds it for the time of the block."""
        lane = self._lanes.get(name)
        if lane is None:
            self._make_room()
            lane = self._lanes[name] = _Lane(asyncio.Semaphore(self._places))
        lane.users += 1
        try:
            async with lane.slots:
                yield lane
        finally:
            lane.users -= 1

    def _make_room(self) -> None:
        if len(self._lanes) < self._room:
            return
        past = asyncio.get_running_loop().time() - MAX_CRAWL_DELAY_S
        self._lanes = {name: lane for name, lane in self._lanes.items() if lane.users or lane.next_at > past}
        self._room = max(LANES_REMEMBERED, 2 * len(self._lanes))  # so that looking through them stays rare


class Pace:
    """Rate and concurrency per server address, and Crawl-delay per host, shared by all visits."""

    def __init__(self, rate_per_s: float, concurrency: int) -> None:
        self._interval_s = 1 / rate_per_s
        self._addresses = _Lanes(concurrency)
        self._hosts = _Lanes(1)
        self._size_gets = asyncio.Semaphore(SIZE_GETS)

    @asynccontextmanager
    async def turn(self, address: str, *, size_get: bool = False) -> AsyncIterator[None]:
        """Waits for this address's turn, and holds one of its places for the time of the block.

        Args:
            address: of the server.
            size_get: the request is one of those of which there are `SIZE_GETS` at most.
        """
        async with self._addresses.place(address) as lane:
            now = asyncio.get_running_loop().time()
            start = max(now, lane.next_at)
            lane.next_at = start + self._interval_s
            await asyncio.sleep(start - now)
            async with self._size_gets if size_get else nullcontext():
                yield

    @asynccontextmanager
    async def gap(self, host: str, delay_s: float) -> AsyncIterator[None]:
        """Waits until `delay_s` (Crawl-delay) after the end of the last request to this host; one request at a time.

        It holds up nobody else: thousands of hosts may share the address.
        """
        async with self._hosts.place(host) as lane:
            loop = asyncio.get_running_loop()
            await asyncio.sleep(lane.next_at + delay_s - loop.time())
            try:
                yield
            finally:
                lane.next_at = loop.time()
