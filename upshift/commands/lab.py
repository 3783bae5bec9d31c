"""`upshift lab`: the emulated Internet."""

from __future__ import annotations

import json
import os
from contextlib import closing, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from core.errors import LabError, NoisyHostError, UsageError
from core.options import command_group
from core.terminal import show_progress
from upshift.run_options import LetCpusSleep
from vantage.lab import control
from vantage.lab.files import write_files
from vantage.lab.lab import Lab, open_lab
from vantage.lab.place import command_into
from vantage.lab.plan import read_plan
from vantage.lab.state import LabFolder, all_labs, lab_folder
from vantage.lab.topology_file import load_topology, shipped
from vantage.linux.cpu import parse_cpus_awake

app = command_group(__doc__ or "")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def up(
    topology: Annotated[str, typer.Argument(help=f"Name ({', '.join(shipped())}) or path of a TOML file.")],
    let_cpus_sleep: LetCpusSleep = False,
    as_json: AsJson = False,
) -> None:
    """Build a lab; returns when all its servers answer."""
    with show_progress(as_json=as_json) as progress:
        folder = control.up(topology, let_cpus_sleep=let_cpus_sleep, progress=progress)
    if as_json:
        typer.echo(json.dumps(describe(folder)))
        return
    lab = Lab(folder)
    typer.echo(
        f"The lab {lab.name} is up: vantage points {', '.join(lab.vantage_points)}, {len(lab.targets())} targets."
    )
    typer.echo(f"The host's {lab.cpus_awake().sentence()}.")
    if targets := lab.targets():
        typer.echo(f"Try: upshift lab exec {lab.vantage_points[0]} -- curl {targets[0].url} -o file")


@app.command()
def down(
    name: Annotated[str | None, typer.Argument(help="Name of a lab; without it, all labs.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All labs of this state folder (the default).")] = False,
) -> None:
    """Remove labs and everything that belongs to them, even after a crash.

    A lab in which another command still runs (`upshift run`, `demo`) is only removed by its name.
    """
    if name is not None and everything:
        raise UsageError(f"--all removes all labs, not only {name}", remedy="give one of the two")
    busy = []
    if name is not None:
        done = [name] if control.down(lab_folder(name)) else []
        others = [folder.name for folder in all_labs() if folder.alive()]
        if not done and others:
            raise UsageError(f"no lab named {name} is up", remedy=f"labs that are up: {', '.join(others)}")
    else:
        busy = [folder.name for folder in all_labs() if folder.busy()]
        done = control.down_all(spare=busy)
    if done or not busy:
        typer.echo(f"Removed: {', '.join(done)}." if done else "No lab to remove.")
    for each in busy:
        typer.echo(f"Left: {each}, as a command still runs in it; to end it: upshift lab down {each}")


@app.command(name="exec", context_settings={"ignore_unknown_options": True})
def execute(
    node: Annotated[str, typer.Argument(help="Node to run in: a vantage point or a server.")],
    command: Annotated[list[str], typer.Argument(help="Program and arguments, after --.")],
    lab: Annotated[str | None, typer.Option("--lab", help="Name of the lab, if several are up.")] = None,
) -> None:
    """Run a program in a node of the lab, and exit with its exit code."""
    folder = control.choose(lab)
    state = folder.read_state()
    if state is None or "pid" not in state:  # then there may be no plan either
        raise LabError(f"the lab {folder.name} is still coming up", remedy="try again in a moment")
    known = read_plan(folder.plan).addresses
    if node not in known:
        raise UsageError(f"the lab {folder.name} has no node {node!r}", remedy=f"it has: {', '.join(known)}")
    argv = command_into(folder, node, command, state=state)
    os.execvp(argv[0], argv)  # noqa: S606 - signals, terminal and exit code are the program's own


