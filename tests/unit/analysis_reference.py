"""Tables, samples and counts made download by download, as one would write them on paper: what arrays have to equal."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

from analysis.captures.limiter import Limiter
from analysis.measures.ceilings import CEILING_SHARE, CPU_LIMIT, RUN_DELAY_LEAST_S, RUN_DELAY_LIMIT, Ceiling, ceiling
from analysis.measures.costs import THROUGHPUT_KPI
from analysis.measures.dataset import Dataset, Record
from analysis.measures.limiters import LimiterRow, limiter_of
from analysis.measures.rows import Grouping, Metric, SpeedupRow, SpeedupSummary, SplitBy
from analysis.measures.selection import ClientLimits, Identity, Selection
from analysis.measures.speedup import row_of, summary_of
from analysis.measures.tables import ConfigurationRow, Table1Row, provider_rank, transport_rank
from analysis.measures.verdicts import judge
from core.domain import CacheState, Comparison, Dose, Download, Failure, IdentityFlag, Outcome, VoidReason
from core.sequential import SpeedUps
from tests.unit.samples import Sample, ratio, slow_pair, twins_of


def ceiling_of(dataset: Dataset, record: Record) -> Ceiling:
    d = record.download
    return ceiling(dataset.folders[record.folder].environment, vantage=d.vantage, client=d.client)


def records_of(dataset: Dataset) -> list[Record]:
    """The records, judged by the rules below."""
    return [
        dataclasses.replace(record, near_ceiling=near_ceiling(record.download, ceiling_of(dataset, record)))
        for record in dataset.records
    ]


def table2(dataset: Dataset, *, metric: Metric, by: Grouping | None, selection: Selection) -> list[SpeedupRow]:
    found = samples(records_of(dataset), metric=metric, by=by, selection=selection)
    names = {sample.group for sample in found}
    twins = twins_of(dataset.design.comparisons)
    ranks: Mapping[Grouping | None, Any] = {Grouping.ITERATION: int, Grouping.PROVIDER: provider_rank}
    rows = []
    for group in sorted(names, key=ranks.get(by)):
        members = [sample for sample in found if sample.group == group]
        present = {sample.configuration for sample in members}
        rows += [
            row_of(
                *slow_pair(members, comparison.config, comparison.vs, acted(dataset, comparison), twins),
                comparison,
                group=group,
            )
            for comparison in dataset.design.comparisons
            if by is None or present >= {comparison.config, comparison.vs}
        ]
    return judge(rows)


def acted(dataset: Dataset, comparison: Comparison) -> dict[Hashable, bool | None] | None:
    """Run -> whether one of the options took effect; None for rows that are not split."""
    doses = dataset.design.dose_of(comparison)
    if not doses or comparison.role != "effect":
        return None
    records = {(record.run, record.download.configuration): record for record in dataset.records}
    return {
        run: did_act(doses, [records.get((run, n)) for n in (comparison.config, comparison.vs)]) for run, _ in records
    }


def dose_parts(dataset: Dataset, *, metric: Metric, selection: Selection) -> list[list[SpeedupSummary]]:
    """The three parts of each row by dose."""
    found = samples(records_of(dataset), metric=metric, selection=selection)
    parts = []
    for comparison in dataset.design.comparisons:
        states = acted(dataset, comparison)
        if states is None:
            continue
        sides = (comparison.config, comparison.vs)
        chosen = [[s for s in found if states[s.run] is state] for state in (True, False, None)]  # type: ignore[index]
        parts.append([summary_of(slow_pair(each, *sides)[0], comparison) for each in chosen])
    return parts


def table1(dataset: Dataset) -> list[Table1Row]:
    """Rows in order of vantage point, transport (TCP first) and provider."""
    groups: dict[tuple[str, str, str], list[Download]] = {}
    for record in records_of(dataset):
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
                codes=codes(members),
            )
        )
    return rows


def configurations(dataset: Dataset) -> list[ConfigurationRow]:
    """Rows in the order of the campaign, the warm-up first; others after them, by name."""
    groups: dict[str, list[Download]] = {}
    for record in records_of(dataset):
        groups.setdefault(record.download.configuration, []).append(record.download)
    voids = Counter(row.configuration for row in dataset.superseded if row.reason != VoidReason.INTERRUPTED)
    measured_records = [record for record in records_of(dataset) if record.download.outcome != Outcome.FAILED]
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
                disturbed=sum(d.void_reason is None and d.host_disturbance is not None for d in members),
                mismatched=sum(is_mismatched(d) for d in members),
                unusable=sum(d.void_reason is not None for d in members),
                unproven=sum(d.accepted is None for d in measured),
                cpu_bound=sum(cpu_bound(d) is True for d in members),
                starved=sum(starved(d) is True for d in members),
                cpu_unknown=sum(
                    d.outcome != Outcome.FAILED and (cpu_bound(d) is None or starved(d) is None) for d in members
                ),
                near_ceiling=near[name],
                ceiling_unknown=unknown[name],
                handshakes=sum(d.slow_handshake is not None for d in members),
                slow_handshakes=sum(d.slow_handshake is True for d in members),
                void=voids[name],
                causes=causes(members),
                codes=codes(members),
                reasons=reasons(members),
                void_reasons=dict(Counter(d.void_reason for d in members if d.void_reason is not None).most_common()),
            )
        )
    return rows


def samples(
    records: Sequence[Record], *, metric: Metric, by: Grouping | None = None, selection: Selection
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
            elif not is_accepted(d, unproven=selection.unproven):
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
                splits={
                    SplitBy.LIMITER: limiter_of(record),
                    SplitBy.PROVIDER: d.provider,
                },
                at_byte=metric is Metric.TIME and _is_at_byte(d, low),
                durations=_durations(record),
                quic=d.transport == "quic",
                client=d.client,
                starved=starved(d) is True,
            )
        )
    return found


def _durations(record: Record) -> dict[str, float]:
    d, first = record.download, record.number("time_to_answer")
    shaken = d.connect_s if d.transport == "quic" else d.tls_s
    took = {"handshake": shaken, "transfer": None}
    if first is not None and d.last_byte_s is not None:
        took["transfer"] = d.last_byte_s - first
    return {n: math.nan if v is None or d.outcome != Outcome.OK else v for n, v in took.items()}


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


def codes(downloads: Iterable[Download]) -> dict[str, int]:
    """Cause and failure code -> downloads that have both, the most frequent first."""
    found = Counter(f"{d.failure}: {d.failure_code}" for d in downloads if None not in (d.failure, d.failure_code))
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def reasons(downloads: Iterable[Download]) -> dict[str, int]:
    """Reason -> downloads whose treatment was not as requested, most frequent first; older files have no reasons."""
    found = Counter(d.treatment_reason for d in downloads if is_mismatched(d) and d.treatment_reason is not None)
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def is_accepted(d: Download, *, unproven: bool) -> bool:
    """Whether its treatment is proven (or, with `unproven`, not disproved) and nothing disturbed it."""
    return d.accepted is True or (unproven and d.accepted is None)


def is_mismatched(d: Download) -> bool:
    """Whether its treatment was not as requested, and nothing disturbed it."""
    return d.treatment_ok is False and d.void_reason is None and d.host_disturbance is None


def _count(downloads: Sequence[Download], outcome: Outcome) -> int:
    return sum(d.outcome == outcome for d in downloads)


def runs_without_hits(records: Iterable[Record]) -> dict[Hashable, str]:
    """Measurement runs in which a download after the warm-up was not a cache hit, with the reason.

    Failed downloads are ignored: their cache state is unknown, and they are not in speed-ups anyway.
    """
    found: dict[Hashable, str] = {}
    for record in records:
        d = record.download
        if d.is_warmup or d.outcome == Outcome.FAILED or d.cache_state == CacheState.HIT:
            continue
        if d.cache_state == CacheState.MISS:
            found[record.run] = "in a run with a cache miss"
        else:
            found.setdefault(record.run, "in a run with an unknown cache state")
    return found


def client_limits(dataset: Dataset) -> ClientLimits:
    """Counts over all downloads, warm-ups included."""
    rated = [
        r for r in records_of(dataset) if r.download.outcome != Outcome.FAILED and delivery_rate(r.download) is not None
    ]
    unknown = [record for record in rated if record.near_ceiling is None]
    reasons: dict[str, set[str]] = {}
    for record in unknown:
        reasons.setdefault(ceiling_of(dataset, record).fault or "", set()).add(record.download.client)
    near = Counter(record.download.client for record in rated if record.near_ceiling)
    return ClientLimits(
        downloads=len(rated),
        near=dict(sorted(near.items())),
        doubtful=sum(bool(record.near_ceiling) and ceiling_of(dataset, record).too_low for record in rated),
        unknown=len(unknown),
        reasons={reason: sorted(clients) for reason, clients in sorted(reasons.items())},
    )


def identity(records: Sequence[Record]) -> Identity:
    """Counts over all measurement runs."""
    flags: dict[Hashable, set[IdentityFlag]] = {}
    for record in records:
        if record.download.identity_flags is not None:
            flags.setdefault(record.run, set()).update(flags_of(record.download))
    counts = Counter(flag for members in flags.values() for flag in members)
    others = {run: why for run, why in runs_without_hits(records).items() if run in flags}
    judged = {r.run for r in records if not r.is_warmup and r.download.outcome != Outcome.FAILED} & set(flags)
    missed = sum("miss" in why for why in others.values())
    return Identity(
        runs=len(flags),
        flagged=sum(bool(members) for members in flags.values()),
        by_flag={flag: counts[flag] for flag in IdentityFlag if counts[flag]},
        hit_runs=len(judged - set(others)),
        missed_runs=missed,
        unknown_runs=len(others) - missed,
    )


def flags_of(download: Download) -> tuple[IdentityFlag, ...]:
    """The download's flags; unknown ones, from a newer version, are skipped."""
    try:
        found = json.loads(download.identity_flags or "[]")
    except (ValueError, RecursionError):
        return ()
    return tuple(flag for flag in IdentityFlag if isinstance(found, list) and flag.value in found)


