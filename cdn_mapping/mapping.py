"""Address -> prefix, origin AS, organisation, provider, and the reason; and a targets file with the columns that
mapping adds, CNAME chains as a second opinion, and a summary."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from cdn_mapping.as2org import Organisation, Organisations
from cdn_mapping.provider_rules import Providers, Rule
from cdn_mapping.table import Origin, PrefixTable
from core.domain import Provider
from core.files.schemas import kind_in
from core.files.targets import SURVEYS, with_columns
from core.outreach.dns import ResolveError, Resolver
from core.outreach.pace import TokenBucket
from core.system import signals
from core.terminal import Progress
from core.untrusted import is_address

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapped:
    """What is known of one address."""

    address: str
    origin: Origin | None
    """None if no prefix holds the address."""
    organisation: Organisation | None
    rule: Rule
    rival_asns: tuple[int, ...]
    """Other origins of the prefix that are known to belong to another organisation, which is not the same provider's: a
    real MOAS, not a company's second AS."""

    @property
    def asn(self) -> int | None:
        return self.origin.asn if self.origin else None

    @property
    def organisation_name(self) -> str | None:
        """The name, or the id if the organisation has no name."""
        return (self.organisation.name or self.organisation.org_id) if self.organisation else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapper:
    """The three sources together."""

    table: PrefixTable
    organisations: Organisations
    providers: Providers

    def map(self, addresses: Sequence[str]) -> list[Mapped]:
        """Looks up many addresses at once. The addresses must be valid."""
        origins = self.table.find_all(addresses)
        return [self._judge(address, origin) for address, origin in zip(addresses, origins, strict=True)]

    def _judge(self, address: str, origin: Origin | None) -> Mapped:
        asn = origin.asn if origin else None
        organisation, rule = self.organisations.get(asn), self.providers.rule(asn)
        rivals = []
        for other in origin.votes if origin else ():
            holder = self.organisations.get(other)
            is_other = organisation and holder and holder.org_id != organisation.org_id
            if is_other and not rule.provider == self.providers.rule(other).provider != Provider.OTHER:
                rivals.append(other)
        return Mapped(
            address=address,
            origin=origin,
            organisation=organisation,
            rule=rule,
            rival_asns=tuple(rivals),
        )


def explain(mapped: Mapped) -> dict[str, object]:
    """Everything known about one address as plain data, for `upshift map explain --json`."""
    origin = mapped.origin
    return {
        "address": mapped.address,
        "prefix": origin.prefix if origin else None,
        "asn": mapped.asn,
        "organisation": mapped.organisation_name,
        "organisation_id": mapped.organisation.org_id if mapped.organisation else None,
        "country": mapped.organisation.country if mapped.organisation else None,
        "provider": mapped.rule.provider,
        "rule": mapped.rule.kind.value,
        "rule_text": mapped.rule.text,
        "votes": {str(asn): votes for asn, votes in origin.votes.items()} if origin else {},
        "as_set_votes": origin.as_set_votes if origin else 0,
        "moas": origin.moas if origin else False,
        "rival_asns": list(mapped.rival_asns),
        "dissent": round(origin.dissent, 4) if origin else None,
    }


