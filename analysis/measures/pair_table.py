"""The pairs of comparisons as an Arrow table, `pairs.parquet`: what the rows of Table 2 are made from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analysis.measures import costs
from analysis.measures.columns import Codes, Texts
from analysis.measures.dataset import Dataset
from analysis.measures.pairs import ABSENT, Samples, considered, pair
from analysis.measures.rows import Metric
from analysis.measures.selection import DEFAULT, Selection
from core.domain import Comparison, Role
from core.errors import UsageError, use_one_of

SIDE_COLUMNS = ("handshake_s", "answer_s", "first_byte_s", "last_byte_s", "limiter")

COLUMNS: Mapping[str, str] = {
    "comparison": "Name of the comparison, a row of Table 2.",
    "role": "Its purpose, see the glossary.",
    "config": "The configuration.",
    "vs": "The reference.",
    "run": "The measurement run: `run` in `downloads.parquet` (of several folders, in each its own numbers).",
    "vantage": "Vantage point.",
    "iteration": "From 1.",
    "domain": "The unit of tests and intervals.",
    "provider": "Provider of the reference's server; where there is none, of the configuration's.",
    "config_row": "Row of the configuration's download in `downloads.parquet`, from 0 (of several folders one after "
    "the other); empty without one.",
    "vs_row": "The same of the reference's.",
    **{
        f"{side}_{column}": meaning
        for side, name in (("config", "the configuration's"), ("vs", "the reference's"))
        for column, meaning in (
            ("handshake_s", f"From the start to the end of {name} handshake (TCP with TLS, or QUIC)."),
            ("answer_s", f"From the start to the first packet of {name} answer (`time_to_answer`)."),
            ("first_byte_s", f"From the start to {name} first body byte, with TCP of a whole TLS record."),
            ("last_byte_s", f"From the start to {name} last body byte."),
            ("limiter", f"What limited {name} download (`Limiter`); empty without a capture."),
        )
    },
    "speedup": "How many times faster the configuration was; empty where only bounds are known, or there is no pair.",
    "speedup_low": "Lower bound; equal to `speedup` where that is known, else strictly below it.",
    "speedup_high": "Upper bound.",
    "dose": "`acted`: an option took effect; `idle`: none did; empty: unknown, or the options do not tell.",
    "excluded": "Why there is no pair; empty if there is one. One of: not in the run; not planned, known to be "
    "without HTTP/3; failed; treatment not accepted; "
    "treatment unproven; void measurement run; disturbed by the host, with its sign; near the client's ceiling; in a "
    "run with a cache miss, or with an unknown cache state; without a time, or without a mean throughput.",
    "excluded_side": "Whose download that is: `config` or `vs`; of both the configuration's is named.",
}
"""Column -> meaning."""


def unit_of(column: str) -> str:
    """Unit of a column; empty for a ratio, a count or a text."""
    return "s" if column.endswith("_s") else ""


def all_pairs(data: Dataset, *, metric: Metric = Metric.TIME, selection: Selection = DEFAULT) -> pa.Table:
    """A row for each measurement run and comparison of which a download was planned: pairs, and why others are none."""
    known = costs.samples(data, metric=metric, selection=selection)
    read = cache(data.column)  # each comparison takes its rows of the same few columns
    tables = [_considered(data, known, comparison, read) for comparison in data.design.comparisons]
    return pa.concat_tables(tables) if tables else _considered(data, known, Comparison.of("", ""), read).slice(0, 0)


def pair_table(
    data: Dataset, config: str, vs: str, *, metric: Metric = Metric.TIME, selection: Selection = DEFAULT
) -> pa.Table:
    """One row per measurement run in which both downloads count, in the order of their runs; columns as of `COLUMNS`.

    Raises:
        UsageError: there is no such configuration, both are one, or the metric needs KPIs that no folder has.
    """
    present = sorted(data.downloads.configuration.present())
    for name in (config, vs):
        if name not in present:
            where = str(data.folders[0].path)
            raise UsageError(f"unknown configuration {name!r}", where=where, remedy=use_one_of(name, present))
    if config == vs:
        raise UsageError(f"{vs} is compared with itself", where="vs", remedy="name two configurations")
    declared = (c for c in data.design.comparisons if (c.config, c.vs) == (config, vs))
    comparison = next(declared, Comparison.of(config, vs, Role.EFFECT))
    known = costs.samples(data, metric=metric, selection=selection)
    table = _considered(data, known, comparison, cache(data.column))
    return table.filter(pc.is_null(table["excluded"]))


def _considered(
    data: Dataset, samples: Samples, comparison: Comparison, read: Callable[[str], pa.ChunkedArray]
) -> pa.Table:
    """The rows of one comparison; `read` gives a column of `downloads`."""
    d = data.downloads
    sides = considered(samples, comparison.config, comparison.vs)
    pairs = pair(samples, comparison.config, comparison.vs)
    count = len(sides.runs)
    low, high = np.full(count, np.nan), np.full(count, np.nan)
    counted = np.flatnonzero(sides.why.codes < 0)
    low[counted], high[counted] = pairs.low, pairs.high
    rows = {"config": _rows(samples.download, sides.config), "vs": _rows(samples.download, sides.vs)}
    either = np.where(rows["vs"] >= 0, rows["vs"], rows["config"])
    order = np.argsort(d.run[either], kind="stable")
    rows, either, low, high = {n: r[order] for n, r in rows.items()}, either[order], low[order], high[order]
    run = d.run[either]
    why = sides.why[order]
    reasons = len(why.names) // 2
    words = Texts(np.where(why.codes < 0, -1, why.codes % reasons), (*ABSENT, *samples.excluded.names))
    side = Texts(np.where(why.codes < 0, -1, why.codes // reasons), ("config", "vs"))
    acted = samples.acted.get((comparison.config, comparison.vs))
    columns: dict[str, Any] = {
        "comparison": _same(comparison.name, count),
        "role": _same(comparison.role.value, count),
        "config": _same(comparison.config, count),
        "vs": _same(comparison.vs, count),
        "run": read("run").take(pa.array(either)),
        "vantage": _column(d.runs.vantage[run]),
        "iteration": d.runs.iteration[run],
        "domain": _column(d.runs.domain[run]),
        "provider": _column(d.provider[either]),
        **{f"{name}_row": pa.array(at, mask=at < 0) for name, at in rows.items()},
        **{
            f"{name}_{column}": values
            for name, at in rows.items()
            for column, values in _of_side(data, at, read).items()
        },
        "speedup": pa.array(low, mask=np.isnan(low) | (low != high)),
        "speedup_low": pa.array(low, mask=np.isnan(low)),
        "speedup_high": pa.array(high, mask=np.isnan(high)),
        "dose": _same(None, count) if acted is None else _column(acted[sides.runs[order]]),
        "excluded": _column(words),
        "excluded_side": _column(side),
    }
    table = pa.table({name: columns[name] for name in COLUMNS})
    units = [{"unit": unit} if (unit := unit_of(name)) else None for name in COLUMNS]
    return table.cast(pa.schema([field.with_metadata(unit) for field, unit in zip(table.schema, units, strict=True)]))


def _rows(download: Codes, at: Codes) -> Codes:
    """The row of each download, -1 without one."""
    return np.where(at < 0, -1, download[at]).astype(np.int64)


def _of_side(data: Dataset, rows: Codes, read: Callable[[str], pa.ChunkedArray]) -> dict[str, Any]:
    """`SIDE_COLUMNS` of downloads."""
    at = pa.array(rows, mask=rows < 0)
    names = ("connect_s", "tls_s", "first_byte_s", "last_byte_s")
    connect_s, tls_s, first_byte_s, last_byte_s = (read(name).take(at).cast(pa.float64()) for name in names)
    is_quic = pa.array(data.downloads.transport.are("quic")).take(at)

    def of_capture(name: str, kind: pa.DataType) -> pa.Array:
        return read(name).take(at).cast(kind) if name in data.kpi_units else pa.nulls(len(rows), kind)

    handshake_s, answer_s = pc.if_else(is_quic, connect_s, tls_s), of_capture(costs.ANSWER_KPI, pa.float64())
    sides = (handshake_s, answer_s, first_byte_s, last_byte_s, of_capture("limiter", pa.string()))
    return dict(zip(SIDE_COLUMNS, sides, strict=True))


def _same(value: str | None, count: int) -> pa.Array:
    return pa.nulls(count, pa.string()) if value is None else pa.repeat(value, count)


def _column(texts: Texts) -> pa.Array:
    return pa.array(texts.names, type=pa.string()).take(pa.array(texts.codes, mask=texts.codes < 0))
