"""`upshift doctor`: what this host can and cannot measure, and how to fix it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from downloader import clients
from upshift.errors import UpshiftError
from vantage.doctor.checks import Finding, Status, examine, lab_can_run

CEILING_S = 3.0
"""How long each client downloads [s]."""

_STYLES = {Status.OK: "green", Status.WARN: "yellow", Status.CANNOT: "bold red"}


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Short check: no ceilings, CPU watched for 0.3 s.")] = False,
    ceilings: Annotated[
        bool, typer.Option(help="Measure the highest rate of each client [Mbit/s], 3 s each, over a private loopback.")
    ] = True,
    out: Annotated[Path, typer.Option(help="Output folder of a campaign; its free space is checked.")] = Path(),
    restore: Annotated[
        bool, typer.Option("--restore", help="First undo what killed campaigns changed on this host.")
    ] = False,
) -> None:
    """Show what this host can and cannot measure, and how to fix it.

    Exit code 0 if the lab can run here, else 1. Sends no packets: probes run in a private network namespace.
    """
    from vantage.doctor import facts as host_facts
    from vantage.host import guardian
    from vantage.lab.state import state_directory

    undone = guardian.recover(state_directory()) if restore else []
    findings = examine(host_facts.gather(out, clients.ALL.values(), sample_s=0.3 if quick else 1.0))
    measured, fault = ([], None) if quick or not ceilings else _measure()
    able = lab_can_run(findings)
    if as_json:
        document = {
            "schema": 1,
            "lab_can_run": able,
            "restored": undone,
            "findings": [asdict(finding) for finding in findings],
            "ceilings": measured,
            "ceilings_fault": fault,
        }
        typer.echo(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        _print(findings, measured, fault, undone, able=able)
    raise typer.Exit(0 if able else 1)


def _measure() -> tuple[list[dict[str, object]], str | None]:
    """Ceilings as plain data, or the reason for having none."""
    from vantage.doctor import ceilings as host_ceilings

    try:
        return [asdict(ceiling) for ceiling in host_ceilings.measure(clients.ALL.values(), CEILING_S)], None
    except UpshiftError as error:
        return [], error.sentence()


def _print(
    findings: Sequence[Finding],
    ceilings: Sequence[dict[str, object]],
    fault: str | None,
    undone: Sequence[str],
    *,
    able: bool,
) -> None:
    """Tables for people; without colours if the output is not a terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    if not console.is_terminal:
        console = Console(width=160)
    for sentence in undone:
        console.print(Text(sentence))
    table = Table(box=None, pad_edge=False)
    for heading in ("check", "", "result", "remedy"):
        table.add_column(heading, overflow="fold")
    for finding in findings:
        status = Text(finding.status.value, style=_STYLES[finding.status])
        table.add_row(Text(finding.name), status, Text(finding.says), Text(finding.remedy or ""))
    console.print(table)
    if ceilings:
        speeds = Table(box=None, pad_edge=False)
        speeds.add_column("client")
        speeds.add_column("ceiling [Mbit/s]", justify="right")
        speeds.add_column("client CPU [s/GB]", justify="right")
        for entry in ceilings:
            rate, cost = entry["mbit_s"], entry["cpu_s_per_gb"]
            speeds.add_row(
                Text(str(entry["client"])),
                Text(f"{rate:.0f}" if isinstance(rate, float) else str(entry["fault"])),
                Text(f"{cost:.1f}" if isinstance(cost, float) else ""),
            )
        console.print()
        console.print(speeds)
        console.print(
            Text(
                "Over loopback, client and server sharing this host's CPUs. Near a ceiling the client is measured, "
                "not the path."
            )
        )
    if fault:
        console.print(Text(f"The clients' ceilings could not be measured: {fault}", style="yellow"))
    console.print()
    verdict = "The lab can run here." if able else "The lab cannot run here: fix the checks marked cannot."
    console.print(Text(verdict, style="green" if able else "bold red"))
