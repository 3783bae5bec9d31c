"""What a crawl may contact, and how fast: address policy, block lists, opt-out, pace per address.

`admit` is asked by `crawler.gate` for every request, whatever asked for it.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
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
