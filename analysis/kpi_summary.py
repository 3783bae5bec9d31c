"""What `upshift kpis` prints for people: one line per connection, the figures that one asks for first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from analysis.kpi import Value
from analysis.kpis import ALL as KPIS

if TYPE_CHECKING:
    from analysis.captures import Capture
    from analysis.connection import Connection

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


def print_summary(captures: Sequence[Capture]) -> None:
    """Prints what the captures hold, then one table, to standard output."""
    from rich.console import Console

    console = Console(width=None if _is_terminal() else 200, highlight=False, markup=False)
    for capture in captures:
        console.print(_heading(capture), soft_wrap=True)
    if any(capture.connections for capture in captures):
        console.print(_table(captures))
    console.print("All KPIs: --json or -o FILE.parquet. Definitions: docs/design/kpi-engine.md.", soft_wrap=True)


def _is_terminal() -> bool:
    import sys

    return sys.stdout.isatty()


def _heading(capture: Capture) -> str:
    skipped = sum(capture.skipped.values())
    parts = [f"{capture.packets} frames", f"{len(capture.connections)} connections"]
    if skipped:
        parts.append(f"{skipped} frames outside them")
    if capture.truncated:
        parts.append("the file is cut")
    if any(connection.gro for connection in capture.connections):
        parts.append("merged packets (GRO) make packet counts too small")
    return f"{capture.path}: {', '.join(parts)}"


def _table(captures: Sequence[Capture]) -> object:
    from rich import box
    from rich.table import Table

    several = len(captures) > 1
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    if several:
        table.add_column("capture", overflow="fold")
    table.add_column("#", justify="right")
    table.add_column("", no_wrap=True)
    table.add_column("client -> server", no_wrap=True, overflow="fold")
    for _, heading, _ in COLUMNS:
        table.add_column(heading, justify="right")
    for capture in captures:
        name = [capture.path.name] if several else []
        for connection in capture.connections:
            cells = [_cell(KPIS[name].compute(connection), decimals) for name, _, decimals in COLUMNS]
            table.add_row(*name, str(connection.number), connection.protocol, _ends(connection), *cells)
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
