"""The cost of each download, and why some are left out of speed-ups: what Table 2 is made from."""

from __future__ import annotations

import math

import numpy as np

from analysis.measures.columns import Codes, Downloads, Floats, Mask, Texts, rows_by_code
from analysis.measures.dataset import Dataset
from analysis.measures.pairs import Metric, Samples
from analysis.measures.selection import DEFAULT, Selection, runs_without_hits
from core.domain import Failure, Outcome
from core.errors import UsageError

THROUGHPUT_KPI = "mean_throughput"


def samples(dataset: Dataset, *, metric: Metric, selection: Selection = DEFAULT) -> Samples:
    """The cost of each download: the download time [s], or 1 / mean throughput [s/Mbit]; infinite if it failed.

    Raises:
        UsageError: the metric needs KPIs that no folder has.
    """
    if metric is Metric.THROUGHPUT and THROUGHPUT_KPI not in dataset.kpi_units:
        raise UsageError(
            f"no download here has the KPI {THROUGHPUT_KPI}",
            where="--metric throughput",
            remedy="finish the campaign with `upshift run`, or use --metric time",
        )
    d = dataset.downloads
    if metric is Metric.TIME:
        low, high = times(d)
        unknown = "without a time"
    else:
        low, high = _slowness(d, dataset.kpi(THROUGHPUT_KPI))
        unknown = "without a mean throughput"
    has_failed = d.outcome.are(Outcome.FAILED)
    low[has_failed] = high[has_failed] = math.inf
    # What has nothing to do with the configuration keeps a download out also by intention to treat.
    apart = _apart_from_treatment(d, selection, unknown, np.isnan(low))
    by_domain = np.argsort(d.runs.domain.codes, kind="stable")
    number = np.empty(len(by_domain), dtype=np.int32)
    number[by_domain] = np.arange(len(by_domain), dtype=np.int32)
    run = number[d.run]
    order = _by_configuration(d, run)
    run = run[order]
    return Samples(
        download=order,
        run=run,
        domain=d.runs.domain[by_domain],
        configuration=d.configuration[order],
        low=low[order],
        high=high[order],
        excluded=_excluded(d, selection, has_failed, apart)[order],
        planned=(apart.codes < 0)[order],
        larger={"AS": d.asn[order], "vantage": d.runs.vantage[by_domain][run]},
    )


def _by_configuration(d: Downloads, run: Codes) -> Codes:
    """The downloads in order of configuration and run; a run has each configuration at most once."""
    order = np.empty(len(d), dtype=np.int32)
    at = np.empty(len(d.runs), dtype=np.int32)
    first = 0
    for members in rows_by_code(d.configuration.codes, len(d.configuration.names)):
        at[:] = -1
        at[run[members]] = members
        order[first : first + len(members)] = at[at >= 0]
        first += len(members)
    return order


def _excluded(d: Downloads, selection: Selection, has_failed: Mask, apart: Texts) -> Texts:
    """Why each download is left out, the first reason that holds."""
    reasons = _Reasons(len(d))
    reasons.add(has_failed, "failed")
    disturbed = d.is_void | (d.host_disturbance.codes >= 0)
    reasons.add(~disturbed & (d.treatment_ok == 0), "treatment not accepted")
    if not selection.unproven:
        reasons.add(~disturbed & (d.treatment_ok < 0), "treatment unproven")
    reasons.add_all(apart)
    return reasons.texts()


def _apart_from_treatment(d: Downloads, selection: Selection, unknown: str, is_unknown: Mask) -> Texts:
    """Why a download is in no pair at all, neither as treated nor as planned; empty if it may be."""
    reasons = _Reasons(len(d))
    reasons.add(d.is_void, "void measurement run")
    reasons.add_all(
        Texts(d.host_disturbance.codes, tuple(f"disturbed by the host ({name})" for name in d.host_disturbance.names))
    )
    if selection.only_hits:
        reasons.add_all(runs_without_hits(d)[d.run])
    if selection.unlimited_only:
        reasons.add(d.near_ceiling == 1, "near the client's ceiling")
    reasons.add(is_unknown, unknown)
    return reasons.texts()


class _Reasons:
    """The first of several reasons for each download."""

    def __init__(self, rows: int) -> None:
        self._codes: Codes = np.full(rows, -1, dtype=np.int32)
        self._names: list[str] = []

    def add(self, rows: Mask, name: str) -> None:
        self._codes[rows & (self._codes < 0)] = len(self._names)
        self._names.append(name)

    def add_all(self, reasons: Texts) -> None:
        new = (reasons.codes >= 0) & (self._codes < 0)
        self._codes[new] = reasons.codes[new].astype(np.int32) + len(self._names)
        self._names += reasons.names

    def texts(self) -> Texts:
        return Texts(self._codes.astype(np.min_scalar_type(-len(self._names) - 1)), tuple(self._names))


def times(d: Downloads) -> tuple[Floats, Floats]:
    """Lower and upper bounds of the download times [s], as `Download.time_bounds_s`; NaN: unknown."""
    low = d.last_byte_s.copy()
    with np.errstate(invalid="ignore"):
        low[~((low > 0) & (low < math.inf))] = math.nan
    high = low.copy()
    censored = np.flatnonzero(d.outcome.are(Outcome.CENSORED))
    seen, budget_s = np.nan_to_num(d.last_byte_s[censored], nan=0.0, posinf=math.inf), d.budget_s[censored]
    # The byte budget ends a download at its last byte, the time budget at the budget, even if data stopped before.
    low[censored] = np.where(d.failure[censored].are(Failure.BYTE_BUDGET), seen, np.maximum(seen, budget_s))
    high[censored] = math.inf
    return low, high


def _slowness(d: Downloads, throughput: Floats) -> tuple[Floats, Floats]:
    with np.errstate(divide="ignore", invalid="ignore"):
        slowness = np.where(throughput > 0, 1 / throughput, math.nan)
    is_censored = d.outcome.are(Outcome.CENSORED)
    # The throughput of the unseen part has no bound.
    return np.where(is_censored, 0.0, slowness), np.where(is_censored, math.inf, slowness)
