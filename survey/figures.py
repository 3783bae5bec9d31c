"""The figures of any survey: as JSON, as CSV, as printed tables, and drawn (`survey.picture`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

from core.terminal import console, print_line
from survey.shares import Share, plain, print_shares


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
    paper: Mapping[str, float] = field(default_factory=dict)
    """Share's name -> its value in the ANRW 2023 paper [%]."""
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
        return self.labels.get(name, name)


PAPER = "the ANRW 2023 paper"


def as_document(figures: Figures) -> dict[str, Any]:
    """The figures as plain data; shares from 0 to 1, None if n is 0."""
    parts = {name: breakdown.shares for name, breakdown in figures.breakdowns.items()}
    return {
        **figures.counts,
        "shares": {group: _plain(shares) for group, shares in figures.shares.items()},
        **{name: _plain(shares) for name, shares in parts.items()},
        **_plain(figures.singles),
        **figures.values,
    }


def _plain(shares: Mapping[str, Share]) -> dict[str, Any]:
    return {name: plain(share) for name, share in shares.items()}


CSV_HEADER = ("figure", "group", "name", "count", "n", "share", "low", "high")


def as_rows(figures: Figures) -> Iterator[tuple[Any, ...]]:
    """The figures as rows of a CSV file, `CSV_HEADER` first; shares from 0 to 1, empty if n is 0."""
    yield CSV_HEADER
    tables = [("shares", group, shares) for group, shares in figures.shares.items()]
    tables += [(name, breakdown.group, breakdown.shares) for name, breakdown in figures.breakdowns.items()]
    tables += [("single", "", figures.singles)]
    for figure, group, shares in tables:
        for name, share in shares.items():
            values = plain(share)
            yield (figure, group, name, *("" if values[key] is None else values[key] for key in CSV_HEADER[3:]))


def print_figures(figures: Figures, stream: TextIO) -> None:
    """Prints the figures as tables in the terminal's width: shares in per cent, with 95 % intervals."""
    to = console(stream)
    rows: list[list[str | Share]] = [
        [group, *shares.values(), f"{next(iter(shares.values())).n:,}"] for group, shares in figures.shares.items()
    ]
    if figures.paper:
        paper = (f"{figures.paper[name]:.1f}" if name in figures.paper else "-" for name in figures.names)
        rows.append([PAPER, *paper, "-"])
    print_shares(to, figures.title, ["group", *map(figures.label, figures.names), "n"], rows)
    for breakdown in figures.breakdowns.values():
        if breakdown.shown and breakdown.shares:
            print_shares(to, breakdown.title, [*breakdown.heading, "n"], _counted(breakdown))
    for note in figures.notes:
        print_line(to, note)


def _counted(breakdown: Breakdown) -> Iterable[list[str | Share]]:
    labels = breakdown.labels
    return ([labels.get(name, name), share, f"{share.count:,}"] for name, share in breakdown.shares.items())
