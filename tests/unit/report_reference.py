"""What the report shows of single downloads, made download by download: what columns have to equal."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

from analysis.measures import costs, truth
from analysis.measures.dataset import Dataset, Record
from analysis.measures.limiters import limiter_of
from analysis.measures.pairs import pair
from analysis.measures.rows import Metric
from analysis.report import checks, targets
from core.domain import Download, Outcome, Role, Transport

REASONS: tuple[Callable[[Download], str | None], ...] = (
    lambda d: checks._failure(d) if d.outcome == Outcome.FAILED else None,
    lambda d: checks._failure(d) if d.outcome == Outcome.CENSORED else None,
    lambda d: (
        None
        if d.void_reason is not None or d.treatment_ok is not False
        else ": ".join(filter(None, (d.treatment_reason, d.treatment_detail)))
    ),
    lambda d: d.void_reason and (d.void_detail or d.void_reason),
    lambda d: d.host_disturbance and (d.host_disturbance_detail or d.host_disturbance),
    lambda d: d.identity_detail,
)
"""Why a download is in each of the lists; None: it is not."""


def lists(data: Dataset) -> list[list[checks.Row]]:
    """The rows of each list but that of void attempts."""
    return [
        [
            (d.vantage, str(d.iteration), d.domain, d.configuration, why, d.provider)
            for d in (record.download for record in data.records)
            if (why := reason(d)) is not None
        ]
        for reason in REASONS
    ]


def server_rows(data: Dataset) -> list[list[str]]:
    """Vantage point, domain, provider, address, HTTP, TLS, group, handshake RTT and MB of each server."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in data.records:
        groups.setdefault((record.download.vantage, record.download.domain), []).append(record)
    return [_server(key, groups[key]) for key in sorted(groups)]


def _server(key: tuple[str, str], records: Sequence[Record]) -> list[str]:
    downloads = [record.download for record in records]
    rtts = [rtt for record in records if (rtt := record.number("handshake_rtt")) is not None]
    groups = _listed(d.tls_group for d in downloads)
    if groups != "–" and any(d.tls_group is None and d.transport == Transport.TCP for d in downloads):
        groups += " (QUIC)" if all(d.transport == Transport.QUIC for d in downloads if d.tls_group) else ""
    return [
        *key,
        _listed(d.provider for d in downloads),
        _listed(d.server_ip for d in downloads),
        _listed((d.http_version or "").removeprefix("HTTP/") for d in downloads),
        _listed((d.tls_version or "").removeprefix("TLSv") for d in downloads),
        groups,
        f"{min(rtts):.1f}" if rtts else "–",
        _listed(f"{d.body_bytes / 1e6:.2f}" for d in downloads if d.outcome == "ok"),
    ]


def _listed(values: Iterable[str | None]) -> str:
    counts = Counter(value for value in values if value)
    return ", ".join(sorted(counts, key=lambda value: (-counts[value], value))) or "–"


def whole_downloads(data: Dataset) -> tuple[int, int]:
    """Downloads whose packets the emulator accounts for, and those for which it counted."""
    counted = [
        (d.lab_sent, d.lab_received, d.lab_dropped)
        for d in (record.download for record in data.records)
        if d.lab_sent is not None and d.lab_received is not None and d.lab_dropped is not None
    ]
    return sum(sent == received + dropped for sent, received, dropped in counted), len(counted)


def points(data: Dataset) -> list[list[Any]]:
    """Each pair: comparison, run, limiter, bounds, speed-up of each part; RTT, size and BDP of the path. Unrounded."""
    samples = costs.samples(data, metric=Metric.TIME)
    records = [data.records[row] for row in samples.download.tolist()]
    members: dict[tuple[Any, ...], list[Record]] = {}
    for record in data.records:
        members.setdefault(record.run, []).append(record)
    floors = [(c.config, c.vs) for c in data.design.comparisons if c.role is Role.NOISE_FLOOR]
    twins = dict(floors) | {vs: config for config, vs in floors}
    found: dict[tuple[Any, ...], list[list[Any]]] = {run: [] for run in members}
    for index, comparison in enumerate(data.design.comparisons):
        pairs = pair(samples, comparison.config, comparison.vs)
        for config, vs, low, high in zip(pairs.config, pairs.vs, pairs.low, pairs.high, strict=True):
            new, old = records[config], records[vs]
            both = zip(_parts(old), _parts(new), strict=True)
            d = new.download
            twin = twins.get(comparison.vs, comparison.config)
            name = comparison.vs if twin == comparison.config else twin
            limiters = [limiter_of(record) for record in members[new.run] if record.download.configuration == name]
            where = [d.vantage, d.provider, (limiters or [None])[0] or "", d.domain, d.iteration]
            speedups = [a / b if a and b else None for a, b in both]
            found[new.run].append([index, *where, low, high, *speedups, *_path(members[new.run])])
    return [point for run in found.values() for point in run]


def _parts(record: Record) -> list[float | None]:
    d = record.download
    shaken = d.connect_s if d.transport == Transport.QUIC else d.tls_s
    ends = (0.0, shaken, record.number("time_to_answer"), d.last_byte_s)
    if d.outcome != Outcome.OK:
        return [None] * 3
    return [None if a is None or b is None or b <= a else b - a for a, b in pairwise(ends)]


def _path(records: Sequence[Record]) -> list[float | None]:
    rtts = [rtt for record in records if (rtt := record.number("handshake_rtt")) is not None and rtt > 0]
    rates = [rate for record in records if (rate := targets.body_rate(record)) is not None]
    sizes = [record.download.body_bytes for record in records if record.download.outcome == Outcome.OK]
    bdp = max(rates) * 1e6 / 8 * min(rtts) / 1e3 / truth.UNSCALED_WINDOW if rates and rtts else None
    return [min(rtts, default=None), max(sizes, default=None), bdp]


def part_medians(data: Dataset) -> list[list[str]]:
    """Name, number of pairs with a known part, and the median speed-up of each part, of comparisons with pairs."""
    lines = []
    all_points = points(data)
    for index, comparison in enumerate(data.design.comparisons):
        chosen = [point for point in all_points if point[0] == index]
        if chosen:
            medians = []
            for part in (8, 9, 10):
                domains: dict[str, list[float]] = {}
                for point in chosen:
                    if point[part] is not None:
                        domains.setdefault(point[4], []).append(math.log(point[part]))
                logs = [statistics.median(values) for values in domains.values()]
                medians.append(f"{math.exp(statistics.median(logs)):.2f}" if logs else "–")
            known = sum(any(one is not None for one in point[8:11]) for point in chosen)
            lines.append([comparison.name, str(known), *medians])
    return lines
