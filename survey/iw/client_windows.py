"""The other side's limit: which initial windows do not fit into a client's receive window at its first request.

Source: the IW-in-the-wild paper, Table I, whose eight systems ship with Upshift.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from survey.iw import paper
from survey.iw.kinds import ETHERNET_MSS
from survey.iw.record import IwRecord
from survey.iw.windows import label, window


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
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


def published() -> list[Client]:
    """The paper's systems."""
    return [
        Client(name=row["os"], window_bytes=int(row["window_bytes"]), source=paper.NAME)
        for row in paper.rows("client-windows")
    ]


def windows_of(records: Iterable[IwRecord]) -> list[ServerWindow]:
    """The windows of a scan, the smallest first; unfit vantage points are left out."""
    counts: Counter[tuple[int, str]] = Counter()
    for record in records:
        iw = window(record)
        if record.vantage_fit is not False and iw is not None:
            value, unit = iw
            size = round(value * (ETHERNET_MSS if unit == "segments" else 1000))
            counts[size, label(value, unit)] += 1
    return [ServerWindow(label=name, bytes=size, servers=count) for (size, name), count in sorted(counts.items())]


def of_paper() -> list[ServerWindow]:
    """The windows of the paper's CDNs."""
    sizes = set()
    for row in paper.rows("cdn-initial-windows"):
        value = int(row["iw"])
        is_bytes = row["unit"] == "bytes"
        name = label(value / 1000, "kB") if is_bytes else label(value, "segments")
        sizes.add((value if is_bytes else value * ETHERNET_MSS, name))
    return [ServerWindow(label=name, bytes=size, servers=0) for size, name in sorted(sizes)]


def too_large(client: Client, windows: Sequence[ServerWindow]) -> list[ServerWindow]:
    """The windows that would not fit into the client's window."""
    return [server for server in windows if server.bytes > client.window_bytes]
