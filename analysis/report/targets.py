"""The report's section per target: its downloads with times, options and reasons, as values for the template. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.measures.columns import Downloads, Ints, Mask, counts
from analysis.measures.costs import ANSWER_KPI, THROUGHPUT_KPI
from analysis.measures.dataset import Dataset, Record
from analysis.measures.limiters import limiter_of
from analysis.measures.tables import frequent
from analysis.report import render
from analysis.report.checks import words_of
from core.domain import Failure, Outcome, Transport

MAX_DOWNLOADS = 20_000
"""Most downloads shown in detail: browsers cannot open a page of more than about 30 MB."""

_LONGEST_DETAIL = 300
"""Most characters of a stored detail that are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """One measurement run of a target."""

    run: Hashable
    """`Record.run`."""
    records: tuple[Record, ...]
    title: str
    vantage: str
    downloads: tuple[Mapping[str, Any], ...]
    """The lines of its table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetView:
    """One target, at all vantage points."""

    anchor: str
    domain: str
    urls: tuple[str, ...]
    vantages: tuple[str, ...]
    providers: tuple[str, ...]
    limiters: tuple[str, ...]
    """What limited any of its downloads."""
    ok: int
    planned: int
    size: str
    causes: Mapping[str, int]
    longest: str
    """Length of the time lines [s]."""
    runs: tuple[RunView, ...]
    left_out: int
    """Downloads that are not shown, as the target has more than `MAX_DOWNLOADS`."""


def views(dataset: Dataset, *, limit: int) -> tuple[list[TargetView], int]:
    """Views of at most `limit` targets, those with most downloads that are not ok first; how many are left out."""
    d, names = dataset.downloads, dataset.downloads.runs.domain.names
    domain = d.runs.domain.codes[d.run]
    is_ok = d.outcome.are(Outcome.OK)
    is_bad = ~is_ok | (d.accepted == 0)
    sizes, ok, bad = (np.bincount(domain[rows], minlength=len(names)) for rows in (slice(None), is_ok, is_bad))
    # Names are sorted, and so are codes.
    ordered = [code for code in np.argsort(-bad, kind="stable").tolist() if sizes[code]]
    fitting = int(np.searchsorted(np.cumsum(sizes[ordered]), MAX_DOWNLOADS, side="right"))
    chosen = ordered[: min(max(fitting, 1), limit)]
    place = np.full(len(names), -1, dtype=np.int32)
    place[chosen] = np.arange(len(chosen))
    rows = _bounded(d, np.flatnonzero(place[domain] >= 0), is_bad)
    groups: dict[int, list[Record]] = {code: [] for code in chosen}
    for code, record in zip(domain[rows].tolist(), dataset.records_of(rows), strict=True):
        groups[code].append(record)
    cause = d.failure.filled(Failure.UNKNOWN)
    of_cause = counts((domain, len(names)), (cause.codes, len(cause.names)), where=~is_ok)
    campaigns = [f"{folder.path}: " for folder in dataset.folders] if len(dataset.folders) > 1 else [""]
    shown = [
        _target(
            f"t{number}",
            groups[code],
            (int(ok[code]), int(sizes[code])),
            frequent(cause.names, of_cause[code]),
            campaigns,
        )
        for number, code in enumerate(chosen)
    ]
    return shown, len(ordered) - len(shown)


def _bounded(d: Downloads, rows: Ints, is_bad: Mask) -> Ints:
    """At most `MAX_DOWNLOADS` of these, by whole measurement runs; those with downloads that are not ok first."""
    if len(rows) <= MAX_DOWNLOADS:
        return rows
    runs, run = np.unique(d.run[rows], return_inverse=True)
    order = np.argsort(~d.any_of_run(is_bad)[runs], kind="stable")
    is_kept = np.zeros(len(runs), dtype=np.bool_)
    is_kept[order[np.cumsum(np.bincount(run)[order]) <= MAX_DOWNLOADS]] = True
    return rows[is_kept[run]]


def _target(
    anchor: str, records: Sequence[Record], ok: tuple[int, int], causes: Mapping[str, int], campaigns: Sequence[str]
) -> TargetView:
    """One target.

    Args:
        records: the downloads that are shown.
        ok: how many of all its downloads are ok, and their number.
        causes: why others are not.
        campaigns: how the headings of each folder's runs begin.
    """
    downloads = [record.download for record in records]
    longest = max((d.last_byte_s or 0.0 for d in downloads), default=0.0)
    runs: dict[object, list[Record]] = {}
    for record in sorted(records, key=lambda r: (r.download.vantage, r.folder, r.download.iteration)):
        runs.setdefault(record.run, []).append(record)
    sizes = sorted({d.body_bytes for d in downloads if d.outcome == Outcome.OK})
    urls = tuple(sorted({d.url for d in downloads}))
    return TargetView(
        anchor=anchor,
        domain=downloads[0].domain,
        urls=urls,
        vantages=tuple(sorted({d.vantage for d in downloads})),
        providers=tuple(sorted({d.provider for d in downloads})),
        limiters=tuple(sorted({limiter for record in records if (limiter := limiter_of(record))})),
        ok=ok[0],
        planned=ok[1],
        size=" or ".join(f"{size / 1e6:.2f}" for size in sizes[:3]) or "–",
        causes=causes,
        longest=f"{longest:.2f}",
        runs=tuple(
            _run(members, longest, campaign=campaigns[members[0].folder], name_file=len(urls) > 1)
            for members in runs.values()
        ),
        left_out=ok[1] - len(downloads),
    )


def _run(records: Sequence[Record], longest: float, *, campaign: str, name_file: bool) -> RunView:
    first = records[0].download
    addresses = sorted({d for r in records if (d := r.download.server_ip)})
    title = f"{campaign}{first.vantage}, iteration {first.iteration}"
    title += f", {first.url}" if name_file else ""
    title += f", server {', '.join(addresses)}" if addresses else ""
    if first.attempts > 1:
        title += f", {'still void' if first.void_reason else 'accepted'} at attempt {first.attempts}"
    ordered = sorted(records, key=lambda r: (r.download.position, r.download.configuration))
    return RunView(
        run=records[0].run,
        records=tuple(records),
        title=title,
        vantage=first.vantage,
        downloads=tuple(_download(r, longest) for r in ordered),
    )


def _download(record: Record, longest: float) -> dict[str, Any]:
    d = record.download
    rate = record.number("goodput")
    classes = [f"outcome-{d.outcome}"]
    classes += ["mistreated"] if d.accepted is False else []
    classes += ["near-ceiling"] if record.near_ceiling else []
    return {
        "position": d.position,
        "configuration": d.configuration,
        "outcome": d.outcome,
        "throughput": render.number(record.number(THROUGHPUT_KPI)),
        "goodput": render.number(rate if rate is not None else body_rate(record)),
        "time": render.number(d.last_byte_s, 3),
        "parts": time_line(record, longest),
        "handshake_rtt": render.number(record.number("handshake_rtt"), 1),
        # Mean over the download; of TCP only, as QUIC hides it.
        "loaded_rtt": render.number(record.number("rtt_mean") if d.transport == Transport.TCP else None, 1),
        "retransmitted": _retransmitted(record),
        "limiter": limiter_of(record) or "–",
        "negotiated": _negotiated(record),
        "client_data": _short(d.transport_detail),  # what it tells about the connection, as JSON
        "why": _why(record),
        "classes": " ".join(classes),
    }


def body_rate(record: Record) -> float | None:
    """Body bits over the whole download time [Mbit/s]; needs no capture."""
    d = record.download
    return d.body_bytes * 8 / d.last_byte_s / 1e6 if d.last_byte_s and d.body_bytes else None


def time_line(record: Record, longest: float) -> tuple[tuple[str, float, float, str], ...]:
    """The parts of a download's time that are known, from the start of connecting: kind; start and length in
    thousandths of the page's longest time; title."""
    if longest <= 0:
        return ()
    download, answer_s = record.download, record.number(ANSWER_KPI)
    ends = (
        ("connect", download.connect_s),
        ("tls", download.tls_s),
        ("wait", download.first_byte_s if answer_s is None else answer_s),
        ("transfer", download.last_byte_s),
    )
    parts = []
    at = 0.0
    for kind, end in ends:
        if end is None or end < at:
            continue
        title = f"{kind} {end - at:.3f} s (until {end:.3f} s)"
        parts.append((kind, 1000 * at / longest, 1000 * (end - at) / longest, title))
        at = end
    return tuple(parts)


