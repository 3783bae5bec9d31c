"""The pairs of one comparison as an Arrow table: what a row of Table 2 is made from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from analysis.measures import costs
from analysis.measures.columns import Texts
from analysis.measures.dataset import Dataset
from analysis.measures.pairs import Metric, pair
from analysis.measures.selection import DEFAULT, Selection
from core.errors import UsageError, use_one_of

if TYPE_CHECKING:
    import pyarrow as pa


def pair_table(
    data: Dataset, config: str, vs: str, *, metric: Metric = Metric.TIME, selection: Selection = DEFAULT
) -> pa.Table:
    """One row per measurement run in which both downloads count, in the order of their runs.

    Its columns: `run`, `vantage`, `iteration`, `domain`, `provider`; `config_row` and `vs_row`, the rows of both
    downloads in `downloads.parquet` (of several folders together: one after the other); `speedup`, null where only
    bounds are known, since a download was censored, and `speedup_low` and `speedup_high`, between which it lies.

    Raises:
        UsageError: there is no such configuration, or the metric needs KPIs that no folder has.
    """
    import pyarrow as pa

    d = data.downloads
    present = sorted(d.configuration.present())
    for name in (config, vs):
        if name not in present:
            where = str(data.folders[0].path)
            raise UsageError(f"unknown configuration {name!r}", where=where, remedy=use_one_of(name, present))
    samples = costs.samples(data, metric=metric, selection=selection)
    pairs = pair(samples, config, vs)
    config_row, vs_row = (samples.download[rows] for rows in (pairs.config, pairs.vs))
    order = np.argsort(d.run[config_row], kind="stable")
    config_row, vs_row, low, high = config_row[order], vs_row[order], pairs.low[order], pairs.high[order]
    run = d.run[config_row]
    return pa.table(
        {
            "run": data.column("run").take(pa.array(config_row)),
            "vantage": _column(d.runs.vantage[run]),
            "iteration": d.runs.iteration[run],
            "domain": _column(d.runs.domain[run]),
            "provider": _column(d.provider[config_row]),
            "config_row": config_row.astype(np.int64),
            "vs_row": vs_row.astype(np.int64),
            "speedup": pa.array(low, mask=low != high),
            "speedup_low": low,
            "speedup_high": high,
        }
    )


def _column(texts: Texts) -> pa.Array:
    import pyarrow as pa

    return pa.array(texts.names, type=pa.string()).take(pa.array(texts.codes, mask=texts.codes < 0))
