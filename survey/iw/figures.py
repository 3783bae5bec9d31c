"""The figures of initial windows: shares of windows, kinds, verdicts and pacing, with 95 % intervals."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from survey.figures import Breakdown, Figures
from survey.iw.record import IwRecord
from survey.iw.windows import COMMON, OTHERS, bucket, label, window
from survey.iw.wire import Verdict
from survey.shares import cell, shares_by_group, wilson

TOO_LITTLE = frozenset({str(Verdict.LOWER_BOUND), str(Verdict.NO_DATA)})
"""Verdicts of servers that did not have enough data."""

PAPER_TOO_LITTLE = {"http": 47.6, "https": 13.3}
"""Hosts without enough data in the IW-in-the-wild paper [%]."""


def _has(name: str) -> Callable[[IwRecord], bool]:
    return lambda record: bucket(record) == name


SHARES: Mapping[str, Callable[[IwRecord], bool]] = {
    **{name: _has(name) for name in (*COMMON, OTHERS)},
    "within_rfc6928": lambda record: bool(record.within_rfc6928),
}
LABELS = {**{name: f"IW {name}" for name in COMMON}, "within_rfc6928": "<= RFC 6928"}


def figures(records: Sequence[IwRecord]) -> Figures:
    """Counts records; those of unfit vantage points are left out."""
    fit = [record for record in records if record.vantage_fit is not False]
    decided = [record for record in fit if bucket(record) is not None]
    verdicts = Counter(record.verdict or record.failure or "unknown" for record in fit)
    windows = Counter(iw for record in decided if (iw := window(record)) is not None)
    kinds = Counter(record.iw_kind or "one MSS only" for record in decided)
    paces = Counter(record.pace for record in fit if record.pace is not None)
    rtts = [record.rtt_s for record in decided if record.rtt_s is not None]
    ordered = sorted(windows.items(), key=lambda item: (-item[1], item[0]))
    return Figures(
        title=f"{len(decided):,} of {len(fit):,} servers have a decided window. Shares of these in %, 95 % intervals:",
        counts={"domains": len(records), "unfit": len(records) - len(fit), "decided": len(decided)},
        shares=shares_by_group(decided, "all servers", SHARES),
        labels=LABELS,
        breakdowns={
            "windows": Breakdown(
                title="Windows, in % of these servers:",
                heading=("window", "servers %"),
                group="servers with a decided window",
                shares={label(*iw): wilson(count, len(decided)) for iw, count in ordered},
            ),
            "kinds": _breakdown("What windows are counted in:", "kind", kinds),
            "verdicts": _breakdown("Verdicts, in % of all servers:", "verdict", verdicts),
            "paces": _breakdown("Pacing, in % of the servers asked:", "pace", paces),
        },
        values={"rtt_median_s": statistics.median(rtts) if rtts else None, "too_little": _too_little(fit)},
        notes=_notes(fit, len(records) - len(fit)),
    )


def _breakdown(title: str, heading: str, counts: Counter[str]) -> Breakdown:
    total = counts.total()
    shares = {name: wilson(count, total) for name, count in counts.most_common()}
    return Breakdown(title=title, heading=(heading, "servers %"), group=f"servers with a {heading}", shares=shares)


def _connected(records: Sequence[IwRecord], scheme: str) -> list[IwRecord]:
    return [r for r in records if r.scheme == scheme and (r.rtt_s is not None or r.verdict == Verdict.NO_DATA)]


def _too_little(records: Sequence[IwRecord]) -> dict[str, float | None]:
    """Share of the servers that answered the SYN and had too little data, per scheme."""
    shares = {}
    for scheme in PAPER_TOO_LITTLE:
        hosts = _connected(records, scheme)
        shares[scheme] = sum(r.verdict in TOO_LITTLE for r in hosts) / len(hosts) if hosts else None
    return shares


def _notes(records: Sequence[IwRecord], unfit: int) -> list[str]:
    notes = [f"{unfit:,} results of unfit vantage points are left out."] if unfit else []
    for scheme, paper in PAPER_TOO_LITTLE.items():
        hosts = _connected(records, scheme)
        if hosts:
            few = wilson(sum(record.verdict in TOO_LITTLE for record in hosts), len(hosts))
            name = {"http": "HTTP", "https": "TLS"}[scheme]
            notes.append(f"Too little data from {cell(few)} % of {name} hosts (IW-in-the-wild paper: {paper} %).")
    return notes
