"""What limited the downloads of each configuration, as the parts of a bar. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from analysis.captures.limiter import Limiter
from analysis.measures.limiters import LimiterRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One configuration, all providers together."""

    configuration: str
    n: int
    """Downloads whose limiter is known."""
    parts: tuple[tuple[Limiter, float, float], ...]
    """Limiter, where its part begins, and how wide it is [%]; only limiters that occur."""


def bars(rows: Sequence[LimiterRow]) -> tuple[list[Bar], list[Limiter]]:
    """One bar per configuration, in order; and the limiters of the legend."""
    groups: dict[str, list[LimiterRow]] = {}
    for row in rows:
        groups.setdefault(row.configuration, []).append(row)
    found = [_bar(name, members) for name, members in groups.items() if any(row.n for row in members)]
    return found, [name for name in Limiter if any(name == part for bar in found for part, _, _ in bar.parts)]


def _bar(configuration: str, rows: Sequence[LimiterRow]) -> Bar:
    n = sum(row.n for row in rows)
    parts = []
    at = 0.0
    for name in Limiter:
        width = 100 * sum(row.n * row.downloads[name] for row in rows) / n
        if width > 0:
            parts.append((name, at, width))
        at += width
    return Bar(configuration=configuration, n=n, parts=tuple(parts))
