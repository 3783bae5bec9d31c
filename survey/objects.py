"""Figures of `upshift crawl objects`: how large objects and pages are, and how many flights an object needs.

An object of a page is like its neighbours, so intervals count domains (`survey.figures.clustered`).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from core.domain import ObjectKind, PageObject
from core.pictures import COLOURS, INK
from survey.charts import Chart, ChartTable, Scan
from survey.figures import Breakdown, Figures, Share, cell, clustered
from survey.iw.figures import size_of, window
from survey.iw.record import IwRecord
from survey.iw.votes import ETHERNET_MSS
from survey.surveys import ResultKind

LINES = {f"{segments} segments": segments * ETHERNET_MSS for segments in (3, 4, 10, 32)}
"""Windows of RFC 3390 (at MSS 1460), RFC 3390 (as segments), RFC 6928 and large CDNs -> their size [bytes]."""

TOPS = (100, 500)
"""Ranks up to which the source has a curve of its own."""

SOURCE = "objects in 2010 (Dukkipati et al.)"
IN_2010 = {"10 segments": 90.0}
"""N. Dukkipati et al., An Argument for Increasing TCP's Initial Congestion Window (ACM CCR 40(3), 2010), section 2."""


class ObjectSize(NamedTuple):
    """One object, or one page with its objects."""

    domain: str
    bytes: int
    bound: bool
    """It has at least so many bytes."""


def _sized(records: Iterable[PageObject]) -> list[ObjectSize]:
    return [ObjectSize(r.domain, r.size_bytes, r.size_is_lower_bound) for r in records if r.size_bytes is not None]


def _measured(records: Sequence[PageObject]) -> list[list[PageObject]]:
    """The rows of each start page that has a size: its own, and those of its objects."""
    number: Counter[str] = Counter()  # a domain has a page in each of several files, and its objects follow it there
    pages: dict[tuple[str, int], list[PageObject]] = defaultdict(list)
    for record in records:
        number[record.domain] += record.is_page
        pages[record.domain, number[record.domain]].append(record)
    return [own for own in pages.values() if any(r.is_page and r.size_bytes is not None for r in own)]


def _pages(records: Sequence[PageObject]) -> list[ObjectSize]:
    """The start pages, each with those of its objects that were measured: its part at its own address."""
    return [
        ObjectSize(own[0].domain, sum(r.size_bytes or 0 for r in own), any(r.size_is_lower_bound for r in own))
        for own in _measured(records)
    ]


def _groups(records: Sequence[PageObject]) -> Iterator[tuple[str, list[ObjectSize]]]:
    """Objects and pages of the top, of all; objects per kind, per provider. Groups without any are left out."""
    tops: list[tuple[str, Sequence[PageObject]]] = [
        (f"top {end}", [r for r in records if r.rank is not None and r.rank <= end]) for end in TOPS
    ]
    tops = [(name, part) for name, part in tops if 0 < len(part) < len(records)]
    for name, part in (*tops, ("all", records)):
        yield f"objects, {name}", _sized(part)
    for name, part in (*tops, ("all", records)):
        yield f"pages, {name}", _pages(part)
    for kind in ObjectKind:
        yield f"kind {kind}", _sized(r for r in records if r.kind == kind)
    for provider in sorted({r.provider for r in records if r.provider is not None}):
        yield f"at {provider}", _sized(r for r in records if r.provider == provider)


def groups(records: Sequence[PageObject]) -> dict[str, list[ObjectSize]]:
    """Name of a group -> its sizes."""
    return {name: sizes for name, sizes in _groups(records) if sizes}


def share_by_domain(domains: Iterable[str], counts: Iterable[bool]) -> Share:
    """The share of what counts, with an interval over domains."""
    by_domain: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for domain, holds in zip(domains, counts, strict=True):
        by_domain[domain][0] += holds
        by_domain[domain][1] += 1
    return clustered((count, n) for count, n in by_domain.values())


def _below(sizes: Sequence[ObjectSize], most: int) -> Share:
    return share_by_domain((s.domain for s in sizes), (s.bytes <= most and not s.bound for s in sizes))


def figures(records: Sequence[PageObject]) -> Figures:
    """Shares of objects and pages that fit into the windows of `LINES`."""
    by_group = groups(records)
    measured = by_group.get("objects, all", [])
    named = [record for record in records if not record.is_page]
    causes = Counter(record.failure for record in named if record.failure is not None)
    counts = {
        "domains": len({record.domain for record in records}),
        "pages": len(by_group.get("pages, all", [])),
        "objects": len(measured),
        "lower_bounds": sum(size.bound for size in measured),
        "skipped": sum(record.skipped for record in records),
        "larger_pages": sum(any(r.skipped or r.size_bytes is None for r in own) for own in _measured(records)),
    }
    return Figures(
        title=f"{len(measured):,} objects of {counts['pages']:,} pages. Shares in % that fit into so many segments of "
        f"{ETHERNET_MSS} bytes, bodies alone, 95 % intervals over domains:",
        counts=counts,
        shares={name: {line: _below(sizes, most) for line, most in LINES.items()} for name, sizes in by_group.items()},
        paper=IN_2010,
        paper_name=SOURCE,
        breakdowns={
            "not_measured": Breakdown(
                title="Objects without a size, in % of those named by pages:",
                heading=("cause", "objects %"),
                group="objects named by pages",
                shares={
                    cause: share_by_domain((r.domain for r in named), (r.failure == cause for r in named))
                    for cause, _ in causes.most_common()
                },
            )
        },
        notes=_notes(counts),
    )


