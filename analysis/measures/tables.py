"""Table 1 (successful downloads), the table of configurations, and Table 2 (shares of speed-ups), as values.

`analysis.report.render` formats them for the terminal, CSV and Markdown.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from analysis.measures import speedup
from analysis.measures.dataset import Dataset, Record
from analysis.measures.pairs import Metric, Sample
from analysis.measures.processor import cpu_bound, starved
from analysis.measures.rows import SpeedupRow
from analysis.measures.selection import DEFAULT, Selection, runs_without_hits
from upshift.domain import Download, Failure, Outcome, Provider, Transport, VoidReason
from upshift.errors import UsageError

THROUGHPUT_KPI = "mean_throughput"


class Grouping(StrEnum):
    """What Table 2 is split by."""

    VANTAGE = "vantage"
    PROVIDER = "provider"
    ITERATION = "iteration"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table1Row:
    """Downloads of one vantage point, provider and transport, warm-ups left out."""

    vantage: str
    provider: str
    transport: str
    planned: int
    ok: int
    failed: int
    censored: int
    causes: Mapping[str, int]
    """Cause -> failed and censored downloads."""

    @property
    def ok_share(self) -> float:
        return self.ok / self.planned


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigurationRow:
    """Outcomes of the downloads of one configuration."""

    configuration: str
    client: str
    transport: str
    planned: int
    ok: int
    failed: int
    censored: int
    proven: int
    """Downloads, ok or censored, with proven treatment."""
    disturbed: int
    """Downloads that the host disturbed (`upshift.domain.HostDisturbance`). Left out of speed-ups."""
    mismatched: int
    """Downloads with `treatment_ok` false: other options on the wire than requested, client and capture contradict each
    other, or the run stayed void. Left out of speed-ups."""
    unproven: int
    """Downloads, ok or censored, whose treatment could not be determined. Left out of speed-ups by default."""
    cpu_bound: int
    """Ok downloads whose client used more than 70 % of a core from the first packet to the last byte."""
    starved: int
    """Ok downloads whose client waited for a CPU for more than 25 % of that time."""
    cpu_unknown: int
    """Ok downloads for which one of the two is unknown."""
    near_ceiling: int
    """Downloads, ok or censored, that were faster than 70 % of their client's ceiling."""
    ceiling_unknown: int
    """Downloads, ok or censored, of which nothing tells how near their client's ceiling they were."""
    handshakes: int
    """Downloads whose handshake completed on a path with a known round-trip time."""
    slow_handshakes: int
    """Those of them whose handshake took longer than its round trips (`Download.slow_handshake`)."""
    void: int
    """Attempts in void measurement runs, which were repeated."""
    causes: Mapping[str, int]
    reasons: Mapping[str, int]
    """Reason (`upshift.domain.TreatmentReason`) -> downloads with `treatment_ok` false, in runs that were not void."""

    @property
    def void_share(self) -> float:
        """Void attempts over all attempts."""
        return self.void / (self.void + self.planned) if self.planned else 1.0


def table1(dataset: Dataset) -> list[Table1Row]:
    """Rows in order of vantage point, transport (TCP first) and provider."""
    groups: dict[tuple[str, str, str], list[Download]] = {}
    for record in dataset.records:
        d = record.download
        if not record.is_warmup:
            groups.setdefault((d.vantage, d.transport, d.provider), []).append(d)
    rows = []
    for vantage, transport, provider in sorted(groups, key=lambda g: (g[0], transport_rank(g[1]), provider_rank(g[2]))):
        members = groups[vantage, transport, provider]
        rows.append(
            Table1Row(
                vantage=vantage,
                provider=provider,
                transport=transport,
                planned=len(members),
                ok=_count(members, Outcome.OK),
                failed=_count(members, Outcome.FAILED),
                censored=_count(members, Outcome.CENSORED),
                causes=causes(members),
            )
        )
    return rows


def configurations(dataset: Dataset) -> list[ConfigurationRow]:
    """Rows in the order of the campaign, the warm-up first; others after them, by name."""
    groups: dict[str, list[Download]] = {}
    for record in dataset.records:
        groups.setdefault(record.download.configuration, []).append(record.download)
    voids = Counter(row.configuration for row in dataset.superseded if row.reason != VoidReason.INTERRUPTED)
    measured_records = [record for record in dataset.records if record.download.outcome != Outcome.FAILED]
    near = Counter(record.download.configuration for record in measured_records if record.near_ceiling)
    unknown = Counter(record.download.configuration for record in measured_records if record.near_ceiling is None)
    rows = []
    for name in sorted({*groups, *voids}, key=dataset.design.rank):
        members = groups.get(name, [])
        measured = [d for d in members if d.outcome != Outcome.FAILED]
        rows.append(
            ConfigurationRow(
                configuration=name,
                client=", ".join(sorted({d.client for d in members})),
                transport=", ".join(sorted({d.transport for d in members})),
                planned=len(members),
                ok=_count(members, Outcome.OK),
                failed=_count(members, Outcome.FAILED),
                censored=_count(members, Outcome.CENSORED),
                proven=sum(d.accepted is True for d in measured),
                disturbed=sum(d.host_disturbance is not None for d in members),
                mismatched=sum(d.void_reason is not None or d.treatment_ok is False for d in members),
                unproven=sum(d.accepted is None for d in measured),
                cpu_bound=sum(cpu_bound(d) is True for d in members),
                starved=sum(starved(d) is True for d in members),
                cpu_unknown=sum(
                    d.outcome == Outcome.OK and (cpu_bound(d) is None or starved(d) is None) for d in members
                ),
                near_ceiling=near[name],
                ceiling_unknown=unknown[name],
                handshakes=sum(d.slow_handshake is not None for d in members),
                slow_handshakes=sum(d.slow_handshake is True for d in members),
                void=voids[name],
                causes=causes(members),
                reasons=reasons(members),
            )
        )
    return rows


