"""`upshift survey`: what servers support. A survey that needs kernel settings gets a place with these settings."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from core.errors import UsageError
from survey.command import command, figures
from survey.options.prober import wrong_settings
from survey.survey import Site
from survey.surveys import ALL
from upshift.commands.client_windows import client_windows

if TYPE_CHECKING:
    from core.system.place import Prober

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, help="What servers support.")


@app.callback()
def _group() -> None:
    """What servers support."""


@contextmanager
def place_for(isolation: str | None, nameserver: str | None, kernel: Mapping[str, str], raw: bool) -> Iterator[Site]:
    """Where programs run, with the kernel's settings as a survey needs them.

    Args:
        isolation: `netns` (a namespace for this survey), `host` (this host's settings, restored afterwards), `here`
            (nothing is changed outside a lab's node: programs refuse wrong settings); None: chosen automatically.
        nameserver: if given, the host's own need not be usable in a namespace. Names are resolved outside it.
        kernel: setting, relative to /proc/sys -> value.
        raw: whether its programs need an address of their own.

    Raises:
        PlaceError: no permission, a program is missing.
    """
    from core.domain import Sysctl
    from core.system import process
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
            yield Site(
                start=lambda argv: process.start(argv, stdin=True, stdout=True, binary=True),
                prober=_prober_here() if raw else None,
            )
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
