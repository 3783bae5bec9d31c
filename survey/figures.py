"""The figures of a survey, whatever it asked: as JSON, as CSV, for people, and drawn (`survey.picture`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

from survey.shares import Share, plain, print_shares
from upshift.terminal import console, print_line


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """A whole by categories: failures by cause, versions."""

    title: str
    """For people."""
    heading: tuple[str, str]
    """Of the categories, and of their shares."""
    group: str
    """Who is shared, for CSV: `all hosts`."""
    shares: Mapping[str, Share]
    labels: Mapping[str, str] = field(default_factory=dict)
    """Category -> what people read; the category itself where it is not here."""
    shown: bool = True
    """To people; JSON and CSV have it anyway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What the records of a survey add up to."""

    title: str
    """A sentence for people, which names the whole that shares are of."""
    counts: Mapping[str, int]
    """`domains`, and what else was counted."""
    shares: Mapping[str, Mapping[str, Share]]
    """Group (all, rank buckets, providers) -> share's name -> share."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Share's name -> what people read; the name itself where it is not here."""
    paper: Mapping[str, float] = field(default_factory=dict)
    """Share's name -> what the ANRW 2023 paper has [%]."""
    breakdowns: Mapping[str, Breakdown] = field(default_factory=dict)
    singles: Mapping[str, Share] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    """Further plain data for JSON."""
    notes: Sequence[str] = ()
    """Sentences for people."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of the shares."""
        return tuple(next(iter(self.shares.values()), {}))

    def label(self, name: str) -> str:
        return self.labels.get(name, name)


PAPER = "the ANRW 2023 paper"


def as_document(found: Figures) -> dict[str, Any]:
    """The figures as plain data; shares from 0 to 1, None where there is nothing to share."""
    parts = {name: breakdown.shares for name, breakdown in found.breakdowns.items()}
    return {
        **found.counts,
        "shares": {group: _plain(shares) for group, shares in found.shares.items()},
        **{name: _plain(shares) for name, shares in parts.items()},
        **_plain(found.singles),
        **found.values,
    }


def _plain(shares: Mapping[str, Share]) -> dict[str, Any]:
    return {name: plain(share) for name, share in shares.items()}


CSV_HEADER = ("figure", "group", "name", "count", "n", "share", "low", "high")


def as_rows(found: Figures) -> Iterator[tuple[Any, ...]]:
    """The figures as rows of a CSV file, `CSV_HEADER` first; shares from 0 to 1, empty where there is nothing."""
    yield CSV_HEADER
    tables = [("shares", group, shares) for group, shares in found.shares.items()]
    tables += [(name, breakdown.group, breakdown.shares) for name, breakdown in found.breakdowns.items()]
    tables += [("single", "", found.singles)]
    for figure, group, shares in tables:
        for name, share in shares.items():
            values = plain(share)
            yield (figure, group, name, *("" if values[key] is None else values[key] for key in CSV_HEADER[3:]))


def print_figures(found: Figures, stream: TextIO) -> None:
    """Prints the figures for people, as wide as the terminal: shares in per cent, with 95 % intervals."""
    to = console(stream)
    rows: list[list[str | Share]] = [
        [group, *shares.values(), f"{next(iter(shares.values())).n:,}"] for group, shares in found.shares.items()
    ]
    if found.paper:
        paper = (f"{found.paper[name]:.1f}" if name in found.paper else "-" for name in found.names)
        rows.append([PAPER, *paper, "-"])
    print_shares(to, found.title, ["group", *map(found.label, found.names), "n"], rows)
    for breakdown in found.breakdowns.values():
        if breakdown.shown and breakdown.shares:
            print_shares(to, breakdown.title, [*breakdown.heading, "n"], _counted(breakdown))
    for note in found.notes:
        print_line(to, note)


def _counted(breakdown: Breakdown) -> Iterable[list[str | Share]]:
    labels = breakdown.labels
    return ([labels.get(name, name), share, f"{share.count:,}"] for name, share in breakdown.shares.items())