def _notes(counts: Mapping[str, int]) -> list[str]:
    notes = [
        "A page is its document with the objects at its own address: what one server sends. "
        f"{counts['larger_pages']:,} of {counts['pages']:,} pages name others, too: "
        "elsewhere, without a size, or not asked for."
    ]
    if counts["lower_bounds"]:
        notes.append(f"Counted to a bound, which is above all lines: {counts['lower_bounds']:,} objects.")
    if counts["skipped"]:
        notes.append(f"Not asked for (data and blob URLs, more than the most per page): {counts['skipped']:,}.")
    return notes


FLIGHTS = ("1", "2", "3", "more")


def flights_of(size: int, window_bytes: int) -> str:
    """How many flights an object needs whose window doubles with each (slow start, RFC 5681), without losses."""
    count = max(1, math.ceil(math.log2(size / window_bytes + 1)))
    return str(count) if count < len(FLIGHTS) else FLIGHTS[-1]


def with_flights(figures: Figures, records: Sequence[PageObject], surveyed: Iterable[IwRecord]) -> Figures:
    """The figures, and how many flights objects need from the initial windows of their servers."""
    windows: dict[tuple[str, str | None], tuple[bool, int]] = {}
    for surveyed_record in surveyed:
        iw = window(surveyed_record)
        if iw is not None and surveyed_record.vantage_fit is not False:
            # A server may have several windows; objects are fetched over HTTPS where there is a choice.
            choice = (surveyed_record.scheme != "https", size_of(*iw))
            for kind in {None, surveyed_record.mime_type and ObjectKind.of(surveyed_record.mime_type)}:
                windows[surveyed_record.domain, kind] = min(windows.get((surveyed_record.domain, kind), choice), choice)
    served = [record for record in records if (record.domain, None) in windows]
    own = [windows.get((r.domain, r.kind), windows[r.domain, None])[1] for r in served if r.size_bytes is not None]
    sizes = _sized(served)
    needed = [
        flights_of(size.bytes, most) if not size.bound else FLIGHTS[-1] for size, most in zip(sizes, own, strict=True)
    ]
    shares = {name: share_by_domain((s.domain for s in sizes), (count == name for count in needed)) for name in FLIGHTS}
    flights = Breakdown(
        title=f"Flights that {len(sizes):,} objects need, from the initial windows of their servers:",
        heading=("flights", "objects %"),
        group="objects at servers with a decided window",
        shares=shares,
    )
    one = f"One flight is enough for {cell(shares['1'])} % of {len(sizes):,} objects at servers with a decided window."
    notes = [
        *figures.notes,
        f"{one} Windows double with each flight, headers are not counted, the connection is new.",
        "Of a server with several windows, that of the object's kind counts, else the smallest.",
    ]
    return replace(figures, breakdowns={"flights": flights, **figures.breakdowns}, notes=notes)


def _cdf(scans: Sequence[Scan], beside: bool) -> ChartTable:  # noqa: ARG001 - the paper's value is in the shares
    records = [record for scan in scans for record in scan.records]
    rows: list[tuple[Any, ...]] = []
    for name, sizes in groups(records).items():
        # What has a bound alone may be of any size above it, so it comes last.
        ordered = [size.bytes for size in sorted(sizes, key=lambda s: s.bytes) if not size.bound]
        for percent in range(1, 101):
            at = -(-percent * len(sizes) // 100) - 1  # whole numbers: 7 / 100 * 100 is more than 7
            if at < len(ordered):
                rows.append((name, len(sizes), percent / 100, ordered[at]))
    return ChartTable(
        title="Sizes of start pages and their objects on the wire: share that is not larger",
        header=("group", "n", "share", "size_bytes"),
        rows=rows,
        notes=["A curve ends where sizes are known as lower bounds only."],
    )


_PANELS = {
    "objects": "size of an object",
    "pages": "size of a page with its objects",
    "kind": "size of an object by kind",
}
"""First word of a group -> the axis of its panel."""


def _draw(table: ChartTable, figure: Any) -> None:
    from matplotlib.ticker import EngFormatter, NullFormatter

    curves: dict[str, list[tuple[int, float]]] = defaultdict(list)
    labels: dict[str, str] = {}
    for name, n, share, size in table.rows:
        curves[name].append((max(1, size), share))
        labels[name] = f"{name.partition(' ')[2]} (n = {n:,})"
    axes = figure.subplots(1, len(_PANELS), sharey=True)
    for axis, (first, title) in zip(axes, _PANELS.items(), strict=True):
        names = [name for name in curves if name.startswith(first)]
        for name, colour in zip(names, COLOURS, strict=False):
            xs, ys = zip(*curves[name], strict=True)
            axis.step(xs, [100 * y for y in ys], where="post", color=colour, linewidth=1.3, label=labels[name])
        for line, most in LINES.items():
            axis.axvline(most, color=INK, linestyle=":", linewidth=0.8)
            axis.annotate(line.split()[0], (most, 101), ha="center", va="bottom", fontsize=7, annotation_clip=False)
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter(EngFormatter("B"))
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.set_xlabel(title)
        axis.set_ylim(0, 100)
        axis.legend(fontsize=7, frameon=False, loc="lower right")
    axes[0].set_ylabel("share that is not larger [%]")
    figure.text(0.995, 0.985, "dotted: segments of 1,460 bytes", ha="right", va="top", fontsize=7, color=INK)


OBJECTS = ResultKind(
    name="objects",
    record=PageObject,
    figures=figures,
    charts={
        "sizes": Chart(
            name="sizes",
            help="CDFs of the sizes of objects and pages: top 100, top 500, all; objects by kind.",
            table=_cdf,
            draw=_draw,
            size=lambda _: (11.0, 4.2),
        )
    },
    picture="sizes",
)
