"""Whether the client may have been the limit of a download: by its calibration, and by its processor. Pure.

`environment.json` has, per vantage point, `client_ceilings`: the results of `upshift doctor --calibrate`, and why
a ceiling was stale when the campaign ran (docs/design/host.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from analysis.captures.limiter import CPU_LIMIT
from analysis.measures.columns import Ceiling, Flags, Floats, Mask
from core.files import fixed_rates

Numbers = Floats | npt.NDArray[np.int64]

CEILING_SHARE = 0.7
"""Share of its client's ceiling above which a download is flagged."""


_NOT_CALIBRATED = "not calibrated"


def ceiling(environment: Mapping[str, Any] | None, *, vantage: str, client: str) -> Ceiling:
    """The ceiling of a client, from `environment.json`; unknown if anything is missing there.

    Where the host changed during the campaign, the lowest that it had; unknown if one of them is.
    """
    place = _within(environment, "vantage_points", vantage)
    parts = [part for part in _earlier(place).values() if isinstance(part, Mapping)]
    calibrations = [part["client_ceilings"] for part in parts if "client_ceilings" in part]
    all_of_them = [_ceiling(one, client) for one in (_within(place, "client_ceilings"), *calibrations)]
    return min(all_of_them, key=lambda one: -math.inf if one.mbit_s is None else one.mbit_s)


def _ceiling(calibration: Any, client: str) -> Ceiling:
    entry = _within(calibration, "clients", client)
    if not isinstance(entry, Mapping):
        return Ceiling(mbit_s=None, fault=str(_within(calibration, "fault") or _NOT_CALIBRATED))
    rate, stale = entry.get("ceiling_mbit_s"), entry.get("stale")
    if stale:
        changes = stale if isinstance(stale, list) else [stale]
        return Ceiling(mbit_s=None, fault=f"stale: {', '.join(map(str, changes))}")
    if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not rate > 0:
        return Ceiling(mbit_s=None, fault=str(entry.get("fault") or _NOT_CALIBRATED))
    return Ceiling(mbit_s=float(rate), too_low=_within(calibration, "too_low") is True)


def fixed_rate_tables(environment: Mapping[str, Any] | None) -> Iterator[tuple[str, list[list[str]]]]:
    """(vantage point, table of its calibration), for those with transfers; where the host changed, those of before,
    too, each with the time until which it held.
    """
    vantages = _within(environment, "vantage_points")
    for vantage, place in vantages.items() if isinstance(vantages, Mapping) else ():
        for name, part in {vantage: place, **{f"{vantage} {at}": own for at, own in _earlier(place).items()}}.items():
            clients = _within(part, "client_ceilings", "clients")
            cells = fixed_rates.cells(clients) if isinstance(clients, Mapping) else []
            if cells[1:]:
                yield name, cells


def _earlier(place: Any) -> Mapping[str, Any]:
    """`until ...` -> what had other values until then."""
    earlier = _within(place, "earlier")
    return earlier if isinstance(earlier, Mapping) else {}


def _within(document: Any, *names: str) -> Any:
    """A value inside nested JSON objects, None if one of them is missing."""
    for name in names:
        document = document.get(name) if isinstance(document, Mapping) else None
    return document


def delivery_rate(body_bytes: Numbers, first_byte_s: Floats, last_byte_s: Floats) -> Floats:
    """Body bits over the time from the first to the last body byte [Mbit/s], as ceilings are measured; NaN: unknown."""
    known = last_byte_s > first_byte_s  # False where one of them is NaN
    duration_s = np.where(known, last_byte_s - first_byte_s, math.nan)
    rates: Floats = body_bytes * 8 / duration_s / 1e6
    return rates


def near_ceiling(rates: Floats, highest: Floats) -> Flags:
    """Whether downloads were faster than `CEILING_SHARE` of their client's ceiling [both Mbit/s; NaN: unknown]."""
    known = ~(np.isnan(rates) | np.isnan(highest))
    return np.where(known, rates > CEILING_SHARE * highest, -1).astype(np.int8)


RUN_DELAY_LIMIT = 0.25
"""Share of the transfer that a client may wait for a CPU. Measured in the lab (4 MB at 40 Mbit/s and 20 ms, two CPUs)
with 0 to 4 busy loops beside it: on a quiet host 2 to 8 %; up to a quarter, downloads took at most 3.4 % longer, as the
kernel goes on receiving meanwhile; beyond, up to three times as long (aioquic at 90 %, with 7 % of a core)."""

RUN_DELAY_LEAST_S = 0.005
"""Shorter waits never count: client and capture may differ by as much (`analysis.evidence.proof`)."""


def cpu_bound(measured: Mask, ran_s: Floats, cpu_s: Floats) -> Flags:
    """Whether clients used more than `CPU_LIMIT` of a core during the transfer; -1: unknown, or failed.

    Args:
        measured: whether the outcome is ok or censored.
        ran_s: times until it was known: download times, lower bounds of the censored ones; NaN: unknown.
        cpu_s: CPU time within them; NaN: unknown.
    """
    return _above(measured, ran_s, cpu_s, CPU_LIMIT, 0.0)


def starved(measured: Mask, ran_s: Floats, waited_s: Floats) -> Flags:
    """Whether clients waited for a CPU for more than `RUN_DELAY_LIMIT` of the transfer; -1: unknown, or failed.

    The arguments are as those of `cpu_bound`, with the time spent waiting.
    """
    return _above(measured, ran_s, waited_s, RUN_DELAY_LIMIT, RUN_DELAY_LEAST_S)


def _above(measured: Mask, ran_s: Floats, part_s: Floats, limit: float, least_s: float) -> Flags:
    known = measured & (ran_s != 0) & ~np.isnan(ran_s) & ~np.isnan(part_s)
    share = np.divide(part_s, ran_s, out=np.zeros(len(part_s)), where=known)
    return np.where(known, (share > limit) & (part_s > least_s), -1).astype(np.int8)