def delivery_rate(download: Download) -> float | None:
    """Body bits over the time from the first to the last body byte [Mbit/s], as ceilings are measured."""
    first, last = download.first_byte_s, download.last_byte_s
    if first is None or last is None or last <= first:
        return None
    return download.body_bytes * 8 / (last - first) / 1e6


def near_ceiling(download: Download, known: Ceiling) -> bool | None:
    """Whether it was faster than `CEILING_SHARE` of its client's ceiling; None if it failed, or if it is unknown."""
    rate = delivery_rate(download)
    if download.outcome == Outcome.FAILED or rate is None or known.mbit_s is None:
        return None
    return rate > CEILING_SHARE * known.mbit_s


def cpu_bound(download: Download) -> bool | None:
    """Whether the client used more than `CPU_LIMIT` of a core during the transfer; None: unknown, or failed."""
    bounds = download.time_bounds_s
    if not bounds or not bounds[0] or download.transfer_cpu_s is None:
        return None
    return download.transfer_cpu_s / bounds[0] > CPU_LIMIT


def run_delay_share(download: Download) -> float | None:
    """Share of the transfer in which the client was ready to run and waited for a CPU; None: unknown, or failed."""
    bounds = download.time_bounds_s
    if not bounds or not bounds[0] or download.run_delay_s is None:
        return None
    return download.run_delay_s / bounds[0]


