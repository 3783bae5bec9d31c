"""The commands that look at a running campaign and ask things of it, from any session that can see its folder."""

from __future__ import annotations

import json as json_format
import sys
import textwrap
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from core import terminal
from core.errors import IncompleteError
from core.files.disk import is_running
from core.outreach import opt_out
from core.outreach.blocks import HOST_LIST
from core.system.this_host import clock_account
from downloader.control import stop_pause
from downloader.control.status import INDENT, Status, lines, read_status

_POLL_S = 0.2
_REFRESH_S = 2.0

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="Campaign folder: the --out of `upshift run`.")]


def status(
    folder: Folder,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show it again every 2 s until the campaign has ended.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="As one JSON line; with --watch, one each time.")] = False,
) -> None:
    """What a campaign is doing: state and reason, counts, rate, time left, budgets, disk, last error.

    It reads DIR/status.json, which the campaign writes every 5 s. A campaign whose status is older than 60 s is
    silent: its process was killed, stopped, or hangs.
    """
    if not watch:
        typer.echo(_text(folder, read_status(folder), as_json=json))
    elif json or not sys.stdout.isatty():
        for each in _changes(folder):
            typer.echo(_text(folder, each, as_json=json))
    else:
        _show(folder)


def stop(
    folder: Folder,
    wait: Annotated[
        float | None,
        typer.Option(
            min=0.0, metavar="SECONDS", help="Wait until it has ended, at most this long. Exit code 1 if not."
        ),
    ] = None,
) -> None:
    """End a campaign after its present measurement run; the same command resumes it later.

    No tables are made, as this may take minutes: `upshift inspect DIR` does it.
    To end it at once, send SIGTERM to its process: the measurement run is then interrupted and repeated later.
    """
    _require_campaign(folder)
    if not is_running(folder):
        typer.echo(f"{folder}: no campaign is running here")
        return
    stop_pause.request_stop(folder, time.time())
    if wait is None:
        typer.echo(f"{folder}: asked to stop after the present measurement run")
        return
    deadline = time.monotonic() + wait
    while is_running(folder):
        if time.monotonic() >= deadline:
            raise IncompleteError(
                f"still running after {wait:g} s", where=str(folder), remedy="wait longer, or send it SIGTERM"
            )
        time.sleep(_POLL_S)
    typer.echo(f"{folder}: stopped")


def pause(
    folder: Folder,
    until: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="When it goes on: 2027-01-05T06:00Z, or 6h. Default: upshift resume."),
    ] = None,
) -> None:
    """Let a campaign start no measurement run until `upshift resume`; the present one ends first.

    A pause also holds for a campaign that is started again.
    """
    _require_campaign(folder)
    now = time.time()
    end = None if until is None else stop_pause.parse_time(until, where="--until", now=now)
    stop_pause.request_pause(folder, now, end)
    how = "upshift resume" if end is None else stop_pause.utc(end)
    rest = "" if is_running(folder) else "; no campaign is running here now"
    typer.echo(f"{folder}: paused until {how}{rest}")


def resume(folder: Folder) -> None:
    """End a pause; a campaign whose process has ended is not started by it."""
    _require_campaign(folder)
    if not stop_pause.resume(folder):
        typer.echo(f"{folder}: was not paused")
    elif is_running(folder):
        typer.echo(f"{folder}: goes on")
    else:
        typer.echo(f"{folder}: no longer paused; no campaign is running here: run the same `upshift run` again")


def optout(
    entries: Annotated[
        list[str],
        typer.Argument(metavar="ADD...", help="Domains or prefixes; -: a control machine's whole list, from stdin."),
    ],
) -> None:
    """Leave domains and prefixes alone from now on: all campaigns, crawls and surveys of this host obey within 2 s.

    They are added to /var/lib/upshift/opt-out.txt, one each line. With -, this host also notes that it has the list of
    its control machine, for which campaigns wait after a boot.
    """
    whole = entries == ["-"]
    wanted = opt_out.checked(opt_out.parts(sys.stdin) if whole else entries)
    added = opt_out.add(HOST_LIST, wanted)
    if whole:
        opt_out.confirm(wanted, time.time())
    typer.echo(f"{HOST_LIST}: {len(added)} added, {len(opt_out.listed(HOST_LIST))} listed")


def _require_campaign(folder: Path) -> None:
    """Raises UsageError for a folder that holds no campaign."""
    if not any(folder.glob("vantage/*/journal.sqlite")):
        read_status(folder)  # its error says what is wrong


def _text(folder: Path, status: Status, *, as_json: bool) -> str:
    now, running = time.time(), is_running(folder)
    if as_json:
        here = {
            "silent": status.silent_s(now) is not None,
            "process_runs": running,
            "opt_outs": opt_out.confirmed(),
            "clock": clock_account(now, time.time()),
        }
        return json_format.dumps({**status.document(), **here}, sort_keys=True)
    shown = lines(status, now, running=running)
    if not running and (pause := stop_pause.pause_requested(folder, now)) is not None:
        end = "upshift resume" if pause.until is None else stop_pause.utc(pause.until)
        shown.append(f"{'pause':{INDENT}}holds until {end}, also for a campaign that is started again")
    if not sys.stdout.isatty():
        return "\n".join(shown)
    width, indent = terminal.console(sys.stdout).width, " " * INDENT
    return "\n".join(textwrap.fill(line, width, subsequent_indent=indent, break_on_hyphens=False) for line in shown)


def _changes(folder: Path) -> Iterator[Status]:
    """Each new status, and the last one again when its process is gone or silent, until the campaign has ended."""
    before = None
    while True:
        status = read_status(folder)
        now = status.written_at, is_running(folder), status.silent_s(time.time()) is None
        if now != before:
            yield status
        before = now
        if status.ended:
            return
        time.sleep(_REFRESH_S)


def _show(folder: Path) -> None:
    """The status on a terminal, in place, until the campaign has ended."""
    from rich.text import Text

    def picture(status: Status) -> Text:
        return Text(_text(folder, status, as_json=False))

    look = partial(read_status, folder)
    terminal.watch(look(), look, picture=picture, ended=lambda status: status.ended, every_s=_REFRESH_S)
