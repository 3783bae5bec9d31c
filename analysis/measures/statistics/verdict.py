"""The verdict about one comparison, from its test, its interval and the noise floor. Pure."""

from __future__ import annotations

import math
from enum import StrEnum

SIGNIFICANCE = 0.05
LEAST_MARGIN = math.log(1.02)
"""A difference of less than 2 % is never called, however certain it is, and counts as none (`equivalent`)."""


class Verdict(StrEnum):
    """What the data say about a comparison. The vocabulary is closed."""

    FASTER = "faster"
    """q is below 0.05, and the interval of the median lies above the margin."""
    SLOWER = "slower"
    """q is below 0.05, and the interval lies below 1 / the margin."""
    EQUIVALENT = "equivalent"
    """Two one-sided tests reject that the speed-up is 2 % or more away from 1, as ranks and as medians."""
    UNDECIDED = "undecided"
    """None of these: more data may tell."""


def verdict(
    *,
    q: float,
    interval: tuple[float, float] | None,
    inner: tuple[float, float] | None,
    p_equivalence: float,
    margin: float,
) -> Verdict:
    """The verdict; too few domains for an interval are undecided.

    Args:
        q: q-value of the signed-rank test.
        interval: the 95 % interval of the median log speed-up.
        inner: its 90 % interval: within 2 %, two one-sided sign tests at 5 % show equivalence.
        p_equivalence: of two one-sided signed-rank tests at 2 %. Both are needed: the median does not see that one
            domain of four is much faster. A larger noise floor does not make large differences equal.
        margin: the least difference that is called, in log units.
    """
    if interval is None or inner is None:
        return Verdict.UNDECIDED
    if q < SIGNIFICANCE and interval[0] > margin:
        return Verdict.FASTER
    if q < SIGNIFICANCE and interval[1] < -margin:
        return Verdict.SLOWER
    within = inner[0] > -LEAST_MARGIN and inner[1] < LEAST_MARGIN
    return Verdict.EQUIVALENT if within and p_equivalence < SIGNIFICANCE else Verdict.UNDECIDED
