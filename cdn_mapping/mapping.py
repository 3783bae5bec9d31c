"""Address -> prefix, origin AS, organisation, provider, and the reason: joins all sources of this package."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cdn_mapping.as2org import Organisation, Organisations
from cdn_mapping.provider_rules import Providers, Rule
from cdn_mapping.table import Origin, PrefixTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapped:
    """What is known of one address."""

    address: str
    origin: Origin | None
    """None if no prefix holds the address."""
    organisation: Organisation | None
    rule: Rule
    rival_asns: tuple[int, ...]
    """Other origins of the prefix that belong to another organisation: a real MOAS, not a company's second AS."""

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
        organisation = self.organisations.get(asn)
        own_id = organisation.org_id if organisation else None
        rivals = []
        for other in origin.votes if origin else ():
            holder = self.organisations.get(other)
            if other != asn and (holder is None or holder.org_id != own_id):
                rivals.append(other)
        return Mapped(
            address=address,
            origin=origin,
            organisation=organisation,
            rule=self.providers.rule(asn),
            rival_asns=tuple(rivals),
        )


def explain(mapped: Mapped) -> dict[str, object]:
    """Everything known about one address as plain data, for `upshift map explain --json`."""
    origin = mapped.origin
    return {
        "address": mapped.address,
        "prefix": str(origin.prefix) if origin else None,
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
    asn = f"AS{origin.asn}" if origin.asn else "unknown: only AS_SETs announce it"
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
        announced.append(f"an AS_SET by {origin.as_set_votes}")
    lines.append(f"announced as       {', '.join(announced)} peers (dissent {origin.dissent:.1%})")
    if origin.moas:
        rivals = ", ".join(f"AS{asn}" for asn in mapped.rival_asns)
        lines.append(f"MOAS          {'of other organisations: ' + rivals if rivals else 'all of one organisation'}")
    return lines
