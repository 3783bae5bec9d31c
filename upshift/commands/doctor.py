"""`upshift doctor`: what this host can and cannot measure, and how to fix it."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from core import terminal
from core.files import fixed_rates
from core.files.fixed_rates import PacketForm
from core.options import with_options
from core.system import process, this_host
from core.terminal import show_progress
from downloader import clients
from downloader.control import running
from vantage.doctor.checks import BUSY_LIMIT, CheckResult, CheckStatus, campaign_can_run, examine, lab_can_run
from vantage.lab.state import all_labs
from vantage.linux.state_folder import ROOTS, SERVICE_RIGHTS, service_user, state_directory

if TYPE_CHECKING:
    import pwd

    from rich.console import Console

CALIBRATION_S = 1.0
"""How long each transfer of a calibration takes at most [s]."""

Purpose = Literal["lab", "campaign"]
"""What a host is judged for."""

_STYLES = {CheckStatus.OK: "green", CheckStatus.WARN: "yellow", CheckStatus.CANNOT: "bold red"}

_OUTSIDE = "block_suspend"
"""A capability that the service lacks and nobody needs: so the kernel keeps campaigns of the same user from looking
into this process, outside of their walls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorOptions:
    """What is looked at, and what for."""

    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="Short check: the CPU is watched for 0.3 s, not 1 s, and --calibrate measures the ceilings alone.",
        ),
    ] = False
    calibrate: Annotated[
        bool,
        typer.Option(
            "--calibrate",
            help="First measure each client at the same rising rates, and the highest that it reaches here (its "
            "ceiling), 10 to 20 s per client, and keep it for campaigns.",
        ),
    ] = False
    seconds: Annotated[
        float,
        typer.Option(
            "--seconds", min=0.1, max=60, help="Longest time of one transfer of --calibrate [s]; up to 18 each."
        ),
    ] = CALIBRATION_S
    out: Annotated[Path, typer.Option(help="Output folder of a campaign; its free space is checked.")] = Path()
    restore: Annotated[
        bool, typer.Option("--restore", help="First undo what killed campaigns changed on this host.")
    ] = False
    purpose: Annotated[
        Purpose,
        typer.Option(
            "--for",
            help="What the verdict is for: the lab, or a campaign on this host's own network, as one of several.",
        ),
    ] = "lab"
    uplink: Annotated[
        str | None, typer.Option(metavar="INTERFACE", help="Interface to measure by. Default: of the default route.")
    ] = None


