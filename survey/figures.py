"""Figures of any survey: shares with their intervals, the groups for which they are computed, and their output as JSON,
as CSV and as printed tables (`survey.charts` draws them)."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TextIO, TypeVar

from core.terminal import console, print_line, print_table

if TYPE_CHECKING:
    from rich.console import Console


Name = TypeVar("Name")

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


def wilson(count: int, n: int, *, effective: float | None = None, z: float = Z95) -> Share:
    """The Wilson score interval (E. B. Wilson, JASA 22 (1927) 209): valid for shares near 0 and 1, too.

    For n = 0 the share is NaN and the interval 0 to 1. It is that of `effective` independent records, or of n.
    """
    if n == 0:
        return Share(count=0, n=0, share=math.nan, low=0.0, high=1.0)
    p, effective = count / n, n if effective is None else effective
    centre = (p + z * z / (2 * effective)) / (1 + z * z / effective)
    half = z / (1 + z * z / effective) * math.sqrt(p * (1 - p) / effective + z * z / (4 * effective * effective))
    # Shares of 0 and 1 are exact ends of the interval; floating point would miss them by an ulp.
    low = 0.0 if count == 0 else max(0.0, centre - half)
    high = 1.0 if count == n else min(1.0, centre + half)
    return Share(count=count, n=n, share=p, low=low, high=high)


def clustered(domains: Iterable[tuple[int, int]]) -> Share:
    """The share of things that come by domain, as the objects of a page do: (count, n) of each domain.

    Wilson's interval with the effective sample size of a ratio of sums over domains (P. S. Kott and D. A. Carr, Journal
    of Official Statistics 13 (1997) 109), and the quantile of Student's t with a degree of freedom per domain but one
    (E. L. Korn and B. I. Graubard, Survey Methodology 24 (1998) 193). If all count or none does, how alike the things
    of a domain are is unknown, and a domain is one record.
    """
    sums = [(count, n) for count, n in domains if n]
    count, n, k = sum(c for c, _ in sums), sum(n for _, n in sums), len(sums)
    effective = float(k)
    if 0 < count < n and k > 1:
        p = count / n
        variance = k / (k - 1) * sum((c - p * m) ** 2 for c, m in sums) / n**2
        effective = min(float(n), p * (1 - p) / variance) if variance else float(n)
    return wilson(count, n, effective=effective, z=student(k - 1) if k > 1 else Z95)


def shares_of(
    things: Iterable[tuple[str, Name]], names: Iterable[Name] = (), *, of: Iterable[str] | None = None
) -> dict[Name, Share]:
    """Name -> its share of things, each a domain and a name: those of `names` first, then the most frequent.

    Results of one domain are alike, so where it has several, intervals are over domains (`clustered`).

    Args:
        of: the domains of all records, where one may have several names, or none.
    """
    pairs = list(things)
    whole = Counter(of if of is not None else (domain for domain, _ in pairs))
    counts = Counter(name for _, name in pairs)
    every = dict.fromkeys((*names, *(name for name, _ in counts.most_common())))
    if len(whole) == whole.total():
        return {name: wilson(counts[name], len(whole)) for name in every}
    by_name: dict[Name, Counter[str]] = defaultdict(Counter)
    for domain, name in pairs:
        by_name[name][domain] += 1
    return {name: clustered((by_name[name][domain], n) for domain, n in whole.items()) for name in every}


def student(degrees: int) -> float:
    """The quantile of 0.975 of Student's t."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees, 0.975))


def plain(share: Share) -> dict[str, Any]:
    """A share as plain data; None if n is 0."""
    return {**asdict(share), "share": None if math.isnan(share.share) else share.share}


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

    domain: str
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


def results_of(records: Sequence[Ranked]) -> str:
    """How many there are, in words: `40 domains`, or `120 results of 40 domains` (of three files of the same ones)."""
    domains = len({record.domain for record in records})
    return f"{len(records):,} " + ("domains" if domains == len(records) else f"results of {domains:,} domains")


