"""CNAME chains: a second opinion on who serves a domain.

A cache inside an access provider's network is announced by that provider, while its name says `akamaiedge.net`; and a
domain may keep an old CNAME and answer from its own address. Neither is right always, so both are recorded.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import dns.asyncquery
import dns.exception
import dns.message
import dns.name
import dns.rcode
import dns.rdatatype
import dns.resolver

from upshift.errors import UsageError
from upshift.reach import check_address

MAX_CHAIN = 16
"""Longest chain that is followed; resolvers give up at about the same length."""


@dataclass(slots=True, kw_only=True)
class Chains:
    """What the look-ups gave."""

    of_domain: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Domain -> names after it, in order; empty where it has no CNAME. Domains that failed are absent."""
    failed: Counter[str] = field(default_factory=Counter)
    """Cause -> domains."""


def system_nameserver() -> str:
    """The first name server of this host. Raises UsageError where none is set."""
    try:
        return str(dns.resolver.Resolver().nameservers[0])
    except (dns.resolver.NoResolverConfiguration, IndexError):
        raise UsageError("this host has no name server", where="/etc/resolv.conf", remedy="give --nameserver") from None


def chain_of(domain: str, message: dns.message.Message) -> tuple[str, ...]:
    """The CNAMEs of an answer, followed from the domain; RRsets may stand in any order (RFC 1034, section 3.6.2)."""
    targets = {rrset.name: rrset[0].target for rrset in message.answer if rrset.rdtype == dns.rdatatype.CNAME}
    name = dns.name.from_text(domain)
    chain: list[str] = []
    while name in targets and len(chain) < MAX_CHAIN:
        name = targets[name]
        chain.append(name.to_text(omit_final_dot=True).lower())
    return tuple(chain)


def look_up(
    domains: Sequence[str],
    *,
    nameserver: str,
    port: int = 53,
    rate_per_s: float = 50.0,
    timeout_s: float = 3.0,
    tries: int = 2,
    on_done: Callable[[int, int], None] | None = None,
) -> Chains:
    """Asks one name server for each domain's address, and keeps the CNAMEs that lead there.

    Args:
        rate_per_s: questions per second.
        timeout_s: how long to wait for an answer; each domain is asked `tries` times.
        on_done: called with (domains done, domains that failed).

    Raises:
        ReachError: the name server is outside what may be contacted.
    """
    check_address(nameserver)
    return asyncio.run(_look_up(list(dict.fromkeys(domains)), nameserver, port, rate_per_s, timeout_s, tries, on_done))


async def _look_up(
    domains: list[str],
    nameserver: str,
    port: int,
    rate_per_s: float,
    timeout_s: float,
    tries: int,
    on_done: Callable[[int, int], None] | None,
) -> Chains:
    chains = Chains()
    slots = asyncio.Semaphore(max(1, min(200, int(rate_per_s * timeout_s))))
    done = 0

    async def one(domain: str) -> None:
        nonlocal done
        try:
            for left in reversed(range(tries)):
                try:
                    query = dns.message.make_query(domain, "A")
                    answer, _ = await dns.asyncquery.udp_with_fallback(query, nameserver, timeout_s, port)
                    if answer.rcode() == dns.rcode.NOERROR:
                        chains.of_domain[domain] = chain_of(domain, answer)
                    else:
                        chains.failed[dns.rcode.to_text(answer.rcode())] += 1
                    return
                except dns.exception.Timeout:
                    if not left:
                        chains.failed["timeout"] += 1
                except (dns.exception.DNSException, OSError, UnicodeError) as error:
                    chains.failed[type(error).__name__] += 1
                    return
        finally:
            slots.release()
            done += 1
            if on_done is not None:
                on_done(done, sum(chains.failed.values()))

    async with asyncio.TaskGroup() as group:
        loop = asyncio.get_running_loop()
        start = loop.time()
        for number, domain in enumerate(domains):
            await slots.acquire()
            await asyncio.sleep(max(0.0, start + number / rate_per_s - loop.time()))
            group.create_task(one(domain))
    return chains
