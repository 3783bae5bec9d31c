"""The table that `upshift kpis` prints: one line per connection, the most important KPIs."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.captures.kpis import ALL as KPIS
from analysis.captures.kpis import Value
from core.untrusted import plain

if TYPE_CHECKING:
    from analysis.captures.connection import Connection
    from analysis.captures.scan import CaptureReader

COLUMNS = (
    ("mean_throughput", "Mbit/s", 2),
    ("goodput", "goodput", 2),
    ("duration", "s", 3),
    ("ip_bytes_from_server", "server bytes", 0),
    ("rtt_min", "RTT min ms", 2),
    ("rtt_mean", "mean ms", 2),
    ("true_retransmissions", "sent again", 0),
    ("true_reordered", "reordered", 0),
    ("ecn", "ECN", 0),
    ("sack", "SACK", 0),
    ("window_scale_client", "WS client", 0),
    ("window_scale_server", "WS server", 0),
)
"""KPI, heading, decimals."""


GAP = "  "

PIPE_COLUMNS = 200
"""Width without a terminal."""

MOST_ROWS = 1_000
"""Most connections in the printed table; Parquet has all."""


class KpiSummary:
    """The printed summary of captures: a line per file, then one table of their connections."""

    def __init__(self) -> None:
        self._headings: list[str] = []
        self._rows: list[list[str]] = []
        self._connections = 0
        self._in_file = 0
        self._gro = False

    def add(self, path: Path, connection: Connection) -> None:
        """Adds a connection of the file that is being read."""
        self._in_file += 1
        self._gro |= connection.gro
        if len(self._rows) < MOST_ROWS:
            cells = [_cell(KPIS[name].compute(connection), decimals) for name, _, decimals in COLUMNS]
            self._rows.append([path.name, str(connection.number), connection.protocol, _ends(connection), *cells])

    def end(self, reader: CaptureReader) -> None:
        """Ends the lines of a file."""
        skipped = sum(reader.skipped.values())
        parts = [f"{reader.packets} frames", f"{self._in_file} connections"]
        if skipped:
            parts.append(f"{skipped} frames outside them")
        if reader.truncated:
            parts.append("the file is truncated")
        if self._gro:
            parts.append("merged packets (GRO) make packet counts too small")
        self._headings.append(f"{reader.path}: {', '.join(parts)}")
        self._connections += self._in_file
        self._in_file, self._gro = 0, False

    def show(self) -> None:
        """Prints it to standard output: a table as wide as the terminal, with the columns that fit."""
        lines = list(self._headings)
        if self._rows:
            columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else PIPE_COLUMNS
            lines += ["", *table(self._rows, columns=columns, with_file=len(self._headings) > 1), ""]
        if self._connections > len(self._rows):
            more = self._connections - len(self._rows)
            lines.append(f"... and {more} connections more: --json or -o FILE.parquet has all.")
        lines.append("All KPIs: --json or -o FILE.parquet. What each means: upshift kpis --help.")
        print("\n".join(map(plain, lines)))  # noqa: T201 - standard output is the product


def table(rows: Sequence[Sequence[str]], *, columns: int, with_file: bool) -> list[str]:
    """Lines of the table; the last KPIs are left out if they do not fit.

    Not by rich: importing it takes longer than reading a capture.
    """
    headings = ["capture", "#", "", "client -> server", *(heading for _, heading, _ in COLUMNS)]
    cells = [[plain(cell) for cell in row[not with_file :]] for row in [headings, *rows]]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    names = 3 + with_file
    shown = names
    while shown < len(widths) and sum(widths[: shown + 1]) + len(GAP) * shown <= columns:
        shown += 1
    left = {names - 1, names - 2, *((0,) if with_file else ())}
    lines = []
    for row in cells:
        padded = [
            cell.ljust(width) if index in left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row[:shown], widths, strict=False))
        ]
        lines.append(GAP.join(padded).rstrip())
    lines.insert(1, "-" * (sum(widths[:shown]) + len(GAP) * (shown - 1)))
    return lines


def _ends(connection: Connection) -> str:
    def end(address: str, port: int) -> str:
        return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"

    client = end(connection.client_ip, connection.client_port)
    return f"{client} -> {end(connection.server_ip, connection.server_port)}"


def _cell(value: Value, decimals: int) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.{decimals}f}" if isinstance(value, float) else str(value)
