"""Maps a targets file: the columns that mapping adds, CNAME chains as a second opinion, and the summary."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from cdn_mapping.mapping import Mapped, Mapper
from core.files.targets import with_columns
from core.terminal import Progress

if TYPE_CHECKING:
    import pyarrow as pa
import asyncio
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


def chains_by_dns(
    table: pa.Table, nameserver: str | None, port: int, rate_per_s: float, progress: Progress
) -> tuple[pa.Table, Counter[str]]:
    """The table with its current CNAME chains, and the causes of failed look-ups."""

    def report(done: int, failed: int) -> None:
        progress.update("asking for CNAMEs", done=done, total=len(unique), failed=failed)

    domains = table.column("domain").to_pylist()
    unique = list(dict.fromkeys(domains))
    chains = look_up(unique, nameserver=nameserver, port=port, rate_per_s=rate_per_s, on_done=report)
    values = [" ".join(chain) if (chain := chains.of_domain.get(d)) is not None else None for d in domains]
    return with_columns(table, {"cname_chain": values}), chains.failed


def map_table(table: pa.Table, mapper: Mapper) -> tuple[pa.Table, dict[str, Any]]:
    """The targets with the mapping of their addresses (the columns of `Target` from `asn` on), and a summary."""
    addresses = table.column("server_ip").to_pylist()
    distinct = list(dict.fromkeys(address for address in addresses if address is not None))
    known = dict(zip(distinct, mapper.map(distinct), strict=True))
    rows: list[Mapped | None] = [known.get(address) for address in addresses]
    no_chain = [None] * len(rows)
    chains = table.column("cname_chain").to_pylist() if "cname_chain" in table.column_names else no_chain
    opinions = [mapper.providers.by_cname(chain.split()) if chain else None for chain in chains]
    providers = [row.rule.provider if row else mapper.providers.rule(None).provider for row in rows]
    agrees = [
        None if opinion is None or row is None or row.asn is None else opinion == provider
        for opinion, provider, row in zip(opinions, providers, rows, strict=True)
    ]
    origins = [row.origin if row else None for row in rows]
    columns: dict[str, list[Any]] = {
        "asn": [row.asn if row else None for row in rows],
        "organisation": [row.organisation_name if row else None for row in rows],
        "provider": providers,
        "prefix": [str(origin.prefix) if origin else None for origin in origins],
        "rule": [row.rule.kind.value if row else None for row in rows],
        "rival_asns": [" ".join(map(str, row.rival_asns)) or None if row else None for row in rows],
        "dissent": [origin.dissent if origin else None for origin in origins],
        "cname_provider": opinions,
        "cname_agrees": agrees,
    }
    summary = {
        "targets": len(rows),
        "providers": dict(sorted(Counter(providers).items())),
        "without_address": sum(address is None for address in addresses),
        "without_prefix": sum(row is not None and row.origin is None for row in rows),
        "without_origin": sum(row is not None and row.origin is not None and row.asn is None for row in rows),
        "without_organisation": sum(row is not None and row.asn is not None and not row.organisation for row in rows),
        "rival_organisations": sum(bool(row and row.rival_asns) for row in rows),
        "cname_opinions": sum(agree is not None for agree in agrees),
        "cname_disagrees": sum(agree is False for agree in agrees),
    }
    return with_columns(table, columns), summary