def shares_by_group(
    records: Sequence[Record], everybody: str, counts: Mapping[str, Callable[[Record], bool | None]]
) -> dict[str, dict[str, Share]]:
    """Group -> share's name -> share: of all records (named `everybody`), of rank buckets, of providers.

    Args:
        counts: share's name -> whether a record counts; None: it is not known, and the share is of the others.

    Intervals are those of `shares_of`.
    """
    once = len({record.domain for record in records}) == len(records)

    def share(whole: Sequence[Record], holds: Callable[[Record], bool | None]) -> Share:
        if once:  # as `shares_of`, in a fraction of the time
            known = [value for record in whole if (value := holds(record)) is not None]
            return wilson(sum(known), len(known))
        named = ((record.domain, value) for record in whole if (value := holds(record)) is not None)
        return shares_of(named, (True,))[True]

    return {
        name: {called: share(whole, holds) for called, holds in counts.items()}
        for name, whole in ((everybody, records), *groups(records))
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """A total split by category: failures by cause, versions."""

    title: str
    """Heading of its printed table."""
    heading: tuple[str, str]
    """Column headings of the categories, and of their shares."""
    group: str
    """The group in CSV: `all hosts`."""
    shares: Mapping[str, Share]
    labels: Mapping[str, str] = field(default_factory=dict)
    """Category -> its printed name; categories without an entry are printed as they are."""
    shown: bool = True
    """Whether to print it; JSON and CSV always have it."""


PAPER = "the ANRW 2023 paper"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Summary of a survey's records."""

    title: str
    """The printed sentence above the table, which says what the shares are of."""
    counts: Mapping[str, int]
    """`domains`, and what else was counted."""
    shares: Mapping[str, Mapping[str, Share]]
    """Group (all, rank buckets, providers) -> share's name -> share."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Share's name -> its printed name; names without an entry are printed as they are."""
    lower_bounds: Collection[str] = ()
    """Names of shares that are at least so large; the high ends of their intervals are those of what is possible."""
    paper: Mapping[str, float] = field(default_factory=dict)
    """Share's name -> its value in a paper [%]."""
    paper_name: str = PAPER
    """That paper, as a row of the table."""
    breakdowns: Mapping[str, Breakdown] = field(default_factory=dict)
    singles: Mapping[str, Share] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    """Further plain data for JSON."""
    notes: Sequence[str] = ()
    """Sentences printed after the tables."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the shares."""
        return tuple(next(iter(self.shares.values()), {}))

    def label(self, name: str) -> str:
        return ">= " * (name in self.lower_bounds) + self.labels.get(name, name)


def as_document(figures: Figures) -> dict[str, Any]:
    """The figures as plain data; shares from 0 to 1, None if n is 0."""
    parts = {name: breakdown.shares for name, breakdown in figures.breakdowns.items()}
    return {
        **figures.counts,
        "shares": {group: _plain(shares) for group, shares in figures.shares.items()},
        **{name: _plain(shares) for name, shares in parts.items()},
        **_plain(figures.singles),
        "lower_bound_shares": list(figures.lower_bounds),
        **figures.values,
    }


def _plain(shares: Mapping[str, Share]) -> dict[str, Any]:
    return {name: plain(share) for name, share in shares.items()}


CSV_HEADER = ("figure", "group", "name", "count", "n", "share", "low", "high", "lower_bound")


def as_rows(figures: Figures) -> Iterator[tuple[Any, ...]]:
    """The figures as rows of a CSV file, `CSV_HEADER` first; shares from 0 to 1, empty if n is 0."""
    yield CSV_HEADER
    tables = [("shares", group, shares) for group, shares in figures.shares.items()]
    tables += [(name, breakdown.group, breakdown.shares) for name, breakdown in figures.breakdowns.items()]
    tables += [("single", "", figures.singles)]
    for figure, group, shares in tables:
        for name, share in shares.items():
            is_bound = figure == "shares" and name in figures.lower_bounds
            values = plain(share) | {"lower_bound": "true" if is_bound else "false"}
            yield (figure, group, name, *("" if values[key] is None else values[key] for key in CSV_HEADER[3:]))


def print_figures(figures: Figures, stream: TextIO) -> None:
    """Prints the figures as tables in the terminal's width: shares in per cent, with 95 % intervals."""
    to = console(stream)
    rows: list[list[str | Share]] = [
        [group, *shares.values(), f"{next(iter(shares.values())).n:,}"] for group, shares in figures.shares.items()
    ]
    if figures.paper:
        paper = (f"{figures.paper[name]:.1f}" if name in figures.paper else "-" for name in figures.names)
        rows.append([figures.paper_name, *paper, "-"])
    print_shares(to, figures.title, ["group", *map(figures.label, figures.names), "n"], rows)
    for breakdown in figures.breakdowns.values():
        if breakdown.shown and breakdown.shares:
            labels, shares = breakdown.labels, breakdown.shares
            rows = [[labels.get(name, name), share, f"{share.count:,}"] for name, share in shares.items()]
            print_shares(to, breakdown.title, [*breakdown.heading, "count"], rows)
    for note in figures.notes:
        print_line(to, note)
