"""What limited the downloads of each configuration and provider. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from analysis.measures.dataset import Dataset, Record
from analysis.measures.tables import provider_rank
from upshift.domain import Limiter, Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class LimiterRow:
    """Downloads of one configuration from one provider, ok or censored, warm-ups left out."""

    configuration: str
    provider: str
    n: int
    """Downloads with a capture: their columns add up to 1."""
    missing: int
    """Downloads without one."""
    downloads: Mapping[Limiter, float]
    """Limiter -> share of the downloads that it limited; all limiters."""
    time: Mapping[Limiter, float]
    """Limiter -> share of the time of an answer, mean of the downloads; all limiters. A download may have several
    limits in turn."""


def limiters(data: Dataset) -> list[LimiterRow]:
    """Rows in the order of the campaign's configurations, then of providers; none if no folder has the KPI."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in data.records:
        if not record.is_warmup and record.download.outcome != Outcome.FAILED:
            groups.setdefault((record.download.configuration, record.download.provider), []).append(record)
    if "limiter" not in data.kpi_units:
        return []
    order = sorted(groups, key=lambda group: (data.design.rank(group[0]), provider_rank(group[1])))
    return [_row(*group, groups[group]) for group in order]


def limiter_of(record: Record) -> Limiter | None:
    """What limited a download; None without a capture, or for a value of a newer version."""
    value = record.kpis.get("limiter")
    return Limiter(value) if value in set(Limiter) else None


def shares_of(record: Record) -> Mapping[Limiter, float]:
    """Limiter -> share of the time of its answer; empty where that is unknown."""
    text = record.kpis.get("limiter_shares")
    shares = json.loads(text) if isinstance(text, str) else {}
    return {name: float(shares[name]) for name in Limiter if name in shares}


def _row(configuration: str, provider: str, records: Sequence[Record]) -> LimiterRow:
    known = [(limiter, shares_of(record)) for record in records if (limiter := limiter_of(record)) is not None]
    timed = [shares for _, shares in known if shares]
    return LimiterRow(
        configuration=configuration,
        provider=provider,
        n=len(known),
        missing=len(records) - len(known),
        downloads={name: sum(limiter is name for limiter, _ in known) / max(len(known), 1) for name in Limiter},
        time={name: sum(shares.get(name, 0.0) for shares in timed) / max(len(timed), 1) for name in Limiter},
    )