@app.command()
def files(
    topology: Annotated[str, typer.Argument(help=f"Name ({', '.join(shipped())}) or path of a TOML file.")] = "anrw",
    out: Annotated[Path, typer.Option("--out", "-o", help="Output folder; created if missing.")] = Path(),
    as_json: AsJson = False,
) -> None:
    """Write the input files for a crawl and a mapping of a lab: top list, routing table, AS organisations.

    Needs neither root nor the lab.
    """
    written = asdict(write_files(load_topology(topology), out))
    if as_json:
        typer.echo(json.dumps({name: str(path) for name, path in written.items()}))
        return
    for path in written.values():
        typer.echo(path)


@app.command()
def status(as_json: AsJson = False) -> None:
    """List the labs and their status."""
    labs = [describe(folder) for folder in all_labs()]
    if as_json:
        typer.echo(json.dumps(labs))
        return
    for entry in labs:
        line = f"{entry['name']}: {entry['status']}"
        typer.echo(f"{line} ({entry['detail']})" if entry["detail"] else line)
        if "timing" in entry:
            typer.echo(f"  {parse_cpus_awake(entry['timing']['cpus_awake']).sentence()}")
    if not labs:
        typer.echo("No lab is up.")


@app.command()
def calibrate(
    topology: Annotated[str, typer.Argument(help="Name or path. Uses the lab if it is up, else builds one.")] = "small",
    quick: Annotated[bool, typer.Option("--quick", help="Fewer paths and samples; takes less than a minute.")] = False,
    let_cpus_sleep: LetCpusSleep = False,
    as_json: AsJson = False,
) -> None:
    """Measure a lab against its topology. Exit code 0: right, 1: wrong, 3: the host is too noisy for a verdict."""
    from vantage.lab.calibrate import Calibration

    with (
        show_progress(as_json=as_json) as progress,
        open_lab(topology, progress=progress, let_cpus_sleep=let_cpus_sleep) as lab,
        closing(Calibration(lab, own=lab.folder.is_own(), quick=quick)) as calibration,
    ):
        checks = calibration.run(progress)
        wakeups, awake = calibration.wakeups, calibration.cpus_awake
    bad = [check for check in checks if not check.good]
    noisy = [check for check in bad if check.noise]
    verdict = "right" if not bad else "noisy" if len(noisy) == len(bad) else "wrong"
    if as_json:
        document = {"verdict": verdict, "wakeups": asdict(wakeups), "cpus_awake": asdict(awake)}
        typer.echo(json.dumps({**document, "checks": [asdict(check) for check in checks]}))
    else:
        typer.echo(f"This host wakes late by {wakeups.sentence()}; {awake.sentence()}.")
        for check in checks:
            mark = "ok   " if check.good else "noisy" if check.noise else "WRONG"
            typer.echo(f"{mark} {check.what:<18} {check.where:<28} {check.programmed:>14} {check.measured:>24}")
        typer.echo(f"The lab is {verdict}." if verdict != "noisy" else "The host is too noisy for a verdict.")
    if verdict == "noisy":
        reasons = "; ".join(f"{check.what} {check.where}: {check.noise}" for check in noisy)
        raise NoisyHostError(f"the host is too noisy for a verdict ({reasons})", remedy="try again on a quiet host")
    if verdict == "wrong":
        raise typer.Exit(1)


def describe(folder: LabFolder) -> dict[str, Any]:
    """What `--json` prints of a lab."""
    state = folder.read_state() or {}
    alive = folder.alive()
    described: dict[str, Any] = {
        "name": folder.name,
        "folder": str(folder.root),
        "status": state.get("status", "starting") if alive else "dead",
        "detail": state.get("detail", "") if alive else "run: upshift lab down",
        "pid": state.get("pid"),
        "ca_file": str(folder.ca),
    }
    if alive:
        with suppress(FileNotFoundError):  # it may be coming up
            own = read_plan(folder.plan).addresses
            described["addresses"] = {name: asdict(addresses) for name, addresses in own.items()}
    if described["status"] == "ready":
        with suppress(LabError, UsageError, FileNotFoundError):  # it may be going down
            described["timing"] = Lab(folder).timing()
    return described