@with_options
def doctor(
    options: DoctorOptions,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Show what this host can and cannot measure, and how to fix it.

    Exit code 0 if the lab (with --for campaign: a campaign) can run here, and with --calibrate every client has a
    ceiling, else 1. No packet leaves this host: probes and calibration run in private network namespaces.
    """
    began = time.time()
    from vantage.doctor import ceilings
    from vantage.doctor.gather import gather
    from vantage.host.undo import recover

    if user := service_user():
        raise typer.Exit(process.follow(_as_service(user, sys.argv[1:])))
    undone = recover(state_directory()) if options.restore else []
    if options.calibrate:
        _calibrate(options.seconds, quick=options.quick, as_json=as_json)
    known = ceilings.present(clients.ALL.values(), path=ceilings.calibration_file(), now=ceilings.circumstances())
    unknown = ceilings.unknown(known, clients.ALL)
    facts = gather(
        options.out,
        clients.ALL.values(),
        ceilings=unknown,
        busy_share=(known or {}).get("busy_share", 0.0),
        sample_s=0.3 if options.quick else 1.0,
        uplink=options.uplink,
        dead_labs=[lab.name for lab in all_labs() if not lab.alive()],
    )
    findings = examine(facts)
    verdicts = {"lab": lab_can_run(findings), "campaign": campaign_can_run(findings)}
    if as_json:
        document = {
            "schema": 2,
            "lab_can_run": verdicts["lab"],
            "campaign_can_run": verdicts["campaign"],
            "restored": undone,
            "findings": [asdict(finding) for finding in findings],
            "ceilings": known,
            "uplink": asdict(facts.uplink),
            "campaigns": [asdict(other) for other in running.others()],
            "clock": this_host.clock_account(began, time.time()),
        }
        typer.echo(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        able = verdicts[options.purpose]
        _print(findings, known if options.calibrate else None, undone, purpose=options.purpose, able=able)
    calibrated = (known or {}).get("clients", {}).values() if options.calibrate else ()
    measured = all(entry["fault"] is None for entry in calibrated)
    raise typer.Exit(0 if verdicts[options.purpose] and measured else 1)


def _as_service(user: pwd.struct_passwd, arguments: Sequence[str]) -> list[str]:
    """The same command as the service's user, with the service's rights and folders (role vantage).

    What it undoes was written by that user, so root does not act on it; files of root would be in the service's way.
    """
    rights = ",".join(f"+{right}" for right in (*SERVICE_RIGHTS, _OUTSIDE))
    become = [f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--init-groups", f"--inh-caps={rights}"]
    become += [f"--ambient-caps={rights}", f"--bounding-set=-all,{rights}", "--no-new-privs"]
    folders = [f"HOME={user.pw_dir}", f"XDG_STATE_HOME={user.pw_dir}/.state", f"XDG_RUNTIME_DIR={ROOTS.parent}"]
    return ["setpriv", *become, "--", "env", *folders, sys.executable, "-P", "-m", "upshift", *arguments]


def _calibrate(seconds: float, *, quick: bool, as_json: bool) -> None:
    """Measures and keeps the ceilings; raises UpshiftError where that is not possible."""
    from vantage.doctor import calibrate, ceilings
    from vantage.linux.environment import busy_share

    path = ceilings.calibration_file()
    ceilings.check_writable(path)
    busy = busy_share(0.5)
    if busy > BUSY_LIMIT:
        warning = f"other programs use {busy:.0%} of this host's CPU time, so ceilings come out too low"
        typer.echo(f"upshift: {warning}; stop them, then calibrate again", err=True)
    with show_progress(as_json=as_json) as progress:
        parts: dict[str, Any] = {"rates": (), "packets": (PacketForm.SINGLE,)} if quick else {}
        measured = calibrate.measure(clients.ALL.values(), seconds, **parts, progress=progress)
    ceilings.save(
        measured,
        path=path,
        now=ceilings.circumstances(),
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=seconds,
        busy_share=busy,
    )


def _print(
    findings: Sequence[CheckResult],
    ceilings: Mapping[str, Any] | None,
    undone: Sequence[str],
    *,
    purpose: Purpose,
    able: bool,
) -> None:
    """Prints tables; without colours if the output is not a terminal."""
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
    # What needs attention comes first, and once more by name with the verdict: the good rows fill a screen.
    for finding in sorted(findings, key=lambda finding: list(CheckStatus).index(finding.status), reverse=True):
        status = Text(finding.status.value, style=_STYLES[finding.status])
        table.add_row(Text(finding.name), status, Text(finding.says), Text(finding.remedy or ""))
    console.print(table)
    if ceilings is not None:
        _print_ceilings(console, ceilings)
    console.print()
    if purpose == "lab":
        verdict = "The lab can run here." if able else "The lab cannot run here: fix the checks marked cannot."
    else:
        lacks = [f.name for f in findings if f.campaign and f.status is not CheckStatus.OK]
        verdict = "A campaign can run here." if able else f"No campaign should run here: fix {', '.join(lacks)}."
    if warned := [finding.name for finding in findings if finding.status is CheckStatus.WARN]:
        console.print(Text(f"Warnings: {', '.join(dict.fromkeys(warned))} (first rows above)."))
    console.print(Text(verdict, style="green" if able else "bold red"))


def _print_ceilings(console: Console, calibration: Mapping[str, Any]) -> None:
    """Each client by rate, as wide as the terminal, and which transfers failed."""
    from rich.text import Text

    full = fixed_rates.cells(calibration["clients"])
    narrow = [[*row[: fixed_rates.PARTS], row[-1]] for row in full]
    console.print()
    terminal.print_table(console, (full, narrow), title=fixed_rates.TITLE, words=fixed_rates.WORDS)
    terminal.print_line(console, fixed_rates.LEGEND)
    for client, entry in calibration["clients"].items():
        faults = Counter(transfer["fault"] for transfer in entry["transfers"] if transfer["fault"] is not None)
        sentences = [f"{count} of its transfers failed: {fault}" for fault, count in faults.items()]
        for fault in sentences or filter(None, [entry["fault"]]):
            console.print(Text(f"{client}: {fault}", style="yellow"))
