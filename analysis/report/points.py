"""Each pair of downloads as a point for the page's drawings: its speed-up, whole and by part, and its path. Pure.

The page draws and filters them itself, so they are written into it as JSON, in bounded number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from analysis.measures import tables, truth
from analysis.measures.columns import Codes, Floats, Ints, Mask, Texts
from analysis.measures.costs import ANSWER_KPI
from analysis.measures.dataset import Dataset
from analysis.measures.pairs import Samples, pair
from analysis.measures.rows import BIN_EDGES, MINIMUM_PAIRS, SplitBy
from analysis.measures.speedup import median_of_domains
from analysis.report import figures, render
from core.domain import Outcome, Transport

MAX_POINTS = 40_000
"""Most points in a page (about 4 MB); of bigger campaigns, evenly spaced measurement runs are drawn."""

PARTS = ("handshake", "first byte", "transfer")
"""Connecting with TLS; from then to the answer's first packet; from there to the last body byte."""

_DIGITS = 6
"""Significant digits in the page, which prints medians with three: made from four, they often were not Table 2's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """The pairs that enter Table 2, for the page."""

    document: dict[str, Any]
    """Names once, then a row of numbers per point: run by run, in the order of the downloads."""
    every: int
    """The page has every so-manyth measurement run with pairs; 1: all."""
    runs_left_out: int
    part_lines: list[tuple[int, list[str]]]
    """Comparisons with pairs, by index: name, pairs with a known part, and the median speed-up of each. Each domain
    counts once."""


def points(dataset: Dataset, samples: Samples) -> Points:
    """All pairs of the samples, of which the page shows at most `MAX_POINTS`."""
    took = parts(dataset)
    has_pair = np.zeros(len(samples.domain), dtype=np.bool_)
    total = 0
    lines = []
    for index, comparison in enumerate(dataset.design.comparisons):
        pairs = pair(samples, comparison.config, comparison.vs)
        count = len(pairs.low)
        if count:
            sides = samples.download[pairs.vs], samples.download[pairs.config]
            speedups = np.array([values[sides[0]] / values[sides[1]] for values in took])
            known = int(np.count_nonzero(~np.isnan(speedups).all(axis=0)))
            medians = (render.number(median_of_domains(part, pairs)) for part in speedups)
            lines.append((index, [comparison.name, str(known), *medians]))
        has_pair[samples.run[pairs.config]] = True
        total += count
    order = _order(samples)
    runs = order[has_pair[order]]
    every = max(1, math.ceil(total / MAX_POINTS))
    kept = runs[::every]
    return Points(
        document=_document(dataset, samples, took, kept),
        every=every,
        runs_left_out=len(runs) - len(kept),
        part_lines=lines,
    )


def parts(dataset: Dataset) -> list[Floats]:
    """Duration of each of `PARTS` of each download [s]; NaN: unknown, or the download is not ok."""
    d = dataset.downloads
    shaken = np.where(d.transport.are(Transport.QUIC), dataset.kpi("connect_s"), dataset.kpi("tls_s"))
    ends = [np.zeros(len(d)), shaken, dataset.kpi(ANSWER_KPI), d.last_byte_s]
    is_ok = d.outcome.are(Outcome.OK)
    return [np.where(is_ok & (b > a), b - a, math.nan) for a, b in pairwise(ends)]


def _order(samples: Samples) -> Ints:
    """The runs in the order of their first downloads."""
    first = np.full(len(samples.domain), np.iinfo(np.int64).max)
    np.minimum.at(first, samples.run, samples.download)
    return np.argsort(first, kind="stable")


def _paths(dataset: Dataset, chosen: Mask) -> list[Floats]:
    """What some measurement runs tell about their paths, an element per run; NaN: unknown, as of all others.

    The smallest round-trip time of its handshakes, TCP and QUIC alike [ms]; the size of its file [bytes]; the highest
    rate of its downloads times that RTT, over the largest window without scaling, 65,535 bytes.
    """
    d = dataset.downloads
    rows = np.flatnonzero(chosen[d.run])
    run = d.run[rows]
    delivery, body = dataset.kpi("delivery_rate")[rows], figures.body_rates(dataset)[rows]
    rtt = dataset.kpi("handshake_rtt")[rows]
    size = dataset.kpi("body_bytes")[rows]
    highest = _extreme(np.where(np.isnan(delivery), body, delivery), run, len(chosen))
    smallest = -_extreme(np.where(rtt > 0, -rtt, math.nan), run, len(chosen))
    sizes = _extreme(np.where(d.outcome[rows].are(Outcome.OK), size, math.nan), run, len(chosen))
    return [smallest, sizes, highest * 1e6 / 8 * smallest / 1e3 / truth.UNSCALED_WINDOW]


def _extreme(values: Floats, run: Codes, count: int) -> Floats:
    """The largest known value of each run."""
    largest = np.full(count, -math.inf)
    np.maximum.at(largest, run, np.where(np.isnan(values), -math.inf, values))
    return np.where(np.isinf(largest), math.nan, largest)


def _document(dataset: Dataset, samples: Samples, took: Sequence[Floats], kept: Ints) -> dict[str, Any]:
    """The pairs of the runs that are kept, in the order of these, and within each in that of the comparisons."""
    d, comparisons = dataset.downloads, dataset.design.comparisons
    place = np.full(len(samples.domain), -1, dtype=np.int64)
    place[kept] = np.arange(len(kept))
    each = [pair(samples, c.config, c.vs, runs=place >= 0) for c in comparisons]
    # The speed-up is `low` if `low == high`, else strictly between (a censored download).
    config, vs, low, high = (
        np.concatenate([np.empty(0, dtype=kind), *(getattr(pairs, name) for pairs in each)])
        for name, kind in (("config", np.int32), ("vs", np.int32), ("low", np.float64), ("high", np.float64))
    )
    order = np.argsort(place[samples.run[config]], kind="stable")
    comparison = np.repeat(np.arange(len(each)), [len(pairs.low) for pairs in each])[order]
    # Of the reference's twin where it has one, as in splits.csv: the luck of the pair itself would tell the parts.
    limiter = np.concatenate([np.empty(0, np.int8), *(pairs.splits[SplitBy.LIMITER].codes for pairs in each)])[order]
    config, vs = (samples.download[side[order]] for side in (config, vs))  # indices in the dataset
    run = d.run[config]
    texts = {
        "vantage": d.runs.vantage[run],
        "provider": d.provider[config],
        "limiter": Texts(limiter, samples.splits[SplitBy.LIMITER].names),
        "domain": d.runs.domain[run],
    }
    names = {kind: sorted(column.present() - {""}, key=tables.provider_rank) for kind, column in texts.items()}
    chosen = np.zeros(len(d.runs), dtype=np.bool_)
    chosen[run] = True
    numbers = [values[vs] / values[config] for values in took]
    numbers += [values[run] for values in _paths(dataset, chosen)]
    columns = [
        comparison.tolist(),
        *(_places(texts[kind], names[kind]) for kind in texts),
        d.runs.iteration[run].tolist(),
        *([_speedup(value) for value in bounds.tolist()] for bounds in (low[order], high[order])),
        *([_short(value) for value in values.tolist()] for values in numbers),
    ]
    return {
        "comparisons": [{"name": c.name, "role": c.role.value} for c in comparisons],
        "names": names,
        "points": [list(row) for row in zip(*columns, strict=True)],
        "bins": BIN_EDGES,
        "fewest": MINIMUM_PAIRS,
    }


def _places(texts: Texts, names: Sequence[str]) -> list[int | None]:
    """The index of each text in `names`, None where it is empty."""
    index = {name: at for at, name in enumerate(names)}
    return [None if code < 0 else index.get(texts.names[code]) for code in texts.codes.tolist()]


def _speedup(value: float) -> float | None:
    """As `_short`, but exact where rounding would change its bin, or whether it is above 1."""
    rounded = _short(value)
    crosses = rounded is not None and any(min(rounded, value) <= edge <= max(rounded, value) for edge in BIN_EDGES)
    return value if crosses else rounded


def _short(value: float) -> float | None:
    """Rounded; None if it is unknown or infinite."""
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
