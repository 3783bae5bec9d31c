"""q-values and verdicts, which depend on all rows of a table: from tests, intervals and noise floors. Pure."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from analysis.measures.rows import Size, SpeedupRow, Split, Unit, Verdict
from analysis.measures.statistics.tests import benjamini_hochberg, benjamini_yekutieli
from core.domain import Role

SIGNIFICANCE = 0.05
DIRECTION_SHARE = 0.8
"""Part of the allowed false discoveries that tests of direction get; the others look at parts of the runs."""
LEAST_MARGIN = math.log(1.02)
"""A difference of less than 2 % counts as none (`equivalent`), and no effect is said to be surely larger than less."""

PROVIDERS_DIFFER = 0.4
"""p-value of the test of providers below which they are the unit: to overlook that they differ costs more coverage than
to mistake it, so a usual level would not do."""

STARVED_SHARE = 0.1
"""Pairs with a client that waited for a CPU, above which a comparison of different clients is not judged. Such waits
cost requests and quiche up to 20 %, and aioquic up to two thirds of its speed (docs/method/limits-of-a-download.md);
the estimates stand up to a quarter of the pairs being wrong."""


def judge(rows: Sequence[SpeedupRow]) -> list[SpeedupRow]:
    """The rows of one table with q-values and verdicts.

    All that the table can say is one family of tests: the direction of each effect that was declared, also without
    pairs, and, with less weight, whether the parts of its runs differ, where they can be compared.

    The margin of an effect is the larger of 2 % and the noise floor's distance from 1, of those noise floors that share
    a configuration with it, or of all if there are none; only rows of the same group count.
    """
    rows = same_units(rows)
    effects = [row for row in rows if row.comparison.role is Role.EFFECT]
    margins = [margin_of(row, [floor for floor in noise_floors(rows) if floor.group == row.group]) for row in effects]
    nearest = [_nearest(row, math.log(margin)) for row, margin in zip(effects, margins, strict=True)]
    direction = [_p_direction(row) for row in effects]
    parts = [p for p, _ in nearest if p is not None]
    # Weighted as by Genovese, Roeder and Wasserman (2006); the weights have the mean 1.
    tests = len(direction) + len(parts)
    weight = DIRECTION_SHARE * tests / len(direction) if parts else 1.0
    p_values = [min(1.0, p / weight) for p in direction]
    p_values += [min(1.0, p * len(parts) / tests / (1 - DIRECTION_SHARE)) for p in parts]
    q_values = list(zip(benjamini_hochberg(p_values), benjamini_yekutieli(p_values), strict=True))
    # The weight may make a q-value smaller than its p-value: then something could be called at more than 5 %.
    of_parts = iter(max(q, p) for (q, _), p in zip(q_values[len(direction) :], parts, strict=True))
    of_direction = [(max(q, p), max(q_by, p)) for (q, q_by), p in zip(q_values, direction, strict=False)]
    judged = iter(
        _judged(row, margin, q, None if p is None else next(of_parts), split)
        for row, margin, q, (p, split) in zip(effects, margins, of_direction, nearest, strict=True)
    )
    return [next(judged) if row.comparison.role is Role.EFFECT else row for row in rows]


def same_units(rows: Sequence[SpeedupRow]) -> list[SpeedupRow]:
    """The rows, of which those with one reference have one unit: providers, if effects of one of them may differ
    between providers (`typical.p_providers`). A noise floor has no effect, so its own test does not count.

    Such rows are read against each other, and an estimate over providers is another quantity than one over domains. By
    a test for each row alone one client was 1.57 times as fast as the reference, another one 1.49 times, and the other
    one was the faster of the two.
    """

    def of(row: SpeedupRow) -> tuple[str, str]:
        return row.group, row.comparison.vs

    effects = [row for row in rows if row.comparison.role is Role.EFFECT]
    differ = {of(row) for row in effects if row.over_providers and _may_differ(row)}
    return [
        dataclasses.replace(row, typical=row.over_providers)
        if row.over_providers and (of(row) in differ or _may_differ(row))
        else row
        for row in rows
    ]


def _may_differ(row: SpeedupRow) -> bool:
    """Whether effects differ between providers by the row's own test."""
    p = row.typical.p_providers
    return p is not None and p < PROVIDERS_DIFFER and row.comparison.role is not Role.NOISE_FLOOR


def _p_direction(row: SpeedupRow) -> float:
    """The signed-rank test's p-value; at least 5 % where the interval over domains holds 1, which is a little wider
    than the test's own. So no row has a direction beside an interval that contradicts it."""
    p, typical = row.p_wilcoxon, row.typical
    if p is None:
        return 1.0
    if typical.unit is Unit.DOMAIN and typical.low is not None and typical.high is not None:
        return max(p, SIGNIFICANCE) if typical.low <= 1.0 <= typical.high else p
    return p


def _nearest(row: SpeedupRow, margin: float) -> tuple[float | None, Split | None]:
    """The split with the smallest p-value of those whose parts show that some targets gain (or lose) and others do not.

    The p-value is multiplied by the number of splits, and 1 if there is none such.
    """
    tested = [(split.p, split) for split in row.splits if split.p is not None]
    telling = [(p, split) for p, split in tested if explains(split, margin)]
    if not telling:
        return (1.0 if tested else None), None
    p, split = min(telling, key=lambda pair: pair[0])
    return min(1.0, p * len(tested)), split