def table2(
    dataset: Dataset,
    *,
    metric: Metric = Metric.TIME,
    by: Grouping | None = None,
    selection: Selection = DEFAULT,
) -> list[SpeedupRow]:
    """Rows of Table 2: all comparisons that the campaigns declare.

    Raises:
        UsageError: the metric needs KPIs that no folder has.
    """
    if metric is Metric.THROUGHPUT and THROUGHPUT_KPI not in dataset.kpi_units:
        raise UsageError(
            f"no kpis.parquet here has a column {THROUGHPUT_KPI}",
            where="--metric throughput",
            remedy="finish the campaign with `upshift run`, or use --metric time",
        )
    found = samples(dataset.records, metric=metric, by=by, selection=selection)
    if by is None:
        return speedup.table2(found, dataset.design.comparisons)
    names = {sample.group for sample in found}
    groups = sorted(names, key=int if by is Grouping.ITERATION else str)
    if by is Grouping.PROVIDER:
        groups = sorted(names, key=provider_rank)
    return speedup.table2(found, dataset.design.comparisons, groups=groups)


def samples(
    records: Sequence[Record], *, metric: Metric, by: Grouping | None = None, selection: Selection = DEFAULT
) -> list[Sample]:
    """The cost of each download: the download time [s], or 1 / mean throughput [s/Mbit]."""
    cost: Callable[[Record], tuple[float, float] | str] = _time if metric is Metric.TIME else _slowness
    found = []
    without_hits = runs_without_hits(records) if selection.only_hits else {}
    for record in records:
        d = record.download
        failed = d.outcome == Outcome.FAILED
        bounds = (math.inf, math.inf) if failed else cost(record)
        # What has nothing to do with the configuration keeps a download out also by intention to treat.
        chance = _apart_from_treatment(record, bounds, without_hits, selection)
        excluded = chance
        if failed:
            excluded = "failed"
        elif d.void_reason is None and d.host_disturbance is None:
            if d.treatment_ok is False:
                excluded = "treatment not accepted"
            elif not record.accepted(unproven=selection.unproven):
                excluded = "treatment unproven"
        low, high = (0.0, math.inf) if isinstance(bounds, str) else bounds
        found.append(
            Sample(
                run=record.run,
                domain=d.domain,
                configuration=d.configuration,
                low=low,
                high=high,
                excluded=excluded,
                planned=chance is None,
                group="" if by is None else str(getattr(d, by.value)),
                larger={"AS": None if d.asn is None else str(d.asn), "vantage": d.vantage},
            )
        )
    return found


def _apart_from_treatment(
    record: Record, bounds: tuple[float, float] | str, without_hits: Mapping[Any, str], selection: Selection
) -> str | None:
    """Why a download is in no pair at all, neither as treated nor as planned; None if it may be."""
    d = record.download
    if d.void_reason is not None:
        return "void measurement run"
    if d.host_disturbance is not None:
        return f"disturbed by the host ({d.host_disturbance})"
    if record.run in without_hits:
        return without_hits[record.run]
    if selection.unlimited_only and record.near_ceiling:
        return "near the client's ceiling"
    return bounds if isinstance(bounds, str) else None


def _time(record: Record) -> tuple[float, float] | str:
    d = record.download
    if d.outcome == Outcome.CENSORED:
        # The byte budget ends a download at its last byte, the time budget at the budget, even if data stopped before.
        seen = d.last_byte_s or 0.0
        return (seen if d.failure == Failure.BYTE_BUDGET else max(seen, d.budget_s)), math.inf
    if d.last_byte_s is None or not 0 < d.last_byte_s < math.inf:
        return "without a time"
    return d.last_byte_s, d.last_byte_s


def _slowness(record: Record) -> tuple[float, float] | str:
    if record.download.outcome == Outcome.CENSORED:
        # The throughput of the unseen part has no bound.
        return 0.0, math.inf
    throughput = record.number(THROUGHPUT_KPI)
    if not throughput or throughput < 0:
        return "without a mean throughput"
    return 1 / throughput, 1 / throughput


def causes(downloads: Iterable[Download]) -> dict[str, int]:
    """Cause -> downloads that are not ok, the most frequent first; a missing cause is `unknown`."""
    found = Counter(d.failure or Failure.UNKNOWN.value for d in downloads if d.outcome != Outcome.OK)
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def reasons(downloads: Iterable[Download]) -> dict[str, int]:
    """Reason -> downloads whose treatment was not as requested, most frequent first; older files have no reasons."""
    refuted = [d for d in downloads if d.treatment_ok is False and d.void_reason is None]
    found = Counter(d.treatment_reason for d in refuted if d.treatment_reason is not None)
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def _count(downloads: Sequence[Download], outcome: Outcome) -> int:
    return sum(d.outcome == outcome for d in downloads)


def provider_rank(name: str) -> tuple[int, str]:
    """Sort key: by name, `other` last."""
    return (int(name == Provider.OTHER), name)


def transport_rank(name: str) -> tuple[int, str]:
    """Sort key: TCP first."""
    return (int(name != Transport.TCP), name)
