"""CNAME chains: a second opinion on who serves a domain.

A cache inside an access provider's network is announced by that provider, while its name says `akamaiedge.net`; and a
domain may keep an old CNAME but use its own address. Neither source is always right, so both are recorded.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from core.outreach.dns import ResolveError, Resolver
from core.outreach.pace import TokenBucket

AT_ONCE = 200
"""Queries in progress."""


@dataclass(slots=True, kw_only=True)
class Chains:
    """The results of the look-ups."""

    of_domain: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Domain -> the names that it is an alias of, in order; empty without a CNAME. Failed domains are absent."""
    failed: Counter[str] = field(default_factory=Counter)
    """Cause -> domains."""


def look_up(
    domains: Sequence[str],
    *,
    nameserver: str | None,
    port: int = 53,
    rate_per_s: float = 50.0,
    timeout_s: float = 3.0,
    on_done: Callable[[int, int], None] | None = None,
) -> Chains:
    """Asks one name server for each domain's address, and keeps the CNAMEs that lead there.

    Args:
        nameserver: its address; None: this host's first.
        rate_per_s: queries per second.
        timeout_s: how long to wait for an answer; each domain is queried twice at most.
        on_done: called with (domains done, domains that failed).

    Raises:
        UsageError: the name server is not an address, or this host has none.
        ReachError: the name server is outside what may be contacted.
    """
    resolver = Resolver(nameserver, port=port, timeout_s=timeout_s)
    return asyncio.run(_look_up(list(dict.fromkeys(domains)), resolver, TokenBucket(rate_per_s, burst=1), on_done))


async def _look_up(
    domains: list[str], resolver: Resolver, pace: TokenBucket, on_done: Callable[[int, int], None] | None
) -> Chains:
    chains = Chains()
    done = 0

    async def work(left: Iterator[str]) -> None:
        nonlocal done
        for domain in left:
            await pace.turn()
            try:
                chains.of_domain[domain] = await resolver.cnames(domain)
            except ResolveError as error:
                chains.failed[error.detail] += 1
            done += 1
            if on_done is not None:
                on_done(done, chains.failed.total())

    async with resolver, asyncio.TaskGroup() as group:
        left = iter(domains)
        for _ in range(min(AT_ONCE, len(domains))):
            group.create_task(work(left))
    return chains