def sentences(mapped: Mapped) -> list[str]:
    """The same as text, one fact per line."""
    origin = mapped.origin
    if origin is None:
        return [f"{mapped.address}: no matching prefix in the table", f"provider      {mapped.rule.provider}"]
    asn = f"AS{origin.asn}" if origin.asn else "unknown: only AS_SETs or AS_TRANS announce it"
    who = mapped.organisation_name or "unknown: the AS2Org data does not have this AS"
    lines = [
        f"address       {mapped.address}",
        f"prefix        {origin.prefix}",
        f"origin        {asn}",
        f"organisation  {who}",
        f"provider      {mapped.rule.provider}",
        f"rule          {mapped.rule.text}",
    ]
    announced = [f"AS{asn} by {votes}" for asn, votes in origin.votes.items()]
    if origin.as_set_votes:
        announced.append(f"an AS_SET or AS_TRANS by {origin.as_set_votes}")
    lines.append(f"announced as  {', '.join(announced)} peers (dissent {origin.dissent:.1%})")
    if origin.moas:
        rivals = ", ".join(f"AS{asn}" for asn in mapped.rival_asns)
        who = f"other organisations: {rivals}" if rivals else "no rival that is known"
        lines.append(f"MOAS          of {who}")
    return lines


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
        PlaceError: it cannot be reached.
    """
    resolver = Resolver(nameserver, port=port, timeout_s=timeout_s)
    work = _look_up(list(dict.fromkeys(domains)), resolver, TokenBucket(rate_per_s, burst=1), on_done)
    try:
        return signals.run(work)
    except BaseExceptionGroup as faults:
        raise faults.exceptions[0] from None


async def _look_up(
    domains: list[str], resolver: Resolver, pace: TokenBucket, on_done: Callable[[int, int], None] | None
) -> Chains:
    chains = Chains()
    done = 0

    async def work(left: Iterator[str]) -> None:
        nonlocal done
        for domain in left:
            signals.check_cancelled()
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
    """The table with the current CNAME chains of its hosts, those of the URLs where it has them (else the domains), and
    the causes of failed look-ups, after which the crawl's chain stays.

    Raises: as `look_up`.
    """

    def report(done: int, failed: int) -> None:
        progress.update("asking for CNAMEs", done=done, total=len(unique), failed=failed)

    hosts = table.column("domain").to_pylist()
    if "url" in table.column_names:
        urls = table.column("url").to_pylist()
        hosts = [urlsplit(url or "").hostname or domain for url, domain in zip(urls, hosts, strict=True)]
    unique = [host for host in dict.fromkeys(hosts) if not is_address(host)]
    chains = look_up(unique, nameserver=nameserver, port=port, rate_per_s=rate_per_s, on_done=report)
    now = {host: " ".join(chain) for host, chain in chains.of_domain.items()}
    values = [now.get(host, before) for host, before in zip(hosts, _known_chains(table), strict=True)]
    return with_columns(table, {"cname_chain": values}), chains.failed


def _known_chains(table: pa.Table) -> list[str | None]:
    there = "cname_chain" in table.column_names
    return table.column("cname_chain").to_pylist() if there else [None] * len(table)


def map_table(table: pa.Table, mapper: Mapper) -> tuple[pa.Table, dict[str, Any]]:
    """The targets with the mapping of their addresses (columns `MAPPED`), and a summary.

    A target without an address is at no provider; of a survey's row without one nothing is known but what it says.
    """
    addresses = table.column("server_ip").to_pylist()
    distinct = list(dict.fromkeys(address for address in addresses if address is not None))
    known = dict(zip(distinct, mapper.map(distinct), strict=True))
    rows: list[Mapped | None] = [known.get(address) for address in addresses]
    opinions = [mapper.providers.by_cname(chain.split()) if chain else None for chain in _known_chains(table)]
    is_survey = (kind_in(table.schema) or "").startswith(SURVEYS)
    without = [None if is_survey else mapper.providers.rule(None).provider] * len(rows)
    earlier = table.column("provider").to_pylist() if is_survey and "provider" in table.column_names else without
    providers = [row.rule.provider if row else before for row, before in zip(rows, earlier, strict=True)]
    agrees = [
        None if opinion is None or row is None or row.asn is None else opinion == provider
        for opinion, provider, row in zip(opinions, providers, rows, strict=True)
    ]
    origins = [row.origin if row else None for row in rows]
    columns: dict[str, list[Any]] = {
        "asn": [row.asn if row else None for row in rows],
        "organisation": [row.organisation_name if row else None for row in rows],
        "provider": providers,
        "prefix": [origin.prefix if origin else None for origin in origins],
        "rule": [row.rule.kind.value if row else None for row in rows],
        "rival_asns": [" ".join(map(str, row.rival_asns)) or None if row else None for row in rows],
        "dissent": [origin.dissent if origin else None for origin in origins],
        "cname_provider": opinions,
        "cname_agrees": agrees,
    }
    summary = {
        "targets": len(rows),
        "providers": dict(sorted(Counter(filter(None, providers)).items())),
        "without_address": sum(address is None for address in addresses),
        "without_prefix": sum(row is not None and row.origin is None for row in rows),
        "without_origin": sum(row is not None and row.origin is not None and row.asn is None for row in rows),
        "without_organisation": sum(row is not None and row.asn is not None and not row.organisation for row in rows),
        "rival_organisations": sum(bool(row and row.rival_asns) for row in rows),
        "cname_opinions": sum(agree is not None for agree in agrees),
        "cname_disagrees": sum(agree is False for agree in agrees),
    }
    return with_columns(table, columns), summary
