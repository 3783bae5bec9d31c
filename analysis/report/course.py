"""The course of a campaign in sentences and tables: the order of its downloads, and where it stopped early. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from analysis.measures.order import MINIMUM_RUNS, OrderEffect, OrderEffects
from analysis.measures.stopping import StoppingOutcome
from core.sequential import Interval

_SIGNIFICANT = 0.05
"""Level of the tests of order."""


def order_sentence(effects: OrderEffects) -> str:
    """Whether position and predecessor show in the times."""
    if effects.runs < MINIMUM_RUNS:
        return f"Order: with fewer than {MINIMUM_RUNS} measurement runs, no test of position and predecessor."
    parts = [_effect_words("position", effects.position), _effect_words("predecessor", effects.predecessor)]
    return f"Order, tested in {effects.runs} measurement runs: {'; '.join(parts)}."


def _effect_words(name: str, effect: OrderEffect) -> str:
    if effect.p is None:
        return f"the effect of the {name} cannot be told from that of the configuration, as the order hardly varies"
    finding = f"the {name} has an effect" if effect.p < _SIGNIFICANT else f"no effect of the {name} found"
    slowest = max(effect.medians, key=lambda key: effect.medians[key])
    fastest = min(effect.medians, key=lambda key: effect.medians[key])
    after = "after " if name == "predecessor" else "position "
    return (
        f"{finding} (p {_p(effect.p)}; median time {after}{fastest} {_percent(effect.medians[fastest])}, "
        f"{after}{slowest} {_percent(effect.medians[slowest])})"
    )


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"= {value:.3f}"


def _percent(factor: float) -> str:
    return f"{100 * (factor - 1):+.1f} %"


def order_cells(effects: OrderEffects) -> list[list[str]]:
    """Heading and rows: the median of each position and predecessor."""
    cells = [["order", "downloads", "median time against expected"]]
    for words, effect in (("position", effects.position), ("after", effects.predecessor)):
        cells += [[f"{words} {n}", str(effect.counts[n]), _percent(value)] for n, value in effect.medians.items()]
    return cells


def stopping_sentences(stoppings: Sequence[StoppingOutcome]) -> list[str]:
    """Whether a campaign with a rule to stop early did so, and which intervals hold then."""
    sentences = []
    for one in stoppings:
        rule = " and ".join(f"{quantity.value} {width:g}" for quantity, width in one.rule.items())
        runs = f"{one.recorded_runs} of {one.planned_runs} planned measurement runs"
        if one.early:
            sentence = f"{one.vantage} stopped early, after {runs}: all intervals were within {rule} (until_ci)."
        elif one.reached:
            sentence = (
                f"{one.vantage} measured its whole plan; with its end all intervals were within {rule} (until_ci)."
            )
        else:
            wide = ", ".join(row.comparison for row in one.rows if not row.meets) or "none"
            sentence = f"{one.vantage} did not reach intervals within {rule} (until_ci) in {runs}; wider: {wide}."
        late = [row.comparison for row in one.rows if not row.meets] if one.reached else []
        if late:
            sentence += f" Without the downloads that inspection rejected, {', '.join(late)} would be wider."
        sentences.append(sentence)
    if any(one.early for one in stoppings):
        sentences.append(
            "As the data decided when to stop, the intervals of Table 2 do not hold at 95 % there. The anytime-valid "
            "ones (confidence sequences, one step per domain and vantage point) do."
        )
    return sentences


def stopping_cells(stoppings: Sequence[StoppingOutcome]) -> list[list[str]]:
    """Heading and rows: the anytime-valid intervals."""
    cells = [["vantage point", "comparison", "domains", "median speed-up", "share faster", "narrow enough"]]
    for one in stoppings:
        for row in one.rows:
            ends = [_ends(row.median, 3), _ends(row.share, 2)]
            cells.append([one.vantage, row.comparison, str(row.domains), *ends, "yes" if row.meets else "no"])
    return cells


def _ends(interval: Interval, digits: int) -> str:
    high = "∞" if math.isinf(interval.high) else f"{interval.high:.{digits}f}"
    return f"[{interval.low:.{digits}f}, {high}]"
