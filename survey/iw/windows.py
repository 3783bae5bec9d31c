"""How windows are named and grouped in figures."""

from __future__ import annotations

from collections.abc import Sequence

from core.errors import UsageError
from survey.charts import Scan
from survey.iw.kinds import WindowKind
from survey.iw.record import IwRecord, votes_of
from survey.iw.wire import Verdict

COMMON = ("1", "2", "4", "10")
"""Windows with a share of their own, in segments."""

OTHERS = "others"


def segments(record: IwRecord) -> int | None:
    """The window in segments: of all MSS together, else that of the smallest MSS that was decided."""
    if record.iw_segments is not None:
        return record.iw_segments
    limited = {mss: vote for mss, vote in votes_of(record).items() if vote.verdict == Verdict.LIMITED}
    return limited[min(limited)].segments if limited else None


def bucket(record: IwRecord) -> str | None:
    """One of `COMMON`, or `OTHERS`; None without a window."""
    if record.iw_kind is not None and record.iw_segments is None:
        return OTHERS
    count = segments(record)
    if count is None:
        return None
    return str(count) if str(count) in COMMON else OTHERS


def window(record: IwRecord) -> tuple[float, str] | None:
    """The window and its unit: `segments`, or `kB` if it is counted in bytes; None if it is not known."""
    if record.iw_kind in (WindowKind.BYTES, WindowKind.RFC3390) and record.iw_bytes is not None:
        return record.iw_bytes / 1000, "kB"
    count = None if record.iw_kind == WindowKind.MIXED else segments(record)
    return None if count is None else (count, "segments")


def label(value: float, unit: str) -> str:
    """E.g. `10`, `64 kB`."""
    return f"{value:g}" if unit == "segments" else f"{value:.4g} {unit}"


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
