"""`upshift survey`: what servers support. Handshakes need a place whose kernel asks for every option."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from survey.options.cli import figures
from survey.quic.cli import quic
from upshift.errors import UsageError
from upshift.outreach import arguments

if TYPE_CHECKING:
    from survey.options.probers import Start
    from survey.options.run import Summary

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, help="What servers support.")
app.command()(quic)
app.command()(figures)


@app.callback()
def _group() -> None:
    """What servers support."""


@app.command()
def options(
    source: Annotated[Path, typer.Argument(metavar="INPUT", help="Top list of any kind, or targets (.parquet, .csv).")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Results, one row per domain (Parquet).")],
    targets_out: Annotated[
        Path | None,
        typer.Option(help="Write INPUT (targets) again, with ecn, sack and window_scaling filled in (.parquet, .csv)."),
    ] = None,
    ledger: arguments.LedgerFile = None,
    port: Annotated[
        list[int] | None,
        typer.Option(min=1, max=65535, help="TCP port; may be repeated: the next one where none answers. [443, 80]"),
    ] = None,
    ipv6: Annotated[bool, typer.Option("--ipv6", help="Ask for AAAA records and shake hands over IPv6.")] = False,
    shard: arguments.Shard = "1/1",
    limit: arguments.Limit = None,
    rate: Annotated[float, typer.Option(min=0.1, max=200_000, help="Handshakes (and names asked) per second.")] = 1000,
    concurrency: Annotated[int, typer.Option(min=1, max=100_000, help="Handshakes at the same time.")] = 2000,
    per_address: Annotated[int, typer.Option(min=1, help="The same, for each server address.")] = 2,
    address_rate: Annotated[float, typer.Option(min=0.01, help="Handshakes per second and server address.")] = 10,
    timeout: Annotated[float, typer.Option(min=0.1, max=130, help="Longest handshake [s].")] = 5.0,
    again_after: Annotated[
        float, typer.Option(min=0, help="Ask a server without any option again after this time [s]; 0: never.")
    ] = 3.0,
    block_list: arguments.BlockLists = None,
    opt_out: arguments.OptOut = None,
    nameserver: arguments.Nameserver = None,
    nameserver_port: arguments.NameserverPort = 53,
    isolation: Annotated[
        str | None,
        typer.Option(
            help="Where kernel settings are made: netns (a namespace), host, or here (they are right already)."
            " Default: here in a lab or where they are right, else netns."
        ),
    ] = None,
    probers: Annotated[int, typer.Option(min=1, max=64, help="Processes that shake hands.")] = 1,
    as_json: arguments.AsJson = False,
) -> None:
    """Shake hands with every domain's server: ECN, SACK, window scaling, timestamps, SYNs sent again.

    A handshake is closed by RST; no data is sent. Killed or interrupted, the same command goes on from its ledger.
    """
    from survey.fill import check_targets_out
    from survey.options.run import Options, survey
    from upshift.outreach.blocks import block_list_paths
    from upshift.outreach.lists import parse_shard
    from upshift.progress import show

    chosen = Options(
        source=source,
        out=out,
        ledger=arguments.ledger_beside(out, ledger),
        targets_out=targets_out,
        ports=tuple(dict.fromkeys(port or (443, 80))),
        ipv6=ipv6,
        shard=parse_shard(shard),
        limit=limit,
        concurrency=concurrency,
        rate_per_s=rate,
        per_address=per_address,
        address_rate_per_s=address_rate,
        timeout_s=timeout,
        again_after_s=again_after,
        probers=probers,
        nameserver=nameserver,
        nameserver_port=nameserver_port,
        block_lists=block_list_paths(block_list, opt_out),
    )
    check_targets_out(source, out, targets_out)  # before a namespace is made for it
    with show(as_json=as_json) as progress, place_for(isolation, nameserver) as start:
        summary = survey(chosen, start, progress)
    _tell(summary, out, as_json=as_json)


def _tell(summary: Summary, out: Path, *, as_json: bool) -> None:
    """What was read, and the figures."""
    from survey.options.figures import as_document, print_figures
    from survey.options.figures import figures as count

    found = count(summary.records)
    if as_json:
        read: dict[str, object] = {"complaints": summary.complaints}
        if summary.subjects is not None:
            read["broken_rows"] = dict(summary.subjects.broken)
            read["duplicates"] = summary.subjects.duplicates
        typer.echo(json.dumps({**as_document(found), **read}))
        return
    for complaint in summary.complaints:
        typer.echo(complaint, err=True)
    if summary.subjects is not None:
        for fault in summary.subjects.faults:
            typer.echo(str(fault), err=True)
        for reason, number in summary.subjects.broken.items():
            typer.echo(f"rows passed over: {number:,} {reason}", err=True)
        if summary.subjects.duplicates:
            typer.echo(f"rows passed over: {summary.subjects.duplicates:,} domains that were there already", err=True)
    print_figures(found, sys.stdout)
    typer.echo(f"Results: {out}; again, as CSV or as a picture: upshift survey figures {out}")


@contextmanager
def place_for(isolation: str | None, nameserver: str | None = None) -> Iterator[Start]:
    """How to start a prober where the kernel asks for every option.

    Args:
        isolation: `netns` (a namespace for this survey), `host` (this host's settings, put back afterwards), `here`
            (nothing is changed outside a lab's node: the prober refuses wrong settings); None chooses.
        nameserver: where it is given, the host's own need not be fit for a namespace. Names are asked for outside it.

    Raises:
        PlaceError: no permission, a program is missing.
    """
    from survey.options.prober import WANTED, wrong_settings
    from upshift.domain import Sysctl
    from upshift.system import process
    from vantage.lab.life.control import LAB_VARIABLE

    if isolation not in (None, "netns", "host", "here"):
        raise UsageError(f"there is no isolation {isolation!r}", where="--isolation", remedy="known: netns, host, here")
    settings = [Sysctl(name=name.replace("/", "."), value=value) for name, value in WANTED.items()]
    wrong = wrong_settings()
    in_lab = LAB_VARIABLE in os.environ
    if isolation == "here" or (isolation is None and (in_lab or not wrong)):
        from vantage.linux.namespace import Namespace

        node = Namespace(process.run, ())
        try:
            if in_lab and wrong:
                node.apply(settings)
            yield lambda argv: process.start(argv, stdin=True, stdout=True, binary=True)
        finally:
            node.restore()
        return
    from upshift.reach import ANYWHERE
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
        yield lambda argv: place.start(argv, stdin=True, stdout=True, binary=True)
