"""How fast a survey may go: a rate for all together, and places and a rate for each server address.

Clock and sleep are handed in, so that tests need no time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

Clock = Callable[[], float]
Sleep = Callable[[float], Awaitable[None]]

LANES_KEPT = 4_096
"""Addresses remembered before those that nobody uses are forgotten: a list has a million addresses."""


class TokenBucket:
    """At most `rate_per_s` turns a second in the long run, and at most `burst` at once.

    It is the virtual scheduling form of the generic cell rate algorithm (ITU-T I.371, annex A): one number, the time at
    which the next turn would be due at the steady rate.

    Args:
        rate_per_s: turns per second, above 0.
        burst: turns that may come at once after a rest; default: those of 10 ms, at least one.
    """

    def __init__(
        self,
        rate_per_s: float,
        *,
        burst: float | None = None,
        clock: Clock = time.monotonic,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._interval_s = 1 / rate_per_s
        self._slack_s = (max(1.0, rate_per_s / 100) if burst is None else burst) * self._interval_s
        self._clock = clock
        self._sleep = sleep
        self._due = clock()

    def reserve(self) -> float:
        """Takes a turn; returns how long to wait for it [s]."""
        now = self._clock()
        self._due = max(self._due, now - self._slack_s + self._interval_s)
        wait = self._due - now
        self._due += self._interval_s
        return max(0.0, wait)

    async def turn(self) -> None:
        """Waits for the next turn; turns are given in the order in which they are asked for."""
        wait = self.reserve()
        if wait > 0:
            await self._sleep(wait)


@dataclass(slots=True)
class _Lane:
    """One address: its places, its rate, and how many hold or want it."""

    places: asyncio.Semaphore
    bucket: TokenBucket
    users: int = 0
    last_used: float = 0.0


class AddressPace:
    """Rate and concurrency per server address, shared by all domains that the address serves.

    Args:
        rate_per_s: handshakes per second and address.
        at_once: handshakes under way per address.
    """

    def __init__(
        self, rate_per_s: float, at_once: int, *, clock: Clock = time.monotonic, sleep: Sleep = asyncio.sleep
    ) -> None:
        self._rate_per_s = rate_per_s
        self._at_once = at_once
        self._clock = clock
        self._sleep = sleep
        self._lanes: dict[str, _Lane] = {}

    @asynccontextmanager
    async def turn(self, address: str) -> AsyncIterator[None]:
        """Waits for this address's turn, and holds one of its places for the time of the block."""
        lane = self._lanes.get(address)
        if lane is None:
            bucket = TokenBucket(self._rate_per_s, burst=1.0, clock=self._clock, sleep=self._sleep)
            lane = self._lanes[address] = _Lane(asyncio.Semaphore(self._at_once), bucket)
        lane.users += 1
        try:
            async with lane.places:
                await lane.bucket.turn()
                yield
        finally:
            lane.users -= 1
            lane.last_used = self._clock()
            self._forget()

    def _forget(self) -> None:
        if len(self._lanes) < LANES_KEPT:
            return
        stale = self._clock() - 1 / self._rate_per_s
        self._lanes = {a: lane for a, lane in self._lanes.items() if lane.users or lane.last_used > stale}
