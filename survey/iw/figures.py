"""The figures of initial windows: how windows are named and grouped, shares of windows, kinds, verdicts and pacing with
95 % intervals, and which windows do not fit into a client's receive window at its first request.

Values of the IW-in-the-wild paper, and its eight clients (Table I), ship with Upshift (`survey/data`).
"""

from __future__ import annotations

import csv
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

from core.errors import UsageError
from survey.charts import Scan
from survey.figures import Breakdown, Figures, Share, cell, shares_by_group, shares_of
from survey.iw.record import IwRecord, votes_of
from survey.iw.votes import ETHERNET_MSS, WindowKind, rfc6928_bytes
from survey.iw.wire import ProbeVerdict

IN_THE_WILD = "iw-in-the-wild"


@cache
def paper_rows(name: str) -> tuple[dict[str, str], ...]:
    """The rows of a shipped table, e.g. `cdn-initial-windows`."""
    text = (resources.files("survey") / "data" / f"{name}.csv").read_text(encoding="utf-8")
    return tuple(csv.DictReader(text.splitlines()))


def paper_fact(what: str) -> str:
    """The value of a row of `scan-facts`."""
    return next(row["value"] for row in paper_rows("scan-facts") if row["what"] == what)


COMMON = ("1", "2", "4", "10")
"""Windows with a share of their own, in segments."""

OTHERS = "others"


def segments(record: IwRecord) -> int | None:
    """The window in segments: of all MSS together, else that of the smallest MSS that was decided."""
    if record.iw_segments is not None:
        return record.iw_segments
    limited = {mss: vote for mss, vote in votes_of(record).items() if vote.verdict == ProbeVerdict.LIMITED}
    return limited[min(limited)].segments if limited else None


def bucket(record: IwRecord) -> str | None:
    """One of `COMMON`, or `OTHERS`; None without a window."""
    if record.iw_kind == WindowKind.RFC3390:
        return "4"  # as with small MSS alone: with a short page, the large MSS at which it has fewer are not decided
    if record.iw_kind is not None and record.iw_segments is None:
        return OTHERS
    count = segments(record)
    if count is None:
        return None
    return str(count) if str(count) in COMMON else OTHERS


def window(record: IwRecord) -> tuple[float, str] | None:
    """The window and its unit: `segments`, or `kB` if it is counted in bytes; None if it is not known."""
    if record.iw_kind in (WindowKind.BYTES, WindowKind.RFC3390) and record.iw_bytes is not None:
        return (record.iw_bytes / 1000, "kB") if record.iw_bytes > 0 else None
    count = None if record.iw_kind == WindowKind.MIXED else segments(record)
    return (count, "segments") if count is not None and count > 0 else None


def size_of(value: float, unit: str) -> int:
    """A window in bytes, with segments of 1460 bytes."""
    return round(value * (ETHERNET_MSS if unit == "segments" else 1000))


def label(value: float, unit: str) -> str:
    """E.g. `10`, `14.601 kB`: to the byte, as shares have these names."""
    return f"{value:g}" if unit == "segments" else f"{value:.10g} {unit}"


def fit_scans(scans: Sequence[Scan]) -> tuple[list[Scan], list[str]]:
    """The scans without records of unfit vantage points, and a note that says how many were left out."""
    kept = [
        Scan(path=scan.path, records=[record for record in scan.records if record.vantage_fit is not False])
        for scan in scans
    ]
    unfit = sorted({(r.vantage or s.path.name) for s in scans for r in s.records if r.vantage_fit is False})
    left = sum(len(scan.records) for scan in scans) - sum(len(scan.records) for scan in kept)
    if left and not any(scan.records for scan in kept):
        raise UsageError(
            "all results are from unfit vantage points", where=", ".join(unfit), remedy="give other results"
        )
    note = f"{left:,} results of unfit vantage points are left out: {', '.join(unfit)}."
    return [scan for scan in kept if scan.records], [note] if left else []


def beside_first(scans: Sequence[Scan]) -> tuple[list[Scan], list[str]]:
    """As `fit_scans`, for what sets the others beside the first one. Raises UsageError if nothing of that is left."""
    kept, notes = fit_scans(scans)
    if kept and kept[0].path != scans[0].path:
        what = "its results are from an unfit vantage point, or there are none"
        raise UsageError(what, where=str(scans[0].path), remedy="give another first file")
    return kept, notes


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientWindow:
    """A client's receive window at its first request."""

    name: str
    window_bytes: int
    source: str
    """`iw-in-the-wild` or `measured`."""

    @property
    def segments(self) -> int:
        return self.window_bytes // ETHERNET_MSS


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerWindow:
    """An initial window that some servers have."""

    label: str
    bytes: int
    """Size with segments of 1460 bytes."""
    servers: int


def clients_of_paper() -> list[ClientWindow]:
    """The paper's systems."""
    return [
        ClientWindow(name=row["os"], window_bytes=int(row["window_bytes"]), source=IN_THE_WILD)
        for row in paper_rows("client-windows")
    ]


def windows_of(records: Iterable[IwRecord]) -> list[ServerWindow]:
    """The windows of a scan, the smallest first; unfit vantage points are left out."""
    counts: Counter[tuple[int, str]] = Counter()
    for record in records:
        iw = window(record)
        if record.vantage_fit is not False and iw is not None:
            counts[size_of(*iw), label(*iw)] += 1
    return [ServerWindow(label=name, bytes=size, servers=count) for (size, name), count in sorted(counts.items())]