def starved(download: Download) -> bool | None:
    """Whether the client waited for a CPU for more than `RUN_DELAY_LIMIT` of the transfer; None: unknown, or failed."""
    share = run_delay_share(download)
    if share is None:
        return None
    return share > RUN_DELAY_LIMIT and (download.run_delay_s or 0.0) > RUN_DELAY_LEAST_S


def did_act(doses: Sequence[Dose], sides: Sequence[Record | None]) -> bool | None:
    """Whether one of the options took effect in a run; None if a KPI that could show it is missing.

    Args:
        sides: the compared downloads. Both are checked, as either may be the one with the option; if it is off, its
            KPI is at most the threshold.
    """
    values = [(None if side is None else _took_effect(side, dose)) for dose in doses for side in sides]
    return True if True in values else None if None in values else False


def _took_effect(side: Record, dose: Dose) -> bool | None:
    if dose.equals is not None:
        word = side.kpis.get(dose.kpi)
        return None if word in (None, Limiter.UNKNOWN) else word == dose.equals
    value = side.number(dose.kpi)
    return None if value is None else value > dose.above


def limiters(data: Dataset) -> list[LimiterRow]:
    """Rows in the order of the campaign's configurations, then of providers; none if no folder has the KPI."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in data.records:
        d = record.download
        counts = d.void_reason is None and d.treatment_ok is not False
        if counts and not record.is_warmup and d.outcome != Outcome.FAILED:
            groups.setdefault((d.configuration, d.provider), []).append(record)
    if "limiter" not in data.kpi_units:
        return []
    order = sorted(groups, key=lambda group: (data.design.rank(group[0]), provider_rank(group[1])))
    return [_limiter_row(*group, groups[group]) for group in order]


def _limiter_row(configuration: str, provider: str, records: Sequence[Record]) -> LimiterRow:
    known = [(limiter, shares_of(record)) for record in records if (limiter := limiter_of(record)) is not None]
    timed = [shares for _, shares in known if shares]
    return LimiterRow(
        configuration=configuration,
        provider=provider,
        n=len(known),
        missing=len(records) - len(known),
        downloads={name: sum(limiter is name for limiter, _ in known) / max(len(known), 1) for name in Limiter},
        time={name: sum(s.get(name, 0.0) for s in timed) / len(timed) if timed else None for name in Limiter},
    )


def steps(
    data: Dataset, comparison: Comparison, vantage: str, *, folder: int, unproven: bool, counted: int
) -> SpeedUps:
    """The speed-ups of a comparison, one step per domain, of so many runs, in the order of the plan."""
    runs: dict[int, dict[str, Download]] = {}
    for record in data.records:
        d = record.download
        if (record.folder, d.vantage) == (folder, vantage):
            assert d.run is not None
            runs.setdefault(d.run, {})[d.configuration] = d
    found: dict[str, tuple[float, float]] = {}
    for number in sorted(runs)[:counted]:
        sides = [runs[number].get(name) for name in (comparison.config, comparison.vs)]
        if all(d is not None and is_accepted(d, unproven=unproven) and d.time_bounds_s for d in sides):
            config, vs = (_sample_of_time(d) for d in sides if d is not None)
            found.setdefault(config.domain, ratio(config, vs))
    return SpeedUps.of(found)


def _sample_of_time(d: Download) -> Sample:
    assert d.time_bounds_s
    low, high = d.time_bounds_s
    at_byte = _is_at_byte(d, low)
    return Sample(run=d.iteration, domain=d.domain, configuration=d.configuration, low=low, high=high, at_byte=at_byte)


def _is_at_byte(d: Download, low: float) -> bool:
    """Whether a download's cost up to the byte that ended it is known."""
    return d.outcome == Outcome.CENSORED and d.failure == Failure.BYTE_BUDGET and low > 0


def shares_of(record: Record) -> Mapping[Limiter, float]:
    """Limiter -> share of the time of its answer; empty where that is unknown."""
    text = record.kpis.get("limiter_shares")
    shares = json.loads(text) if isinstance(text, str) else {}
    return {name: float(shares[name]) for name in Limiter if name in shares}
