"""The verdict about one comparison, from its test, its interval and the noise floor. Pure."""

from __future__ import annotations

import math
from enum import StrEnum

import numpy as np

from analysis.measures.statistics.clusters import Floats

SIGNIFICANCE = 0.05
LEAST_MARGIN = math.log(1.02)
"""A difference of less than 2 % is never called, however certain it is."""


class Verdict(StrEnum):
    """What the data say about a comparison. The vocabulary is closed."""

    FASTER = "faster"
    """q is below 0.05, and the interval of the median lies above the margin."""
    SLOWER = "slower"
    """q is below 0.05, and the interval lies below 1 / the margin."""
    EQUIVALENT = "equivalent"
    """Two one-sided tests reject that the median lies outside the margin."""
    UNDECIDED = "undecided"
    """None of these: more data may tell."""


def equivalence(low: Floats, high: Floats, margin: float) -> float:
    """The p-value of two one-sided sign tests (D. J. Schuirmann, 1987): does the median lie within -margin to +margin?

    Args:
        low: lower bounds of the log speed-ups of domains; where one is known, `low == high`.
        high: upper bounds.
        margin: in log units, above 0.
    """
    from scipy.special import bdtr

    n = len(low)
    if n == 0:
        return 1.0
    not_below, not_above = int(np.count_nonzero(low <= -margin)), int(np.count_nonzero(high >= margin))
    return float(bdtr(max(not_below, not_above), n, 0.5))


def verdict(*, q: float, interval: tuple[float, float] | None, p_equivalence: float, margin: float) -> Verdict:
    """The verdict.

    Args:
        q: q-value of the signed-rank test.
        interval: of the median log speed-up; None with too few domains, which are never called.
        p_equivalence: of `equivalence` with the same margin.
        margin: in log units.
    """
    if interval is None:
        return Verdict.UNDECIDED
    low, high = interval
    if q < SIGNIFICANCE and low > margin:
        return Verdict.FASTER
    if q < SIGNIFICANCE and high < -margin:
        return Verdict.SLOWER
    return Verdict.EQUIVALENT if p_equivalence < SIGNIFICANCE else Verdict.UNDECIDED