def windows_of_paper() -> list[ServerWindow]:
    """The windows of the paper's CDNs."""
    sizes = set()
    for row in paper_rows("cdn-initial-windows"):
        value = int(row["iw"])
        is_bytes = row["unit"] == "bytes"
        name = label(value / 1000, "kB") if is_bytes else label(value, "segments")
        sizes.add((value if is_bytes else value * ETHERNET_MSS, name))
    return [ServerWindow(label=name, bytes=size, servers=0) for size, name in sorted(sizes)]


def too_large(client: ClientWindow, windows: Sequence[ServerWindow]) -> list[ServerWindow]:
    """The windows that would not fit into the client's window."""
    return [server for server in windows if server.bytes > client.window_bytes]


TOO_LITTLE = frozenset({str(ProbeVerdict.LOWER_BOUND), str(ProbeVerdict.NO_DATA)})
"""Verdicts of servers that did not have enough data."""

PAPER_TOO_LITTLE = {"http": 47.6, "https": 13.3}
"""Hosts without enough data in the IW-in-the-wild paper [%]."""


def _has(name: str) -> Callable[[IwRecord], bool]:
    return lambda record: bucket(record) == name


WITHIN = "within_rfc6928"
SHARES: Mapping[str, Callable[[IwRecord], bool]] = {name: _has(name) for name in (*COMMON, OTHERS)}
LABELS = {**{name: f"IW {name}" for name in COMMON}, WITHIN: "<= RFC 6928"}


def figures(records: Sequence[IwRecord]) -> Figures:
    """Counts records, a server as often as it has any; those of unfit vantage points are left out."""
    fit = [record for record in records if record.vantage_fit is not False]
    decided = [record for record in fit if bucket(record) is not None]
    # Who has no window may be known to be above by a lower bound, and is missing among the decided ones.
    within = shares_by_group(fit, "all servers", {WITHIN: lambda record: record.within_rfc6928})
    shares = {name: own | within[name] for name, own in shares_by_group(decided, "all servers", SHARES).items()}
    verdicts = [(record.domain, record.verdict or record.failure or "unknown") for record in fit]
    windows = shares_of((record.domain, window(record)) for record in decided)
    kinds = [(record.domain, record.iw_kind or "one MSS only") for record in decided]
    paces = [(record.domain, record.pace) for record in fit if record.pace is not None]
    rtts = [record.rtt_s for record in decided if record.rtt_s is not None]
    ordered = sorted((-share.count, iw, share) for iw, share in windows.items() if iw is not None)
    servers, too_little = len({record.domain for record in fit}), _too_little(fit)
    whole = f"{len(fit):,} servers"
    if servers < len(fit):
        whole = f"{len(fit):,} results of {servers:,} servers (one counts once per MIME type and file)"
    return Figures(
        title=f"{len(decided):,} of {whole} have a decided window. Shares of these in %, 95 % intervals:",
        counts={
            "domains": len(records),
            "servers": servers,
            "unfit": len(records) - len(fit),
            "decided": len(decided),
        },
        shares=shares,
        labels=LABELS,
        breakdowns={
            "windows": Breakdown(
                title="Windows, in % of these servers:",
                heading=("window", "servers %"),
                group="servers with a decided window",
                shares={label(*iw): share for _, iw, share in ordered},
            ),
            "kinds": _breakdown("What windows are counted in:", "kind", kinds),
            "verdicts": _breakdown("Verdicts, in % of all servers:", "verdict", verdicts),
            "paces": _breakdown("Pacing, in % of the servers asked:", "pace", paces),
        },
        values={
            "rtt_median_s": statistics.median(rtts) if rtts else None,
            "too_little": {scheme: few.share if few.n else None for scheme, few in too_little.items()},
        },
        notes=[*_notes(too_little, len(records) - len(fit)), *_notes_on_within(fit, len(decided))],
    )


def _notes_on_within(records: Sequence[IwRecord], decided: int) -> list[str]:
    known = [record for record in records if record.within_rfc6928 is not None]
    what = f"{LABELS[WITHIN]}: of the {len(known):,} of which it is known; a lower bound above it is enough."
    notes = [what] if len(known) != decided else []
    if small := sum(not r.within_rfc6928 and 0 < (r.iw_bytes or 0) <= rfc6928_bytes(ETHERNET_MSS) for r in known):
        notes.append(f"{LABELS[WITHIN]}: {small:,} are above it with a small MSS alone, not with {ETHERNET_MSS} bytes.")
    return notes


def _breakdown(title: str, heading: str, named: Sequence[tuple[str, str]]) -> Breakdown:
    group = f"servers with a {heading}"
    return Breakdown(title=title, heading=(heading, "servers %"), group=group, shares=shares_of(named))


def _too_little(records: Sequence[IwRecord]) -> dict[str, Share]:
    """Scheme -> those with too little data, of the servers that answered the SYN."""
    connected = [r for r in records if r.rtt_s is not None or r.verdict == ProbeVerdict.NO_DATA]
    named = [(record.scheme, (record.domain, record.verdict in TOO_LITTLE)) for record in connected]
    return {
        scheme: shares_of((pair for its, pair in named if its == scheme), (True,))[True] for scheme in PAPER_TOO_LITTLE
    }


def _notes(too_little: Mapping[str, Share], unfit: int) -> list[str]:
    notes = [f"{unfit:,} results of unfit vantage points are left out."] if unfit else []
    for scheme, few in too_little.items():
        if few.n:
            name, paper = {"http": "HTTP", "https": "TLS"}[scheme], PAPER_TOO_LITTLE[scheme]
            notes.append(f"Too little data from {cell(few)} % of {name} hosts (IW-in-the-wild paper: {paper} %).")
    return notes
