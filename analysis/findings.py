"""What was found, in sentences with numbers: the head of the report. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from analysis import render
from analysis.speedup import BIN_NAMES, LAST_ROW, MINIMUM_DOMAINS, SpeedupRow
from analysis.tables import ConfigurationRow
from analysis.truth import TOLERANCE, TruthRow

NOISE_ROW = ("BL2", "BL")
"""Two configurations that are the same: what differs between them is noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One comparison in words."""

    name: str
    verdict: str
    """`faster`, `slower`, `no difference shown`, `within the noise floor`, or `too few domains`."""
    sentence: str


def noise_row(rows: Sequence[SpeedupRow]) -> SpeedupRow | None:
    """The A/A row, where the campaign has it."""
    return next((row for row in rows if (row.config, row.vs) == NOISE_ROW and row.n), None)


def findings(rows: Sequence[SpeedupRow]) -> list[Finding]:
    """One finding per row with pairs, except the noise floor and the warm-up."""
    noise = noise_row(rows)
    found = []
    for row in rows:
        if row.n == 0 or (row.config, row.vs) in (NOISE_ROW, LAST_ROW):
            continue
        domains = f"{row.domains} {'domain' if row.domains == 1 else 'domains'}"
        sentence = (
            f"{row.config} was faster than {row.vs} in {render.percent_interval(row.plus)} % of {row.n} "
            f"{'run' if row.n == 1 else 'runs'} ({domains}); median speed-up {render.median_interval(row.median)}."
        )
        found.append(Finding(name=f"{row.config} / {row.vs}", verdict=verdict(row, noise), sentence=sentence))
    return found


def verdict(row: SpeedupRow, noise: SpeedupRow | None) -> str:
    """Whether the interval of the median tells the speed-up from 1, and from that of two equal configurations."""
    low, high = row.median.low, row.median.high
    if low is None or high is None:
        return "too few domains"
    if low <= 1 <= high:
        return "no difference shown"
    if noise and noise.median.low is not None and noise.median.high is not None:
        overlap = low <= noise.median.high and high >= noise.median.low
        if overlap:
            return "within the noise floor"
    return "faster" if low > 1 else "slower"


def noise_sentence(rows: Sequence[SpeedupRow]) -> str:
    """How far two equal configurations differ."""
    row = noise_row(rows)
    if row is None:
        return "This campaign has no A/A row (BL2 against BL): nothing here says how much of a difference is noise."
    near = sum(share.count for name, share in zip(BIN_NAMES, row.bins, strict=True) if name in ("0.9-1.0", "1.0-1.1"))
    return (
        f"Noise floor: two identical configurations (BL2 and BL) were within 10 % of each other in {near} of {row.n} "
        f"measurement runs; their median speed-up is {render.median_interval(row.median)}. Read every other row "
        "against this one."
    )


def outcome_sentence(states: Sequence[ConfigurationRow]) -> str:
    """How many of the planned downloads came to what."""
    planned = sum(row.planned for row in states)
    ok, failed = sum(row.ok for row in states), sum(row.failed for row in states)
    censored, mismatched = sum(row.censored for row in states), sum(row.mismatched for row in states)
    void, bound = sum(row.void for row in states), sum(row.cpu_bound for row in states)
    text = f"{ok} of {planned} planned downloads ({100 * ok / max(planned, 1):.1f} %) ended well"
    text += f"; {failed} failed, {censored} hit their budget (censored)"
    text += f", the treatment of {mismatched} was not accepted (why is below)"
    text += f". {void} more were in void measurement runs, which were repeated."
    if bound:
        text += f" In {bound} the client used more than 70 % of a core: it may have been the limit itself."
    return text


def truth_sentence(rows: Sequence[TruthRow]) -> str | None:
    """How well measured times on clean paths fit the model; None without such paths."""
    asserted = [row for row in rows if row.within is not None]
    if not asserted:
        return None
    within = sum(row.within is True for row in asserted)
    ratios = sorted(row.ratio for row in asserted if row.ratio is not None)
    return (
        f"Expected against measured: on clean lab paths {within} of {len(asserted)} median download times are within "
        f"{100 * TOLERANCE:.0f} % of the model (measured / expected from {ratios[0]:.3f} to {ratios[-1]:.3f})."
    )


def interval_note(rows: Sequence[SpeedupRow]) -> str | None:
    """Says why there are no intervals, where that is so."""
    if any(0 < row.domains < MINIMUM_DOMAINS for row in rows):
        return f"Rows from fewer than {MINIMUM_DOMAINS} domains have no interval: read n, and conclude nothing."
    return None
