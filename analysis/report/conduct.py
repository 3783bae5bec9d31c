"""How the campaign was conducted, in words: what order did to the times, and when it stopped. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from analysis.measures.order import MINIMUM_RUNS, Effect, OrderEffects
from analysis.measures.stopping import Stopping
from core.sequential import Interval

_SIGNIFICANT = 0.05


def order_sentence(found: OrderEffects) -> str:
    """Whether position and predecessor show in the times."""
    if found.runs < MINIMUM_RUNS:
        return f"Order: with fewer than {MINIMUM_RUNS} measurement runs, no test of position and predecessor."
    told = [_told("position", found.position), _told("predecessor", found.predecessor)]
    return f"Order, tested in {found.runs} measurement runs: {'; '.join(told)}."


def _told(name: str, effect: Effect) -> str:
    if effect.p is None:
        return f"the effect of the {name} cannot be told from that of the configuration, as the order hardly varies"
    said = f"the {name} has an effect" if effect.p < _SIGNIFICANT else f"no effect of the {name} found"
    slowest = max(effect.medians, key=lambda key: effect.medians[key])
    fastest = min(effect.medians, key=lambda key: effect.medians[key])
    after = "after " if name == "predecessor" else "position "
    return (
        f"{said} (p {_p(effect.p)}; median time {after}{fastest} {_percent(effect.medians[fastest])}, "
        f"{after}{slowest} {_percent(effect.medians[slowest])})"
    )


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"= {value:.3f}"


def _percent(factor: float) -> str:
    return f"{100 * (factor - 1):+.1f} %"


def order_cells(found: OrderEffects) -> list[list[str]]:
    """Heading and rows: the median of each position and predecessor."""
    cells = [["order", "downloads", "median time against expected"]]
    for words, effect in (("position", found.position), ("after", found.predecessor)):
        cells += [[f"{words} {n}", str(effect.counts[n]), _percent(value)] for n, value in effect.medians.items()]
    return cells


def stopping_sentences(found: Sequence[Stopping]) -> list[str]:
    """Whether a campaign with a rule to stop early did so, and which intervals hold then."""
    sentences = []
    for one in found:
        rule = " and ".join(f"{quantity.value} {width:g}" for quantity, width in one.rule.items())
        runs = f"{one.recorded_runs} of {one.planned_runs} planned measurement runs"
        if one.early:
            said = f"{one.vantage} stopped early, after {runs}: all intervals were within {rule} (until_ci)."
        elif one.reached:
            said = f"{one.vantage} measured its whole plan; with its end all intervals were within {rule} (until_ci)."
        else:
            wide = ", ".join(row.comparison for row in one.rows if not row.meets) or "none"
            said = f"{one.vantage} did not reach intervals within {rule} (until_ci) in {runs}; wider: {wide}."
        late = [row.comparison for row in one.rows if not row.meets] if one.reached else []
        if late:
            said += f" Without the downloads that inspection rejected, {', '.join(late)} would be wider."
        sentences.append(said)
    if any(one.early for one in found):
        sentences.append(
            "As the data decided when to stop, the intervals of Table 2 do not hold at 95 % there. The anytime-valid "
            "ones (confidence sequences, one step per domain and vantage point) do."
        )
    return sentences


def stopping_cells(found: Sequence[Stopping]) -> list[list[str]]:
    """Heading and rows: the anytime-valid intervals."""
    cells = [["vantage point", "comparison", "domains", "median speed-up", "share faster", "narrow enough"]]
    for one in found:
        for row in one.rows:
            ends = [_ends(row.median, 3), _ends(row.share, 2)]
            cells.append([one.vantage, row.comparison, str(row.domains), *ends, "yes" if row.meets else "no"])
    return cells


def _ends(interval: Interval, digits: int) -> str:
    high = "∞" if math.isinf(interval.high) else f"{interval.high:.{digits}f}"
    return f"[{interval.low:.{digits}f}, {high}]"
