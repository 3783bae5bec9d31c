"""`upshift sender watch`: what a server's operator does where a large initial window causes losses."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from core.errors import UsageError
from core.options import command_group, with_options
from core.outreach.arguments import AsJson
from vantage.host.fallback import Fallback, FallbackRules, SenderPrefix

SHOWN = 20
"""Prefixes in the printed table."""

app = command_group("On a server: its initial windows, and whom they hurt.")


@app.command()
@with_options
def watch(
    *,
    device: Annotated[str, typer.Option("--prefix-routes", metavar="DEV", help="The interface to the clients.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be changed; needs no root.")] = False,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="A row per prefix at the end (.parquet).")] = None,
    until: Annotated[str | None, typer.Option(help="When to end: 2027-01-05T06:00Z, or 6h from now.")] = None,
    rules: FallbackRules,
    metrics: Annotated[
        str | None, typer.Option(help="Serve metrics to this host, at unix:PATH or 127.0.0.1:PORT (/metrics).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Give client prefixes a smaller initial window where the large one causes losses (RFC 6928, section 12).

    The kernel tells of each connection that closes; nothing is captured. Routes of prefixes are the only change, and
    all are removed at the end, whatever ends the command. Ends with --until, Ctrl-C or SIGTERM.
    """
    from core.files import store
    from downloader.control.metrics import parse_endpoint
    from downloader.control.page_server import serve
    from downloader.control.stop_pause import parse_time
    from vantage.host import sender_watch

    if rules.small_window >= rules.window:
        raise UsageError("it is not smaller than --window", where="--small-window", remedy="give a smaller one")
    if rules.known > rules.last:
        raise UsageError("it is more than --last", where="--known", remedy="give at most that")
    if out is not None and out.suffix != ".parquet":
        raise UsageError(f"{out.name!r} is not Parquet", where="--out", remedy="end it in .parquet")
    end = None if until is None else parse_time(until, where="--until", now=time.time())
    endpoint = None if metrics is None else parse_endpoint(metrics)
    page: str | None = None
    seen: tuple[Fallback, int] | None = None

    def each(fallback: Fallback, lost: int) -> None:
        nonlocal page, seen
        seen = fallback, lost
        if endpoint is not None:
            page = _page(fallback, lost, dry_run=dry_run)

    def say(line: str) -> None:
        at = time.time()
        text = f"{_clock(at)} {'(dry run) ' if dry_run else ''}{line}"
        typer.echo(json.dumps({"at": at, "line": line, "dry_run": dry_run}) if as_json else text)
        sys.stdout.flush()

    try:
        with serve(endpoint, lambda: page) if endpoint is not None else nullcontext():
            sender_watch.watch(device, rules, dry_run=dry_run, until=end, say=say, each=each)
    finally:
        if seen is not None:
            rows = [replace(row, dry_run=dry_run) for row in seen[0].rows(now=time.monotonic(), wall=time.time())]
            if out is not None:
                store.write_rows(out, "sender_prefixes", rows, SenderPrefix)
            _print(rows, seen[1], dry_run=dry_run, as_json=as_json)


def _clock(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _print(rows: Sequence[SenderPrefix], lost: int, *, dry_run: bool, as_json: bool) -> None:
    """The prefixes: those with another window first, then those with the most connections."""
    from core.terminal import console, print_line, print_table

    rows = sorted(rows, key=lambda row: (-row.changes, row.left_alone is None, -row.connections))
    if as_json:
        typer.echo(json.dumps({"lost_events": lost, "prefixes": [asdict(row) for row in rows]}))
        return
    to = console(sys.stdout)
    if not rows:
        print_line(to, "No connection to another host has closed.")
        return
    heading = ["prefix", "connections", "sent again %", "short", "of these %", "window", "since", "left alone"]
    cells = [heading]
    for row in rows[:SHOWN]:
        of_known = f"{100 * row.known_sent_again / row.known:.1f}" if row.known else "-"
        again = f"{100 * row.sent_again / row.connections:.1f}"
        counts = [f"{row.connections:,}", again, str(row.known), of_known, str(row.window)]
        cells.append([row.prefix, *counts, _clock(row.since_at), row.left_alone or "-"])
    words = ["prefix", "since", "left alone"]
    title = "Client prefixes, with the windows that they would have (dry run):" if dry_run else "Client prefixes:"
    print_table(to, [cells, [line[:-1] for line in cells]], title=title, words=words)
    if len(rows) > SHOWN:
        print_line(to, f"{len(rows) - SHOWN:,} more prefixes; -o has all of them.")
    if lost:
        print_line(to, f"{lost:,} events were lost.")


def _page(fallback: Fallback, lost: int, *, dry_run: bool) -> str:
    """The page of metrics; series per prefix for those with the smaller window alone."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    from downloader.control.metrics import exposition

    small = GaugeMetricFamily("upshift_sender_window_segments", "Smaller initial windows.", labels=("prefix",))
    prefixes = fallback.small_prefixes()
    for prefix in prefixes:
        small.add_metric((str(prefix),), fallback.rules.small_window)
    families = [
        CounterMetricFamily("upshift_sender_connections", "Connections that closed.", value=fallback.connections),
        CounterMetricFamily("upshift_sender_events_lost", "Events that came too fast.", value=lost),
        GaugeMetricFamily("upshift_sender_prefixes", "Prefixes that are kept.", value=len(fallback)),
        GaugeMetricFamily("upshift_sender_small_windows", "Prefixes with the smaller window.", value=len(prefixes)),
        small,
        GaugeMetricFamily("upshift_sender_dry_run", "1: windows are those that would be set.", value=int(dry_run)),
    ]
    return exposition(families)