def explains(split: Split, margin: float) -> bool:
    """Whether one part surely changes by more than the margin, and another surely less: its median is within the
    margin, or on the other side.

    Args:
        margin: in log units.
    """
    logs = [
        (_log(part.sure[0]), _log(part.sure[1]), _log(part.median.least or 0.0), _log(part.median.most or 0.0))
        for part in split.parts
        if part.sure is not None
    ]
    up = any(a[0] > margin and b[1] < a[0] and b[3] <= margin for a in logs for b in logs)
    down = any(a[1] < -margin and b[0] > a[1] and b[2] >= -margin for a in logs for b in logs)
    return up or down


def _judged(
    row: SpeedupRow, margin: float, q: tuple[float, float], q_parts: float | None, split: Split | None
) -> SpeedupRow:
    is_busy = row.starved > STARVED_SHARE * row.n
    is_mixed = not is_busy and q_parts is not None and q_parts < SIGNIFICANCE
    typical = _log_ends(row.typical.least, row.typical.most)
    word, size = verdict(
        q=q[0],
        typical=None if typical is None else sum(typical) / 2,
        interval=_log_ends(row.typical.low, row.typical.high),
        over_domains=_log(row.typical.over_domains) if row.typical.over_domains else None,
        inner=_log_ends(row.median.low90, row.median.high90),
        p_equivalence=1.0 if row.p_equivalence is None else row.p_equivalence,
        margin=math.log(margin),
        unit=row.typical.unit,
        is_mixed=is_mixed,
    )
    if is_busy:
        word, size = Verdict.HOST_BUSY, None
    return dataclasses.replace(
        row,
        q_bh=q[0],
        q_by=q[1],
        q_parts=q_parts,
        margin=margin,
        verdict=word,
        size=size,
        split=split if is_mixed else None,
    )


def verdict(
    *,
    q: float,
    typical: float | None,
    interval: tuple[float, float] | None,
    inner: tuple[float, float] | None,
    p_equivalence: float,
    margin: float,
    unit: Unit = Unit.DOMAIN,
    over_domains: float | None = None,
    is_mixed: bool = False,
) -> tuple[Verdict, Size | None]:
    """The verdict, and the size of an effect that has a direction and an interval.

    Args:
        q: q-value of the signed-rank test.
        typical: the typical log speed-up (of bounds, the middle): its sign is the direction.
        interval: its 95 % interval; None with few domains.
        inner: the 90 % interval of the median log speed-up: within 2 %, two one-sided sign tests at 5 % show
            equivalence.
        p_equivalence: of two one-sided signed-rank tests at 2 %. Both are needed: the median does not see that one
            domain of four is much faster. A larger noise floor does not make large differences equal.
        margin: how far the interval has to be from 0 for the effect to be surely as large, in log units.
        unit: what counts once in the interval; the direction is tested over domains. Where that is providers, their
            interval has to be within 2 %, too, for equivalence.
        over_domains: the estimate over domains, in log units, where providers are the unit. Where it has another sign
            than `typical`, most domains gain and most providers lose, or the other way round: neither is the direction.
        is_mixed: whether a split shows that some gain (or lose) and others do not.
    """
    if is_mixed:
        return Verdict.MIXED, None
    within = inner is not None and is_within(inner) and (unit is Unit.DOMAIN or interval is None or is_within(interval))
    if within and p_equivalence < SIGNIFICANCE:
        return Verdict.EQUIVALENT, None
    if q >= SIGNIFICANCE or typical is None or typical * (over_domains or 0.0) < 0:
        return Verdict.UNDECIDED, None
    size = None
    if interval is not None:
        size = Size.PERHAPS_LESS
        if interval[0] > margin if typical > 0 else interval[1] < -margin:
            size = Size.AT_LEAST
        elif unit is Unit.PROVIDER and interval[0] <= 0 <= interval[1]:
            size = Size.THESE_PROVIDERS
    return (Verdict.FASTER if typical > 0 else Verdict.SLOWER), size


def is_within(interval: tuple[float, float]) -> bool:
    """Whether an interval, in log units, is between -2 % and 2 %."""
    return interval[0] > -LEAST_MARGIN and interval[1] < LEAST_MARGIN


def noise_floors(rows: Sequence[SpeedupRow]) -> list[SpeedupRow]:
    """The A/A rows that have pairs: two identical configurations, so differences between them are noise."""
    return [row for row in rows if row.comparison.role is Role.NOISE_FLOOR and row.n]


def margin_of(row: SpeedupRow, floors: Sequence[SpeedupRow]) -> float:
    """The least speed-up that is called: 1.02, or how far the noise floors' typical speed-ups are from 1."""
    spreads = [LEAST_MARGIN]
    for floor in floors_of(row, floors):
        for end in (floor.typical.least, floor.typical.most):
            spreads.append(abs(math.log(end)) if end else math.inf)
    return math.exp(max(spreads))


def floors_of(row: SpeedupRow, floors: Sequence[SpeedupRow]) -> list[SpeedupRow]:
    """The noise floors of a row: those that share a configuration with it, or all if there are none."""
    own = [floor for floor in floors if _sides(floor) & _sides(row)]
    return own or list(floors)


def _sides(row: SpeedupRow) -> set[str]:
    return {row.comparison.config, row.comparison.vs}


def _log_ends(low: float | None, high: float | None) -> tuple[float, float] | None:
    return None if low is None or high is None else (_log(low), _log(high))


def _log(value: float) -> float:
    return math.log(value) if value else -math.inf
