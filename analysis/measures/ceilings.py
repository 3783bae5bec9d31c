"""Whether the client may have been the limit of a download, by the calibration stored with it. Pure.

`environment.json` has, per vantage point, `client_ceilings`: the results of `upshift doctor --calibrate`, and why
a ceiling was stale when the campaign ran (docs/design/host.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from analysis.measures.arrays import Flags, Floats

Numbers = Floats | npt.NDArray[np.int64]

CEILING_SHARE = 0.7
"""Share of its client's ceiling above which a download is flagged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """The ceiling of one client at one vantage point."""

    mbit_s: float | None
    """Highest rate of body bytes [Mbit/s]; None if unknown."""
    fault: str | None = None
    """Why it is unknown."""
    too_low: bool = False
    """Other programs used the CPUs while it was measured."""


NOT_CALIBRATED = Ceiling(mbit_s=None, fault="not calibrated")


def ceiling(environment: Mapping[str, Any] | None, *, vantage: str, client: str) -> Ceiling:
    """The ceiling of a client, from `environment.json`; unknown if anything is missing there."""
    calibration = _within(environment, "vantage_points", vantage, "client_ceilings")
    entry = _within(calibration, "clients", client)
    if not isinstance(entry, Mapping):
        return NOT_CALIBRATED
    rate, stale = entry.get("ceiling_mbit_s"), entry.get("stale")
    if stale:
        changes = stale if isinstance(stale, list) else [stale]
        return Ceiling(mbit_s=None, fault=f"stale: {', '.join(map(str, changes))}")
    if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not rate > 0:
        return Ceiling(mbit_s=None, fault=str(entry.get("fault") or NOT_CALIBRATED.fault))
    return Ceiling(mbit_s=float(rate), too_low=_within(calibration, "too_low") is True)


def _within(document: Any, *names: str) -> Any:
    """A value inside nested JSON objects, None if one of them is missing."""
    for name in names:
        document = document.get(name) if isinstance(document, Mapping) else None
    return document


def delivery_rate(body_bytes: Numbers, first_byte_s: Floats, last_byte_s: Floats) -> Floats:
    """Body bits over the time from the first to the last body byte [Mbit/s], as ceilings are measured; NaN: unknown."""
    known = last_byte_s > first_byte_s  # False where one of them is NaN
    duration_s = np.where(known, last_byte_s - first_byte_s, math.nan)
    found: Floats = body_bytes * 8 / duration_s / 1e6
    return found


def near_ceiling(rates: Floats, highest: Floats) -> Flags:
    """Whether downloads were faster than `CEILING_SHARE` of their client's ceiling [both Mbit/s; NaN: unknown]."""
    known = ~(np.isnan(rates) | np.isnan(highest))
    return np.where(known, rates > CEILING_SHARE * highest, -1).astype(np.int8)
