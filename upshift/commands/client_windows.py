"""`upshift survey client-windows`: receive windows of clients, and the initial windows that do not fit into them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from core.errors import UsageError
from core.outreach.arguments import AsJson

if TYPE_CHECKING:
    from survey.iw.figures import Client


def client_windows(
    captures: Annotated[
        list[Path] | None, typer.Argument(help="Captures of downloads (.pcap, .pcapng): one row per client address.")
    ] = None,
    scan: Annotated[
        list[Path] | None,
        typer.Option(help="Results of upshift survey iw, whose windows are compared. Default: the paper's CDNs."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Receive windows at the first request: the IW-in-the-wild paper's eight systems, and each capture given.

    For every one: which initial windows of servers would not fit.
    """
    from core.files import store
    from core.terminal import console, print_table
    from survey.iw.figures import clients_of_paper, too_large, windows_of, windows_of_paper
    from survey.iw.record import IwRecord

    clients = [*clients_of_paper(), *(client for path in captures or [] for client in _measured(path))]
    windows = (
        windows_of(r for path in scan for r in store.read_rows(path, "survey_iw", IwRecord))
        if scan
        else windows_of_paper()
    )
    if not windows:
        raise UsageError("these results have no windows", where="--scan", remedy="survey more servers")
    rows = [(client, too_large(client, windows)) for client in clients]
    if as_json:
        document = [
            {
                "client": client.name,
                "source": client.source,
                "window_bytes": client.window_bytes,
                "segments": client.segments,
                "too_large": [{"window": one.label, "bytes": one.bytes, "servers": one.servers} for one in large],
            }
            for client, large in rows
        ]
        typer.echo(json.dumps(document))
        return
    cells = [["client", "source", "window [B]", "segments", "too large"]]
    for client, large in rows:
        labels = ", ".join(one.label for one in large) or "-"
        cells.append([client.name, client.source, f"{client.window_bytes:,}", f"{client.segments:,}", labels])
    words = ["client", "source", "too large"]
    print_table(console(sys.stdout), [cells], title="Receive windows at the first request", words=words)


def _measured(path: Path) -> list[Client]:
    """The clients of a capture: the smallest window per client address. Raises UsageError if it has no request."""
    from analysis.captures.scan import scan_capture
    from survey.iw.figures import Client

    windows: dict[str, int] = {}
    for connection in scan_capture(path).connections:
        window = connection.client.first_data_window
        if connection.protocol == "tcp" and window is not None:
            address = str(connection.client_ip)
            windows[address] = min(window, windows.get(address, window))
    if not windows:
        raise UsageError("no client sends a request in this capture", where=str(path), remedy="give another capture")
    several = len(windows) > 1
    return [
        Client(name=f"{path.name} ({address})" if several else path.name, window_bytes=size, source="measured")
        for address, size in sorted(windows.items())
    ]
