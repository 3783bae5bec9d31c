"""Rate limits of crawl and surveys: a total rate, and concurrency, rate and gaps for each address or host.

Clock and sleep of a bucket are parameters, so that tests do not wait.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

Clock = Callable[[], float]
Sleep = Callable[[float], Awaitable[None]]

LANES_KEPT = 4_096
"""Lanes kept before unused ones are dropped: a list has a million addresses."""


class TokenBucket:
    """Limits to `rate_per_s` turns per second plus `burst`, in every period of time.

    It is the virtual scheduling form of the generic cell rate algorithm (ITU-T I.371, annex A): one number, the time at
    which the next turn would be due at the steady rate. It is read when a turn is granted, so turns that fell due while
    the process could not run do not come together afterwards.

    Args:
        rate_per_s: turns per second, above 0.
        burst: most turns at once after an idle time; default: those of 10 ms, at least one.
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
        self._first_in_line = asyncio.Lock()

    async def turn(self, then: Callable[[], Awaitable[None]] | None = None) -> None:
        """Waits for the next turn; turns are granted in the order of the calls.

        Args:
            then: awaited when the turn is due, for another limit. The turn is taken, and the next one counted, from its
                end: turns that were taken before would all come together when the other limit lets them pass.
        """
        async with self._first_in_line:
            while (wait := self._due - self._clock()) > 0:
                await self._sleep(wait)
            if then is not None:
                await then()
            self._due = max(self._due, self._clock() - self._slack_s + self._interval_s) + self._interval_s


@dataclass(slots=True)
class _Lane:
    """One name: its concurrency limit, its rate limit, and how many hold it or wait for it."""

    places: asyncio.Semaphore
    bucket: TokenBucket
    users: int = 0
    last_used: float = -math.inf


class Lanes:
    """Rate and concurrency per name (a server's address, a host), shared by all who use that name.

    Args:
        rate_per_s: turns per second and name; may be infinite.
        at_once: most concurrent turns per name.
        longest_gap_s: the largest gap in use.
    """

    def __init__(
        self,
        rate_per_s: float,
        at_once: int,
        *,
        longest_gap_s: float = 0.0,
    ) -> None:
        self._rate_per_s = rate_per_s
        self._at_once = at_once
        self._kept_s = max(1 / rate_per_s, longest_gap_s)
        self._lanes: dict[str, _Lane] = {}
        self._looked_through_at = -math.inf

    @asynccontextmanager
    async def turn(
        self, name: str, *, gap_s: float = 0.0, then: Callable[[], Awaitable[None]] | None = None
    ) -> AsyncIterator[None]:
        """Waits until this name's limits allow a turn, and holds it during the block.

        Args:
            name: address or host.
            gap_s: least time since the end of the last block [s].
            then: awaited when they do, for limits of all names together; see `TokenBucket.turn`.
        """
        lane = self._lanes.get(name)
        if lane is None:
            bucket = TokenBucket(self._rate_per_s, burst=1.0)
            lane = self._lanes[name] = _Lane(asyncio.Semaphore(self._at_once), bucket)
        lane.users += 1
        try:
            async with lane.places:
                rest_s = lane.last_used + gap_s - time.monotonic()
                if rest_s > 0:
                    await asyncio.sleep(rest_s)
                await lane.bucket.turn(then)
                yield
        finally:
            lane.users -= 1
            lane.last_used = time.monotonic()
            self._forget()

    def _forget(self) -> None:
        """Drops expired lanes; searches for them only when there can be new ones."""
        stale = time.monotonic() - self._kept_s
        if len(self._lanes) < LANES_KEPT or self._looked_through_at > stale:
            return
        self._looked_through_at = time.monotonic()
        self._lanes = {name: lane for name, lane in self._lanes.items() if lane.users or lane.last_used > stale}
