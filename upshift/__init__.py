"""Upshift: how much faster do downloads get when a transport option changes?

What a campaign's folder holds, for Python (docs/use/cookbook.md); importing this costs nothing:

    upshift.read(folder)                       every planned download with its KPIs, as an Arrow table
    upshift.pairs(folder, "quiche", "ALL")     the pairs from which that row of Table 2 is made
    upshift.packets(folder, row)               the packets of one download, from its capture
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core import __version__

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["__version__", "packets", "pairs", "read"]


def read(folder: str | os.PathLike[str]) -> pa.Table:
    """Every planned download of a campaign's folder with its KPIs; docs/reference/data-dictionary.md has the columns.

    Raises:
        UsageError: the folder has no `downloads.parquet`, or one of another version.
    """
    from core.files import store

    return store.read_table(Path(folder) / "downloads.parquet", "downloads")


def pairs(
    folder: str | os.PathLike[str], config: str, vs: str, *, metric: str = "time", unproven: bool = False
) -> pa.Table:
    """The pairs from which Table 2 makes the row `config vs vs`: one per measurement run in which both count.

    A speed-up is how many times faster `config` was. `analysis.measures.pair_table` describes the columns.

    Args:
        folder: a campaign's folder.
        config, vs: names of configurations, also of two that the campaign does not compare.
        metric: `time`, or `throughput` for the ratio of mean throughputs as in the paper.
        unproven: include downloads whose treatment could not be determined.

    Raises:
        UsageError: the folder holds no campaign or no such configuration, or the metric is unknown or needs KPIs.
    """
    from analysis.measures import dataset
    from analysis.measures.pair_table import pair_table
    from analysis.measures.rows import Metric
    from analysis.measures.selection import Selection
    from core.errors import UsageError, use_one_of

    if metric not in tuple(Metric):
        raise UsageError(f"unknown metric {metric!r}", where="metric", remedy=use_one_of(metric, [*Metric]))
    data = dataset.load([Path(folder)])
    return pair_table(data, config, vs, metric=Metric(metric), selection=Selection(unproven=unproven))


def packets(folder: str | os.PathLike[str], row: Mapping[str, Any]) -> pa.Table:
    """The packets of one download, from its capture; the columns are those of `upshift kpis --packets`.

    Args:
        folder: a campaign's folder.
        row: a row of `read(folder)`, as `.to_pylist()` gives it.

    Raises:
        UsageError: the download has no capture, it was dropped, or no connection in it is the download's.
    """
    import pyarrow.compute as pc

    from analysis.captures.export import read_packets
    from analysis.captures.scan import CaptureReader
    from analysis.evidence.matching import match
    from core.domain import Download
    from core.errors import UsageError, not_found
    from core.files.journal import is_own
    from core.files.schemas import build

    where = f"{row['configuration']} in run {row['run']}"
    if row["capture"] is None:
        raise UsageError("this download has no capture", where=where, remedy="choose one with a `capture`")
    if not is_own(row["capture"], row["vantage"]):
        raise UsageError("its capture is not in the vantage point's folder", where=where, remedy="choose another one")
    path = Path(folder) / row["capture"]
    if not path.exists():
        raise not_found(path, "capture", remedy="choose a download whose capture was kept")
    (connection,) = match([build(Download, row)], list(CaptureReader(path)))
    if connection is None:
        raise UsageError("no connection in the capture is the download's", where=where, remedy="choose another one")
    table = read_packets(path)
    return table.filter(pc.equal(table["connection"], connection.number))
