"""What `upshift kpis` prints for people: one line per connection, the figures that one asks for first."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.captures.kpi import Value
from analysis.captures.kpis import ALL as KPIS

if TYPE_CHECKING:
    from analysis.captures.connection import Connection
    from analysis.captures.scan import CaptureReader

COLUMNS = (
    ("mean_throughput", "Mbit/s", 2),
    ("goodput", "goodput", 2),
    ("duration", "s", 3),
    ("ip_bytes_from_server", "server bytes", 0),
    ("rtt_min", "RTT min ms", 2),
    ("rtt_mean", "mean", 2),
    ("true_retransmissions", "sent again", 0),
    ("true_reordered", "reordered", 0),
    ("ecn", "ECN", 0),
    ("sack", "SACK", 0),
    ("window_scale_client", "WS client", 0),
    ("window_scale_server", "WS server", 0),
)
"""KPI, heading, decimals."""


MOST_ROWS = 1_000
"""Connections in the printed table: nobody reads more, and Parquet has all."""


class Summary:
    """What captures hold, for people: a line per file, then one table of their connections."""

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
        """Says that a file has been read."""
        skipped = sum(reader.skipped.values())
        parts = [f"{reader.packets} frames", f"{self._in_file} connections"]
        if skipped:
            parts.append(f"{skipped} frames outside them")
        if reader.truncated:
            parts.append("the file is cut")
        if self._gro:
            parts.append("merged packets (GRO) make packet counts too small")
        self._headings.append(f"{reader.path}: {', '.join(parts)}")
        self._connections += self._in_file
        self._in_file, self._gro = 0, False

    def show(self) -> None:
        """Prints it to standard output."""
        from rich.console import Console

        console = Console(width=None if sys.stdout.isatty() else 200, highlight=False, markup=False)
        for heading in self._headings:
            console.print(heading, soft_wrap=True)
        if self._rows:
            console.print(self._table())
        if self._connections > len(self._rows):
            more = self._connections - len(self._rows)
            console.print(f"... and {more} connections more: --json or -o FILE.parquet has all.", soft_wrap=True)
        console.print("All KPIs: --json or -o FILE.parquet. What each means: upshift kpis --help.", soft_wrap=True)

    def _table(self) -> object:
        from rich import box
        from rich.table import Table

        several = len(self._headings) > 1
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        if several:
            table.add_column("capture", overflow="fold")
        table.add_column("#", justify="right")
        table.add_column("", no_wrap=True)
        table.add_column("client -> server", no_wrap=True, overflow="fold")
        for _, heading, _ in COLUMNS:
            table.add_column(heading, justify="right")
        for cells in self._rows:
            table.add_row(*(cells if several else cells[1:]))
        return table


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
