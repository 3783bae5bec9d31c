"""Shares with their intervals, and the groups for which they are computed: the same in all surveys."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from core.terminal import print_line, print_table

if TYPE_CHECKING:
    from rich.console import Console

Z95 = 1.959963984540054
"""The normal quantile of 0.975."""

RANK_BUCKETS = (1_000, 10_000, 100_000, 1_000_000)
"""Upper ends of rank ranges: a survey's groups are 1 to each of them, strata of a target set lie in between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A share with its 95 % interval, all from 0 to 1."""

    count: int
    n: int
    share: float
    low: float
    high: float


def wilson(count: int, n: int, z: float = Z95) -> Share:
    """The Wilson score interval (E. B. Wilson, JASA 22 (1927) 209): valid for shares near 0 and 1, too.

    For n = 0 the share is NaN and the interval 0 to 1.
    """
    if n == 0:
        return Share(count=0, n=0, share=math.nan, low=0.0, high=1.0)
    p = count / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    # Shares of 0 and 1 are exact ends of the interval; floating point would miss them by an ulp.
    low = 0.0 if count == 0 else max(0.0, centre - half)
    high = 1.0 if count == n else min(1.0, centre + half)
    return Share(count=count, n=n, share=p, low=low, high=high)


def plain(share: Share) -> dict[str, Any]:
    """A share as plain data; None if n is 0."""
    return {
        "count": share.count,
        "n": share.n,
        "share": None if math.isnan(share.share) else share.share,
        "low": share.low,
        "high": share.high,
    }


def cell(share: Share, *, digits: int | None = 1) -> str:
    """A share as text: per cent, and the interval with this many decimals (None: no interval)."""
    if share.n == 0:
        return "-"
    if digits is None:
        return f"{share.share * 100:.1f}"
    return f"{share.share * 100:.1f} [{share.low * 100:.{digits}f}-{share.high * 100:.{digits}f}]"


def print_shares(to: Console, title: str, heading: Sequence[str], rows: Iterable[Sequence[str | Share]]) -> None:
    """Prints a table of shares in per cent; the first column is text.

    Depending on the terminal's width, intervals have one decimal, none, or are left out.
    """
    lines = list(rows)
    forms = [
        [list(heading), *([cell(e, digits=digits) if isinstance(e, Share) else e for e in line] for line in lines)]
        for digits in (1, 0, None)
    ]
    if print_table(to, forms, title=title, words=heading[:1]) == len(forms) - 1:
        print_line(to, "95 % intervals: shown in a wider terminal, or with --json.", indent=2)
        to.print()


class Ranked(Protocol):
    """A record that can be grouped."""

    rank: int | None
    provider: str | None


Record = TypeVar("Record", bound=Ranked)


def groups(records: Sequence[Record]) -> Iterator[tuple[str, Sequence[Record]]]:
    """Rank buckets, then providers, each with its records."""
    worst = max((record.rank or 0 for record in records), default=0)
    for previous, end in zip((0, *RANK_BUCKETS), RANK_BUCKETS, strict=False):
        if worst > previous:  # skip a bucket with the same records as the smaller one
            yield f"rank <= {end:,}", [record for record in records if (record.rank or math.inf) <= end]
    for name in sorted({record.provider for record in records if record.provider is not None}):
        yield name, [record for record in records if record.provider == name]


def shares_by_group(
    records: Sequence[Record], everybody: str, counts: Mapping[str, Callable[[Record], bool]]
) -> dict[str, dict[str, Share]]:
    """Group -> share's name -> share: of all records (named `everybody`), of rank buckets, of providers.

    Args:
        counts: share's name -> whether a record counts.
    """
    return {
        name: {share: wilson(sum(map(holds, whole)), len(whole)) for share, holds in counts.items()}
        for name, whole in ((everybody, records), *groups(records))
    }
