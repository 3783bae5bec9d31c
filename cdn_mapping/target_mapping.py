"""Maps a targets file: the columns that mapping adds, the second opinion by CNAME, and the summary."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from cdn_mapping.mapping import Mapped, Mapper
from core.files.targets import with_columns
from core.progress import Progress

if TYPE_CHECKING:
    import pyarrow as pa


def chains_by_dns(
    table: pa.Table, nameserver: str | None, port: int, rate_per_s: float, progress: Progress
) -> tuple[pa.Table, Counter[str]]:
    """The table with its current CNAME chains, and the causes of failed look-ups."""
    from cdn_mapping import cname

    def report(done: int, failed: int) -> None:
        progress.update("asking for CNAMEs", done=done, total=len(unique), failed=failed)

    domains = table.column("domain").to_pylist()
    unique = list(dict.fromkeys(domains))
    chains = cname.look_up(unique, nameserver=nameserver, port=port, rate_per_s=rate_per_s, on_done=report)
    values = [" ".join(chain) if (chain := chains.of_domain.get(d)) is not None else None for d in domains]
    return with_columns(table, {"cname_chain": values}), chains.failed


def map_table(table: pa.Table, mapper: Mapper) -> tuple[pa.Table, dict[str, Any]]:
    """The targets with the mapping of their addresses (the columns of `Target` from `asn` on), and a summary."""
    addresses = table.column("server_ip").to_pylist()
    asked = list(dict.fromkeys(address for address in addresses if address is not None))
    known = dict(zip(asked, mapper.map(asked), strict=True))
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
