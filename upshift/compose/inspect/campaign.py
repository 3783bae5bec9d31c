"""A campaign folder: its captures complete `downloads.parquet` and give `kpis.parquet`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from analysis.captures import scan_capture
from analysis.connection import Connection
from analysis.kpi import Value
from upshift import store
from upshift.compose.inspect.matching import find_connection
from upshift.compose.inspect.proof import judge_treatment
from upshift.compose.inspect.rows import kpi_row, write_kpis
from upshift.domain import Download
from upshift.errors import UsageError
from upshift.progress import Progress


def inspect_campaign(out: Path, *, progress: Progress) -> None:
    """Reads the captures of a campaign folder, completes `downloads.parquet` and writes `kpis.parquet`."""
    downloads = store.read_rows(out / "downloads.parquet", "downloads", Download)
    captures = sorted({d.capture for d in downloads if d.capture is not None})
    scans: dict[str, tuple[Connection, ...]] = {}
    unreadable: dict[str, str] = {}
    with ThreadPoolExecutor(max_workers=2) as pool:
        results = pool.map(lambda name: _scan(out / name), captures)
        for done, (name, result) in enumerate(zip(captures, results, strict=True), start=1):
            if isinstance(result, str):
                unreadable[name] = result
            else:
                scans[name] = result
            progress.update("captures", done=done, total=len(captures), failed=len(unreadable))
    judged: list[Download] = []
    rows: list[dict[str, Value]] = []
    for download in downloads:
        connection = find_connection(download, scans.get(download.capture or "", ()))
        ok, detail = judge_treatment(download, connection)
        if connection is None and download.capture in unreadable:
            detail = unreadable[download.capture]
        judged.append(replace(download, treatment_ok=ok, treatment_detail=detail))
        if connection is not None:
            rows.append(kpi_row(download, connection))
    store.write_rows(out / "downloads.parquet", "downloads", judged)
    write_kpis(out / "kpis.parquet", rows)


def _scan(path: Path) -> tuple[Connection, ...] | str:
    """The connections of a capture, or why there are none."""
    if not path.exists():
        return "the capture is gone"
    try:
        return tuple(scan_capture(path).connections)
    except UsageError as error:
        return error.sentence()
