"""Signs of loss and congestion of each configuration over TCP. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from analysis.measures.dataset import Dataset, Record
from core.domain import Outcome, Transport


@dataclass(frozen=True, slots=True, kw_only=True)
class CongestionRow:
    """The ok downloads of one configuration over TCP. None: no capture tells it."""

    configuration: str
    downloads: int
    """Ok downloads over TCP with the number of their retransmissions."""
    retransmissions: float | None
    """Packets that the servers retransmitted, summed."""
    retransmission_rate: float | None
    """Mean over the downloads, 0 to 1."""
    ece: float | None
    """Segments of the client with ECE, summed."""
    cwr: float | None
    """Segments of the servers with CWR, summed."""


def congestion(data: Dataset) -> list[CongestionRow]:
    """One row per configuration over TCP, in the campaign's order, warm-ups left out."""
    groups: dict[str, list[Record]] = {}
    for record in data.records:
        d = record.download
        if d.transport == Transport.TCP and d.outcome == Outcome.OK and not record.is_warmup:
            groups.setdefault(d.configuration, []).append(record)
    return [_row(name, groups[name]) for name in sorted(groups, key=data.design.rank)]


def _row(name: str, records: Sequence[Record]) -> CongestionRow:
    rates = _numbers(records, "retransmission_rate")
    return CongestionRow(
        configuration=name,
        downloads=len(_numbers(records, "true_retransmissions")),
        retransmissions=_sum(records, "true_retransmissions"),
        retransmission_rate=math.fsum(rates) / len(rates) if rates else None,
        ece=_sum(records, "ece_segments"),
        cwr=_sum(records, "cwr_segments"),
    )


def _numbers(records: Sequence[Record], kpi: str) -> list[float]:
    return [value for record in records if (value := record.number(kpi)) is not None]


def _sum(records: Sequence[Record], kpi: str) -> float | None:
    values = _numbers(records, kpi)
    return math.fsum(values) if values else None
