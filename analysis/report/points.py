"""Each pair of downloads as a point for the page's drawings: its speed-up, whole and by part, and its path. Pure.

The page draws and filters them itself, so they are written into it as JSON, in bounded number.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from analysis.measures import costs, tables, truth
from analysis.measures.dataset import Dataset, Record
from analysis.measures.limiters import limiter_of
from analysis.measures.pairs import Metric, pair
from analysis.measures.rows import BIN_EDGES, MINIMUM_PAIRS
from analysis.measures.selection import Selection
from analysis.report import figures
from core.domain import Comparison, Download, Outcome, Transport

MAX_POINTS = 40_000
"""Most points in a page (about 3 MB); of bigger campaigns, evenly spaced measurement runs are drawn."""

PARTS = ("handshake", "first byte", "transfer")
"""Connecting with TLS; from then to the first body byte; from there to the last."""

_DIGITS = 4
"""Significant digits in the page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """What a measurement run tells about its path."""

    rtt_ms: float | None
    """Smallest round-trip time of its handshakes, TCP and QUIC alike."""
    size_bytes: int | None
    bdp: float | None
    """Highest rate of its downloads times that RTT, over the largest window without scaling, 65,535 bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One pair."""

    comparison: Comparison
    record: Record
    """The download of `comparison.config`."""
    limiter: str
    """What limited the reference: what `comparison.config` could change; empty if it is unknown."""
    low: float
    """The speed-up is `low` if `low == high`, else strictly between (a censored download)."""
    high: float
    parts: tuple[float | None, ...]
    """Speed-up of each of `PARTS`, None if one of the two is unknown or 0."""
    path: Path


def points(dataset: Dataset, *, metric: Metric, selection: Selection) -> list[Point]:
    """All pairs that enter Table 2, run by run, in the order of the records."""
    samples = costs.samples(dataset, metric=metric, selection=selection)
    runs: dict[int, list[Record]] = {}
    records = [dataset.records[row] for row in samples.download.tolist()]
    for at in np.argsort(samples.download).tolist():
        runs.setdefault(int(samples.run[at]), []).append(records[at])
    paths = {run: path_of(members) for run, members in runs.items()}
    of_run: dict[int, list[Point]] = {run: [] for run in runs}
    for comparison in dataset.design.comparisons:
        pairs = pair(samples, comparison.config, comparison.vs)
        columns = (samples.run[pairs.config], pairs.config, pairs.vs, pairs.low, pairs.high)
        for run, config, vs, low, high in zip(*(column.tolist() for column in columns), strict=True):
            record, reference = records[config], records[vs]
            both = zip(parts(reference.download), parts(record.download), strict=True)
            speedups = tuple(old / new if old and new else None for old, new in both)
            point = Point(
                comparison=comparison,
                record=record,
                limiter=limiter_of(reference) or "",
                low=low,
                high=high,
                parts=speedups,
                path=paths[run],
            )
            of_run[run].append(point)
    return [point for members in of_run.values() for point in members]


def parts(download: Download) -> tuple[float | None, ...]:
    """Duration of each of `PARTS` [s]; of a download that is not ok none is known."""
    if download.outcome != Outcome.OK:
        return (None, None, None)
    shaken = download.connect_s if download.transport == Transport.QUIC else download.tls_s
    ends = (0.0, shaken, download.first_byte_s, download.last_byte_s)
    return tuple(None if a is None or b is None or b <= a else b - a for a, b in pairwise(ends))


def path_of(records: Sequence[Record]) -> Path:
    """What the downloads of one measurement run tell about the path."""
    rtts = [rtt for record in records if (rtt := figures.handshake_rtt(record)) is not None and rtt > 0]
    rates = [rate for record in records if (rate := _rate(record)) is not None]
    sizes = [record.download.body_bytes for record in records if record.download.outcome == Outcome.OK]
    rtt, rate = min(rtts, default=None), max(rates, default=None)
    bdp = None if rtt is None or rate is None else rate * 1e6 / 8 * rtt / 1e3 / truth.UNSCALED_WINDOW
    return Path(rtt_ms=rtt, size_bytes=max(sizes, default=None), bdp=bdp)


def _rate(record: Record) -> float | None:
    rate = record.number("delivery_rate")
    return figures.body_rate(record) if rate is None else rate


def document(all_points: Sequence[Point], comparisons: Sequence[Comparison]) -> tuple[dict[str, Any], int]:
    """Points as JSON for the page: names once, then a row of numbers per point; and the number of runs left out."""
    runs = list(dict.fromkeys(point.record.run for point in all_points))
    step = max(1, math.ceil(len(all_points) / MAX_POINTS))
    kept = set(runs[::step])
    shown = [point for point in all_points if point.record.run in kept]
    order = {comparison.name: index for index, comparison in enumerate(comparisons)}
    names = {kind: sorted({of(p) for p in shown} - {""}, key=tables.provider_rank) for kind, of in _KINDS.items()}
    places = {kind: {name: index for index, name in enumerate(values)} for kind, values in names.items()}
    rows = []
    for p in shown:
        where = [places[kind].get(of(p)) for kind, of in _KINDS.items()]
        bounds = map(_speedup, (p.low, p.high))
        numbers = map(_short, (*p.parts, p.path.rtt_ms, p.path.size_bytes, p.path.bdp))
        rows.append([order[p.comparison.name], *where, p.record.download.iteration, *bounds, *numbers])
    page = {
        "comparisons": [{"name": c.name, "role": c.role.value} for c in comparisons],
        "names": names,
        "points": rows,
        "bins": BIN_EDGES,
        "fewest": MINIMUM_PAIRS,
    }
    return page, len(runs) - len(kept)


_KINDS: Mapping[str, Callable[[Point], str]] = {
    "vantage": lambda point: point.record.download.vantage,
    "provider": lambda point: point.record.download.provider,
    "limiter": lambda point: point.limiter,
    "domain": lambda point: point.record.download.domain,
}
"""Names by which the page filters and colours."""


def _speedup(value: float) -> float | None:
    """As `_short`, but exact where rounding would change its bin, or whether it is above 1."""
    rounded = _short(value)
    crosses = rounded is not None and any(min(rounded, value) <= edge <= max(rounded, value) for edge in BIN_EDGES)
    return value if crosses else rounded


def _short(value: float | None) -> float | None:
    """Rounded; None if it is unknown or infinite."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{_DIGITS}g}")


def part_lines(all_points: Sequence[Point], comparisons: Sequence[Comparison]) -> list[tuple[int, list[str]]]:
    """Comparisons with pairs, by index: name, n, and the median speed-up of each part; each domain counts once."""
    lines = []
    for index, comparison in enumerate(comparisons):
        members = [point for point in all_points if point.comparison == comparison]
        if members:
            medians = [_median(members, part) for part in range(len(PARTS))]
            lines.append((index, [comparison.name, str(len(members)), *medians]))
    return lines


def _median(members: Sequence[Point], part: int) -> str:
    domains: dict[str, list[float]] = {}
    for point in members:
        value = point.parts[part]
        if value is not None:
            domains.setdefault(point.record.download.domain, []).append(math.log(value))
    logs = [statistics.median(values) for values in domains.values()]
    return f"{math.exp(statistics.median(logs)):.2f}" if logs else "–"
