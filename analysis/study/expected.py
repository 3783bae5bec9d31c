"""Expected values beside measured ones: the only verdict of a study that decides its exit code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from analysis.measures.statistics.intervals import Floats
from analysis.study.flows import Flows
from core.files.study import Cell, Expected, Rule, Selector, Tolerance
from core.files.study_terms import METRICS

ROUNDING = 1e-9
"""Share of a value by which a binary fraction may differ from a decimal one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One expected value of one cell."""

    cell: Cell
    metric: str
    rule: str
    """In words."""
    expected: float | None
    """None where it is another metric of the same repetition."""
    measured: float
    """Mean of the cell; NaN without a repetition that ended well."""
    n: int
    wrong: int
    """Repetitions that differ or are censored, where each must be exact; else 0, or 1 if the mean is outside or, as a
    repetition is censored, not known."""
    censored: int
    """Repetitions of which only a bound is known; the mean is that of the others."""

    @property
    def within(self) -> bool:
        return self.n > 0 and not self.wrong

    @property
    def verdict(self) -> str:
        return "missing" if not self.n and not self.wrong else "within" if self.within else "outside"


COLUMNS = ("metric", "rule", "expected", "measured", "n", "wrong", "censored", "verdict")


def compare(flows: Flows) -> list[Compared]:
    """Each expected value of each cell that the run has."""
    return [row for expected in flows.study.expected for row in _compared(expected, flows)]


def _compared(expected: Expected, flows: Flows) -> Iterator[Compared]:
    rows: tuple[Mapping[str, str], ...] = expected.rows or ({},)
    for metric, rule in expected.rules.items():
        cells = flows.study.cells_of(metric)
        for row in rows:
            selector: Selector = expected.matched(row)
            if expected.table is not None and not row[metric]:
                continue
            for cell in cells:
                if cell.matches(selector):
                    yield _one(flows, cell, metric, rule, float(row[metric]) if expected.table else None)


def _one(flows: Flows, cell: Cell, metric: str, rule: Rule, listed: float | None) -> Compared:
    row, values = flows.rows[metric, cell.key], flows.values(metric, cell)
    wanted = listed or 0.0
    if isinstance(rule, Tolerance):
        words, most = _tolerance(rule), rule.around(wanted) + ROUNDING * abs(wanted)
        wrong = int(row.censored > 0 or (row.n > 0 and not abs(row.mean - wanted) <= most))
    elif isinstance(rule, str) and rule != "exact":
        words, others = f"each repetition's {rule}", flows.values(rule, cell)
        wrong = row.censored + (_differing(values, others) if len(values) == len(others) else len(values))
    else:
        words, wanted = "each repetition", wanted if rule == "exact" else float(rule)
        wrong = row.censored + _differing(values, np.full(len(values), wanted))
    return Compared(
        cell=cell,
        metric=metric,
        rule=words,
        expected=None if rule in METRICS else wanted,
        measured=row.mean,
        n=row.n,
        wrong=wrong,
        censored=row.censored,
    )


def _differing(values: Floats, others: Floats) -> int:
    return int(np.count_nonzero(~np.isclose(values, others, rtol=ROUNDING, atol=0)))


def _tolerance(rule: Tolerance) -> str:
    parts = [f"{rule.percent:g} %"] * bool(rule.percent) + [f"{rule.least:g}"] * bool(rule.least)
    return f"mean within {' or '.join(parts) or '0'}"
