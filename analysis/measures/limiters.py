"""What limited the downloads of each configuration and provider. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analysis.captures.limiter import Limiter
from analysis.measures.columns import Codes, Floats, counts
from analysis.measures.costs import encoded, limiter_codes
from analysis.measures.dataset import Dataset, Record
from analysis.measures.tables import provider_rank
from core.domain import Outcome
from core.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class LimiterRow:
    """Downloads of one configuration from one provider, ok or censored; without warm-ups, void measurement runs, and
    those whose treatment was not accepted."""

    configuration: str
    provider: str
    n: int
    """Downloads with a capture: their columns add up to 1."""
    missing: int
    """Downloads without one."""
    downloads: Mapping[Limiter, float]
    """Limiter -> share of the downloads that it limited; all limiters."""
    time: Mapping[Limiter, float | None]
    """Limiter -> share of the time of an answer, mean of the downloads; all limiters. None where no download has an
    answer. A download may have several limits in turn."""


def limiters(data: Dataset) -> list[LimiterRow]:
    """Rows in the order of the campaign's configurations, then of providers; none if no folder has the KPI.

    Raises:
        UsageError: `limiter_shares` has what is not a JSON object of numbers.
    """
    if "limiter" not in data.kpi_units:
        return []
    d = data.downloads
    sizes = (len(d.configuration.names), len(d.provider.names))
    group = d.configuration.codes.astype(np.int64) * sizes[1] + d.provider.codes
    # Of late clients, too, which speed-ups leave out: what slowed them may be what limited them.
    chosen = ~d.is_warmup & ~d.outcome.are(Outcome.FAILED) & ~d.is_void & (d.treatment_ok != 0)
    planned = np.bincount(group[chosen], minlength=sizes[0] * sizes[1])
    kinds = len(Limiter)
    of_limiter = np.zeros((len(planned), kinds), dtype=np.int64)
    timed = np.zeros(len(planned), dtype=np.int64)
    time = np.zeros((len(planned), kinds))
    for rows, (verdicts, texts) in data.kpi_columns("limiter", "limiter_shares"):
        codes = limiter_codes(verdicts)
        known = np.flatnonzero(chosen[rows] & (codes >= 0))
        groups = group[rows[known]]
        of_limiter += counts((groups, len(planned)), (codes[known], kinds))
        shares, text = _parsed(texts.take(known))
        has_time = np.isfinite(shares).sum(axis=1) > 0
        timed += np.bincount(groups[has_time[text]], minlength=len(planned))
        for index, share in enumerate(np.nan_to_num(shares).T):
            time[:, index] += np.bincount(groups, share[text], minlength=len(planned))
    rows_ = [
        LimiterRow(
            configuration=d.configuration.names[at // sizes[1]],
            provider=d.provider.names[at % sizes[1]],
            n=int(of_limiter[at].sum()),
            missing=int(planned[at] - of_limiter[at].sum()),
            downloads=dict(zip(Limiter, (of_limiter[at] / max(of_limiter[at].sum(), 1)).tolist(), strict=True)),
            time=dict(zip(Limiter, (time[at] / timed[at]).tolist() if timed[at] else [None] * kinds, strict=True)),
        )
        for at in np.flatnonzero(planned).tolist()
    ]
    return sorted(rows_, key=lambda row: (data.design.rank(row.configuration), provider_rank(row.provider)))


def _parsed(texts: pa.Array) -> tuple[Floats, Codes]:
    """The shares in JSON objects, distinct texts x limiters, NaN where one is missing; and the text of each row.

    All texts are parsed at once, as lines: one by one takes a minute per ten million.
    """
    import pyarrow.json

    distinct, text = encoded(texts)
    shares = np.full((len(distinct) + 1, len(Limiter)), math.nan)  # the last one is that of empty rows
    if not len(distinct):
        return shares, text
    lines = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(distinct)]), distinct.cast(pa.string())), "\n")
    schema = pa.schema([(name.value, pa.float64()) for name in Limiter])
    options = pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    try:
        table = pyarrow.json.read_json(pa.BufferReader(lines[0].as_buffer()), parse_options=options)
    except pa.ArrowException:
        table = None
    if table is None or table.num_rows != len(distinct):
        what = "the column limiter_shares has what is not a JSON object of numbers"
        raise UsageError(what, where="downloads.parquet", remedy="make it again with `upshift inspect`")
    for index, name in enumerate(Limiter):
        shares[:-1, index] = table.column(name.value).to_numpy()
    return shares, text


def limiter_of(record: Record) -> Limiter | None:
    """What limited a download; None without a capture, or for a value of a newer version."""
    value = record.kpis.get("limiter")
    return Limiter(value) if value in set(Limiter) else None
