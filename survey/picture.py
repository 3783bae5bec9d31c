"""The figures of a survey as one picture: shares per group, and the first breakdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.pictures import COLOURS, INK, canvas
from survey.figures import PAPER, Breakdown, Figures
from survey.shares import Share


def draw(figures: Figures, kind: str) -> bytes:
    """The picture as `svg` or `png` (160 dpi). Reproducible: no date, a fixed salt for ids."""
    with canvas(kind, (11, 4.4)) as (figure, out):
        left, right = figure.subplots(1, 2, gridspec_kw={"width_ratios": (3, 2)})
        _groups(left, figures)
        _breakdown(right, next(iter(figures.breakdowns.values()), None))
        figure.legend(*left.get_legend_handles_labels(), loc="outside lower left", ncols=4, fontsize=8, frameon=False)
        figure.suptitle(figures.title.rstrip(":"), x=0.012, ha="left", fontsize=11)
    return out.getvalue()


def _groups(axis: Any, figures: Figures) -> None:
    """A block of bars per share, one bar per group."""
    names = figures.names
    shown = {group: shares for group, shares in figures.shares.items() if next(iter(shares.values())).n}
    width = 0.8 / max(1, len(shown))
    for number, (group, shares) in enumerate(shown.items()):
        at = [place - 0.4 + width * (number + 0.5) for place in range(len(names))]
        again, colour = divmod(number, len(COLOURS))
        style = {
            "color": COLOURS[colour],
            "hatch": "///" if again else "",
            "label": f"{group} (n = {next(iter(shares.values())).n:,})",
        }
        _bars(axis, at, list(shares.values()), width, style)
    for place, name in enumerate(names):
        if name in figures.paper:
            axis.hlines(figures.paper[name], place - 0.45, place + 0.45, colors=INK, linestyles=":", linewidth=1)
    if figures.paper:
        axis.plot([], [], color=INK, linestyle=":", linewidth=1, label=PAPER)
    axis.set_xticks(range(len(names)), [figures.label(name) for name in names])
    axis.set_ylabel("share [%]")
    axis.set_ylim(0, 105)


def _breakdown(axis: Any, breakdown: Breakdown | None) -> None:
    if breakdown is None:
        axis.set_axis_off()
        return
    shares = list(breakdown.shares.values())
    _bars(axis, list(range(len(shares))), shares, 0.7, {"color": COLOURS[0]})
    for place, share in enumerate(shares):
        axis.text(place, share.high * 100 + 1, f"{share.count:,}", ha="center", fontsize=7)
    names = [breakdown.labels.get(name, name) for name in breakdown.shares]
    axis.set_xticks(range(len(shares)), names, rotation=40, ha="right")
    axis.set_ylim(0, 112)
    axis.set_ylabel(f"share of {breakdown.group} [%]")


def _bars(axis: Any, at: list[float], shares: list[Share], width: float, style: Mapping[str, str]) -> None:
    """Bars with their intervals; no bar if n is 0."""
    shown = [(place, share) for place, share in zip(at, shares, strict=True) if share.n]
    heights = [share.share * 100 for _, share in shown]
    # A share of 0 or 1 is an end of its interval, up to rounding.
    below = [max(0.0, (share.share - share.low) * 100) for _, share in shown]
    above = [max(0.0, (share.high - share.share) * 100) for _, share in shown]
    error = {"ecolor": INK, "capsize": 1.5, "error_kw": {"linewidth": 0.8}}
    axis.bar([place for place, _ in shown], heights, width, yerr=(below, above), **error, **style)