def _retransmitted(record: Record) -> str:
    amount, rate = record.number("retransmitted_bytes"), record.number("retransmission_rate")
    if amount is None and rate is None:
        return "–"
    shown = [] if amount is None else [f"{amount / 1e3:.1f} kB"]
    return " ".join([*shown, *([] if rate is None else [f"({rate:.2%})"])])


def _negotiated(record: Record) -> str:
    d = record.download
    tls = " ".join(part for part in (d.tls_version, d.tls_cipher) if part)
    parts = [f"HTTP/{d.http_version.removeprefix('HTTP/')}" if d.http_version else "", tls]
    parts += [_options(record), _short(d.treatment_detail)]
    return "; ".join(part for part in parts if part) or "–"


def _options(record: Record) -> str:
    """The options negotiated by SYN and SYN-ACK, as far as there are such KPIs."""
    kpis = record.kpis
    agreed = [name for key, name in (("ecn", "ECN"), ("sack", "SACK"), ("timestamps", "timestamps")) if kpis.get(key)]
    scales = [record.number("window_scale_client"), record.number("window_scale_server")]
    if all(scale is not None for scale in scales):
        agreed.append("scale " + "/".join(f"{scale:.0f}" for scale in scales))
    segments = record.number("mss_server")
    if segments is not None:
        agreed.append(f"MSS {segments:.0f}")
    return ", ".join(agreed)


def _why(record: Record) -> str:
    d = record.download
    parts = [words_of(d), _short(d.failure_detail)]
    if d.outcome != Outcome.OK and d.http_status not in (None, 200):
        parts.append(f"status {d.http_status}")
    if d.void_reason is not None:
        parts.append("void measurement run: left out of speed-ups")
    elif d.host_disturbance is not None:
        parts.append(f"disturbed by the host ({d.host_disturbance}): left out of speed-ups")
    elif d.treatment_ok is False:
        parts.append("treatment not accepted: left out of speed-ups")
    if record.starved and d.run_delay_s and (bounds := d.time_bounds_s):
        parts.append(f"waited for a CPU for {d.run_delay_s / bounds[0]:.0%} of the transfer")
    if record.near_ceiling:
        parts.append("above 70 % of its client's ceiling")
    return "; ".join(part for part in parts if part)


def _short(text: str | None) -> str:
    if not text:
        return ""
    return text if len(text) <= _LONGEST_DETAIL else text[:_LONGEST_DETAIL] + " …"
