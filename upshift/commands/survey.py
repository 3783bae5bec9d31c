"""`upshift survey`: what servers support. A survey that needs kernel settings gets a place with these settings."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from core.errors import UsageError
from core.options import command_group
from core.outreach.arguments import AsJson
from survey.command import command, figures
from survey.options.prober import wrong_settings
from survey.surveys import ALL, Site

if TYPE_CHECKING:
    from core.system.place import Prober
    from survey.iw.figures import ClientWindow


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


def _measured(path: Path) -> list[ClientWindow]:
    """The clients of a capture: the smallest window per client address. Raises UsageError if it has no request."""
    from analysis.captures.scan import CaptureReader
    from survey.iw.figures import ClientWindow

    windows: dict[str, int] = {}
    for connection in CaptureReader(path):
        window = connection.client.first_data_window
        if connection.protocol == "tcp" and window is not None:
            address = str(connection.client_ip)
            windows[address] = min(window, windows.get(address, window))
    if not windows:
        raise UsageError("no client sends a request in this capture", where=str(path), remedy="give another capture")
    several = len(windows) > 1
    return [
        ClientWindow(name=f"{path.name} ({address})" if several else path.name, window_bytes=size, source="measured")
        for address, size in sorted(windows.items())
    ]


app = command_group("What servers support.")


@contextmanager
def place_for(
    isolation: str | None, nameserver: str | None, kernel: Mapping[str, str], raw: bool, ipv6: bool
) -> Iterator[Site]:
    """Where programs run, with the kernel's settings as a survey needs them.

    Args:
        isolation: `netns` (a namespace for this survey), `host` (this host's settings, restored afterwards), `here`
            (nothing is changed outside a lab's node: programs refuse wrong settings); None: chosen automatically.
        nameserver: if given, the host's own need not be usable in a namespace. Names are resolved outside it.
        kernel: setting, relative to /proc/sys -> value.
        raw: whether its programs need an address of their own.
        ipv6: whether they contact servers over IPv6.

    Raises:
        PlaceError: no permission, a program is missing.
    """
    from core.domain import Sysctl
    from core.system import process
    from survey.programs import start_here
    from vantage.lab.control import LAB_VARIABLE

    if isolation not in (None, "netns", "host", "here"):
        raise UsageError(
            f"{isolation!r} is not a valid isolation", where="--isolation", remedy="write netns, host or here"
        )
    settings = [Sysctl(name=name.replace("/", "."), value=value) for name, value in kernel.items()]
    wrong = wrong_settings(kernel)
    in_lab = LAB_VARIABLE in os.environ
    if isolation == "here" or (isolation is None and (in_lab or not (wrong or raw))):
        from vantage.linux.namespace import Namespace

        node = Namespace(process.run, ())
        try:
            if in_lab and wrong:
                node.apply(settings)
            yield Site(start=start_here, prober=_prober_here() if raw else None)
        finally:
            node.restore()
        return
    from core.reach import ANYWHERE
    from vantage.host.place import HostPlace

    with HostPlace(
        "survey",
        isolation="host" if isolation == "host" else "netns",
        allowed_prefixes=ANYWHERE,
        nameservers=() if nameserver is None else (nameserver,),
        ipv6=ipv6,
    ) as place:
        for note in place.notes:
            typer.echo(f"upshift: {note}", err=True)
        place.apply(settings)
        yield Site(
            start=lambda argv: place.start(argv, stdin=True, stdout=True, binary=True),
            prober=place.prober() if raw else None,
        )


def _prober_here() -> Prober:
    """The prober's addresses of the lab's node that this process runs in. Raises PlaceError outside a lab."""
    from core.errors import PlaceError
    from vantage.lab.place import prober_here

    prober = prober_here(os.environ)
    if prober is None:
        raise PlaceError("there is no address for the prober here", remedy="leave --isolation at netns, as root")
    return prober


for _survey in ALL.values():
    app.command(_survey.name)(command(_survey, place_for))
app.command()(figures)
app.command()(client_windows)
