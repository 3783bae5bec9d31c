"""q-values and verdicts, which depend on all rows of a table: from tests, intervals and noise floors. Pure."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from analysis.measures.rows import SpeedupRow, Verdict
from analysis.measures.statistics.tests import benjamini_hochberg, benjamini_yekutieli
from core.domain import Role

SIGNIFICANCE = 0.05
LEAST_MARGIN = math.log(1.02)
"""A difference of less than 2 % is never called, however certain it is, and counts as none (`equivalent`)."""


def judge(rows: Sequence[SpeedupRow]) -> list[SpeedupRow]:
    """The rows of one table with q-values and verdicts: every effect that was declared is one test, also without pairs.

    The margin of an effect is the larger of 2 % and the noise floor's distance from 1, of those noise floors that share
    a configuration with it, or of all if there are none; only rows of the same group count.
    """
    effects = [row for row in rows if row.comparison.role is Role.EFFECT]
    p_values = [1.0 if row.p_wilcoxon is None else row.p_wilcoxon for row in effects]
    q_values = zip(benjamini_hochberg(p_values), benjamini_yekutieli(p_values), strict=True)
    judged = []
    for row in rows:
        if row.comparison.role is not Role.EFFECT:
            judged.append(row)
            continue
        q_bh, q_by = next(q_values)
        margin = margin_of(row, [floor for floor in noise_floors(rows) if floor.group == row.group])
        outer = _log_ends(row.median.low, row.median.high)
        inner = _log_ends(row.median.low90, row.median.high90)
        word = verdict(
            q=q_bh,
            interval=outer,
            inner=inner,
            p_equivalence=1.0 if row.p_equivalence is None else row.p_equivalence,
            margin=math.log(margin),
        )
        judged.append(dataclasses.replace(row, q_bh=q_bh, q_by=q_by, margin=margin, verdict=word))
    return judged


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


def noise_floors(rows: Sequence[SpeedupRow]) -> list[SpeedupRow]:
    """The A/A rows that have pairs: two identical configurations, so differences between them are noise."""
    return [row for row in rows if row.comparison.role is Role.NOISE_FLOOR and row.n]


def margin_of(row: SpeedupRow, floors: Sequence[SpeedupRow]) -> float:
    """The least speed-up that is called: 1.02, or how far the noise floors' medians are from 1."""
    own = [floor for floor in floors if _sides(floor) & _sides(row)]
    spreads = [LEAST_MARGIN]
    for floor in own or floors:
        for end in (floor.median.least, floor.median.most):
            spreads.append(abs(math.log(end)) if end else math.inf)
    return math.exp(max(spreads))


def _sides(row: SpeedupRow) -> set[str]:
    return {row.comparison.config, row.comparison.vs}


def _log_ends(low: float | None, high: float | None) -> tuple[float, float] | None:
    if low is None or high is None:
        return None
    return math.log(low) if low else -math.inf, math.log(high)
