"""The options of `upshift run`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

LetCpusSleep = Annotated[
    bool,
    typer.Option(
        "--let-cpus-sleep",
        help="Do not keep this host's CPUs awake. They may then wake up, and packets come, 0.1 to 0.5 ms late.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How a campaign runs; what is None is as its file says."""

    order: Annotated[
        str | None, typer.Option(help="balanced or published (the paper's fixed order). Default: the campaign's.")
    ] = None
    vantage: Annotated[list[str] | None, typer.Option(help="Only this vantage point; may be repeated.")] = None
    here: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The vantage point that this host is. The campaign's others run on other hosts, and take turns with "
            "it by the clock (slots).",
        ),
    ] = None
    host_file: Annotated[
        Path | None,
        typer.Option(
            metavar="HOST.toml",
            help="Fields of the campaign that are this host's own, instead of the campaign's: targets, ca_file, "
            "block_lists, opt_out, disk, uplink, vantage_clock.",
        ),
    ] = None
    isolation: Annotated[
        str | None,
        typer.Option(help="netns or host: where kernel settings are changed outside a lab. Default: the campaign's."),
    ] = None
    stop_when: Annotated[
        list[str] | None,
        typer.Option(
            metavar="QUANTITY=WIDTH",
            help="Stop a vantage point as soon as the 95 % intervals of all its comparisons with the role effect are "
            "this narrow: median=0.05 (median speed-up: upper end at most 5 % above the lower one), share=0.2 (share "
            "of faster domains, 0 to 1: upper end less lower end). May be repeated: all must be met. The intervals "
            "are valid at every look; one domain is one step. never: measure the whole plan. Default: the campaign's "
            "until_ci, else never.",
        ),
    ] = None
    until: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="End then, e.g. 2027-01-05T06:00Z, or 6h from now: no measurement run starts that could last longer. "
            "The same command with another time resumes it. Default: the end of the plan.",
        ),
    ] = None
    metrics: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Serve the metrics of DIR/upshift.prom to this host, at unix:PATH or 127.0.0.1:PORT (/metrics).",
        ),
    ] = None
    client_user: Annotated[
        str | None,
        typer.Option(
            metavar="USER",
            help="User that clients become before their first packet, where Upshift may change it. Default: nobody.",
        ),
    ] = None
    let_cpus_sleep: LetCpusSleep = False
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Run beside another campaign of this host; the status and the environment of both then say so.",
        ),
    ] = False
