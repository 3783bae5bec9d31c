"""The cost of each download, and why some are left out of speed-ups: what Table 2 is made from."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from analysis.captures.limiter import Limiter
from analysis.measures.columns import Codes, Downloads, Flags, Floats, Mask, Texts, rows_by_code
from analysis.measures.dataset import Dataset, finite
from analysis.measures.pairs import Samples
from analysis.measures.rows import Metric, SplitBy
from analysis.measures.selection import DEFAULT, Selection, runs_without_hits
from core.domain import Comparison, Dose, Failure, Outcome, Role, Transport
from core.errors import UsageError

THROUGHPUT_KPI = "mean_throughput"

ANSWER_KPI = "time_to_answer"


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
    limiter, acted = _splits(dataset)
    at_byte = d.ended_at_byte & (metric is Metric.TIME) & (low > 0)
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
        at_byte=at_byte[order],
        splits={SplitBy.LIMITER: limiter, SplitBy.PROVIDER: d.provider},
        twins=_twins(dataset.design.comparisons),
        acted={sides: flags[by_domain] for sides, flags in acted.items()},
        durations=_durations(dataset),
        quic=frozenset(d.configuration[d.transport.are(Transport.QUIC)].present()),
        without_http3=dataset.design.without_http3,
        client=d.client,
        starved=d.starved == 1,
    )


def _twins(comparisons: Iterable[Comparison]) -> dict[str, str]:
    """Configuration -> its partner in a noise floor."""
    floors = [(c.config, c.vs) for c in comparisons if c.role is Role.NOISE_FLOOR]
    return dict(pair for config, vs in floors for pair in ((config, vs), (vs, config)))


def _durations(dataset: Dataset) -> dict[str, npt.NDArray[np.float32]]:
    """How long handshake and transfer of each download that is ok took [s]; nothing where all have one transport.

    The transfer begins with the answer's first packet, not with the client's first byte: TLS gives a client whole
    records of up to 16 KiB (RFC 8446, section 5.1), which may take a round trip more than their first packet, and QUIC
    single packets.
    """
    d = dataset.downloads
    if len(d.transport.present()) < 2:
        return {}
    times = {name: np.full(len(d), math.nan, dtype=np.float32) for name in ("handshake", "transfer")}
    is_ok, is_quic = d.outcome.are(Outcome.OK), d.transport.are(Transport.QUIC)
    for rows, (connect_s, tls_s, first_s) in dataset.kpi_numbers("connect_s", "tls_s", ANSWER_KPI):
        with np.errstate(invalid="ignore"):
            durations = np.where(is_quic[rows], connect_s, tls_s), d.last_byte_s[rows] - first_s
        for values, took in zip(times.values(), durations, strict=True):
            values[rows] = np.where(is_ok[rows], took, math.nan)
    return times


def _splits(dataset: Dataset) -> tuple[Texts, dict[tuple[str, str], Texts]]:
    """What limited each download; and for each effect whose options define when they took effect, whether one of them
    did in each run."""
    d, design = dataset.downloads, dataset.design
    effects = {
        (c.config, c.vs): doses for c in design.comparisons if c.role is Role.EFFECT if (doses := design.dose_of(c))
    }
    of_download = {dose: np.full(len(d), -1, dtype=np.int8) for doses in effects.values() for dose in doses}
    limiter = np.full(len(d), -1, dtype=np.int8)
    names = sorted({"limiter", *(dose.kpi for dose in of_download)} & set(dataset.kpi_units))
    for rows, columns in dataset.kpi_columns(*names) if names else ():
        values = dict(zip(names, columns, strict=True))
        if "limiter" in values:
            limiter[rows] = limiter_codes(values["limiter"])
        for dose, flags in of_download.items():
            if dose.kpi in values:
                flags[rows] = dose_flags(values[dose.kpi], dose)
    acted = {}
    for sides, doses in effects.items():
        states = did_act([_of_run(of_download[dose], d, name) for dose in doses for name in sides])
        acted[sides] = Texts(states, ("idle", "acted"))
    return Texts(limiter, tuple(map(str, Limiter))), acted


def limiter_codes(verdicts: pa.Array) -> Codes:
    """The index of each verdict in `Limiter`; -1 for an empty one, or of a newer version."""
    names, index = encoded(verdicts)
    known = [str(limiter) for limiter in Limiter]
    codes: Codes = np.array([known.index(name) if name in known else -1 for name in [*names.to_pylist(), None]])[index]
    return codes


def encoded(texts: pa.Array) -> tuple[pa.Array, Codes]:
    """Distinct texts, and the index of each row's; for an empty one, their number."""
    coded = texts if pa.types.is_dictionary(texts.type) else texts.cast(pa.string()).dictionary_encode()
    return coded.dictionary, coded.indices.fill_null(len(coded.dictionary)).to_numpy()


def dose_flags(column: pa.Array, dose: Dose) -> Flags:
    """Whether an option took effect, -1 where the KPI is missing, or says that it is unknown."""
    if dose.equals is not None:
        names, index = encoded(column)
        did = [-1 if name == Limiter.UNKNOWN else name == dose.equals for name in names.to_pylist()]
        flags: Flags = np.array([*did, -1], dtype=np.int8)[index]
        return flags
    values = finite(column)
    return np.where(np.isnan(values), -1, values > dose.above).astype(np.int8)


def _of_run(flags: Flags, d: Downloads, configuration: str) -> Flags:
    """The flag of a configuration's download in each run, -1 without one."""
    by_run = np.full(len(d.runs), -1, dtype=np.int8)
    rows = np.flatnonzero(d.configuration.are(configuration))
    by_run[d.run[rows]] = flags[rows]
    return by_run


def did_act(flags: Sequence[Flags]) -> Flags:
    """Whether one of the options took effect in each run; -1 if that is unknown for one of them.

    Args:
        flags: whether one option took effect on one side of each run. Both sides are checked, as either may be the one
            with the option; and where window scaling is off, the small window limits.
    """
    most, least = np.max(flags, axis=0), np.min(flags, axis=0)
    return np.where(most == 1, 1, least).astype(np.int8)


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
    reasons.add(~d.is_disturbed & (d.treatment_ok == 0), "treatment not accepted")
    if not selection.unproven:
        reasons.add(~d.is_disturbed & (d.treatment_ok < 0), "treatment unproven")
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
