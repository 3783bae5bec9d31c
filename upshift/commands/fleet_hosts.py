"""`upshift fleet`: the group; what needs a campaign, too, is added in `upshift.commands.fleet`."""

from __future__ import annotations

import json as json_format
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from core.errors import UsageError
from core.options import as_command, command_group, own_parameters, parameters_of
from core.outreach import opt_out
from core.terminal import show_progress as progress_display
from core.untrusted import scrub
from downloader.control.running import shown_end
from upshift import fleet_report
from vantage.fleet import runs
from vantage.fleet.inventory import Fleet, open_fleet, write_example
from vantage.fleet.readiness import campaigns_beside, clock_faults, lacks
from vantage.fleet.verdicts import HostVerdict

AsJson = Annotated[bool, typer.Option("--json", help="Progress and result as JSON lines.")]
Name = Annotated[
    str | None,
    typer.Option("--campaign", metavar="NAME", help="Name of the campaign on the hosts. Default: the inventory's."),
]
OPT_OUTS = "campaign_opt_out", "the file of opt-outs on this machine, even if it is empty"
"""The variable that every run needs, and what it is."""

_MOST_AGAINST = 6000
"""Most characters of what speaks against a host, which has said most of it: a doctor has about twenty findings."""

app = command_group(
    "Vantage points on many hosts, by Ansible (extra fleet). Hosts are those of the inventory's group vantage."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOptions:
    """The options of every command on hosts, which name the fleet."""

    inventory: Annotated[
        Path,
        typer.Option("--inventory", "-i", metavar="INVENTORY", help="Inventory of Ansible: a file, or a folder."),
    ] = Path("hosts.yml")
    limit: Annotated[
        str | None,
        typer.Option("--limit", metavar="HOSTS", help="Only these hosts: names with commas, or a pattern."),
    ] = None
    ask_become_pass: Annotated[
        bool,
        typer.Option(
            "--ask-become-pass",
            "-K",
            help="Ask for the password of sudo on the hosts. Not a terminal: a line of input.",
        ),
    ] = False


def on_hosts(work: Callable[..., None]) -> Callable[..., None]:
    """Makes `work(fleet, ...)` a command of the group: its options are those that name the fleet, and its own."""

    def command(*, inventory: Path, limit: str | None, ask_become_pass: bool, **own: Any) -> None:
        work(open_fleet(inventory, limit, ask=ask_become_pass), **own)

    own = own_parameters(work, skip=("fleet",))
    return app.command()(as_command(command, [*parameters_of(FleetOptions), *own], like=work))


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder for it; made if missing.")],
) -> None:
    """Write an inventory to fill in: DIR/hosts.yml, with hosts, files and what else can be set."""
    made = write_example(folder)
    typer.echo(f"{made}: name your hosts and files there; next: upshift fleet bundle")


@app.command()
def bundle(
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Folder for the bundles; made if missing.")],
    python: Annotated[
        list[str] | None,
        typer.Option(metavar="3.NN", help="Python of the hosts; may be repeated. Default: 3.11, 3.12 and 3.13."),
    ] = None,
    json: AsJson = False,
) -> None:
    """Build what hosts install: upshift-bundle-HASH12-py3.NN-x86_64.tar, about 80 MB for each Python version.

    A bundle holds Upshift with its programs, the wheels of uv.lock by hash, and pip: a host needs neither an index nor
    a compiler. The same checkout gives the same bytes. A bundle for the same Python that is already in DIR is
    replaced. Needs a checkout, and the network.
    """
    from vantage.fleet.bundle import PYTHONS, build, find_checkout

    checkout = find_checkout()
    with progress_display(as_json=json) as progress:
        made = build(checkout, out, list(dict.fromkeys(python or PYTHONS)), progress=progress)
    if json:
        typer.echo(json_format.dumps([str(path) for path in made]))
        return
    for path in made:
        typer.echo(f"{path} ({path.stat().st_size / 1e6:.0f} MB)")


@on_hosts
def provision(fleet: Fleet, json: AsJson = False) -> None:
    """Make hosts vantage points: packages, a user, the bundle, the unit, a page that explains the measurements.

    Nothing is done twice: on a host that is ready, nothing changes. A host that lacks something (sudo, space, a Python
    for which there is a bundle) is reported before anything is changed on it. Exit code 1 if a host failed.
    """
    bundles = Path(fleet.required("vantage_bundles", "the folder that upshift fleet bundle -o DIR made"))
    if not any(bundles.glob("upshift-bundle-*.tar")):
        raise UsageError(
            "there is no bundle here", where=str(bundles), remedy=f"run: upshift fleet bundle -o {bundles}"
        )
    fleet_report.end(
        play("provision", fleet, {"vantage_bundles": str(bundles), "vantage_control": runs.control()}, as_json=json),
        as_json=json,
        done="provisioned",
    )


@on_hosts
def doctor(
    fleet: Fleet,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="First measure the highest rate of each client on each host.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Why a host is not ready for a campaign: clock, disk, NAT, uplink, ceilings of clients. Exit code 1 if
    one is not ready.
    """
    verdicts = examine(fleet, fleet.shared("campaign_isolation"), calibrate=calibrate, as_json=json)
    fleet_report.end(verdicts, as_json=json, done="a campaign can run here")


@on_hosts
def pause(
    fleet: Fleet,
    campaign: Name = None,
    until: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="When it goes on, e.g. 2027-01-05T06:00Z. Default: upshift fleet resume."),
    ] = None,
    json: AsJson = False,
) -> None:
    """Let no host start a measurement run until `upshift fleet resume`; the present ones end first."""
    _ask("pause", fleet, campaign, {"campaign_paused": True, "campaign_pause_until": until or ""}, json)


@on_hosts
def resume(fleet: Fleet, campaign: Name = None, json: AsJson = False) -> None:
    """End a pause on all hosts."""
    _ask("pause", fleet, campaign, {"campaign_paused": False}, json, done="goes on")


@on_hosts
def stop(
    fleet: Fleet,
    campaign: Name = None,
    wait: Annotated[float, typer.Option(min=1, metavar="SECONDS", help="Longest time to wait for its end.")] = 330,
    json: AsJson = False,
) -> None:
    """End a campaign on all hosts after its present measurement runs; `upshift fleet run` resumes it.

    A measurement run that takes more than 300 s is interrupted, and repeated then.
    """
    _ask("stop", fleet, campaign, {"campaign_stop_wait": round(wait)}, json, done="stopped")


@on_hosts
def optout(
    fleet: Fleet,
    entries: Annotated[list[str], typer.Argument(metavar="ADD...", help="Domains or prefixes to leave alone.")],
    json: AsJson = False,
) -> None:
    """Leave domains and prefixes alone from now on, on all hosts: all campaigns there, present and to come.

    They are added to the inventory's campaign_opt_out, and all of that file to the list of each host, which running
    campaigns obey within seconds. A host that does not answer gets it later: upshift fleet status names it until then.
    """
    wanted = opt_out.checked(entries)
    kept = Path(fleet.required(*OPT_OUTS))
    opt_out.add(kept, wanted)
    opt_out.listed(kept)  # refused here with the line, rather than by every host
    fleet_report.end(hand_over(fleet, kept, as_json=json), as_json=json, done="left alone from now on")


@on_hosts
def teardown(fleet: Fleet, json: AsJson = False) -> None:
    """Remove what provisioning added to the hosts; their results stay."""
    verdicts = play("teardown", fleet, {"vantage_control": runs.control()}, as_json=json)
    fleet_report.end(verdicts, as_json=json, done="taken away")


def play(playbook: str, fleet: Fleet, variables: dict[str, Any], *, as_json: bool | None) -> dict[str, HostVerdict]:
    """Runs a playbook on the selected hosts, with progress on standard error (None: without)."""
    task = runs.Task(playbook=playbook, variables=variables, quick=playbook == "status", password=fleet.password)
    if as_json is None:
        return runs.on_hosts(task, fleet.path, fleet.selected, progress=None)
    with progress_display(as_json=as_json) as progress:
        return runs.on_hosts(task, fleet.path, fleet.selected, progress=progress)


def hand_over(fleet: Fleet, opt_outs: Path, *, as_json: bool | None) -> dict[str, HostVerdict]:
    """Adds the control machine's list of opt-outs to that of each selected host, which confirms that it has it."""
    return play("optout", fleet, {"campaign_opt_out": str(opt_outs)}, as_json=as_json)


def examine(
    fleet: Fleet, isolation: str, *, calibrate: bool, as_json: bool, campaign: str = "", ipv6: bool = False
) -> dict[str, HostVerdict]:
    """The doctor's verdict on each selected host: what speaks against a campaign there is its fault.

    Args:
        campaign: the one that is to run, so that others on a host speak against it; empty: any may.
        ipv6: it contacts servers over IPv6 alone.
    """
    verdicts = play("doctor", fleet, {"doctor_calibrate": calibrate}, as_json=as_json)
    documents = {name: verdict.result for name, verdict in verdicts.items() if verdict.result is not None}
    against = lacks(documents, fleet.hosts, isolation, ipv6=ipv6)
    for name, clause in clock_faults(verdicts, fleet.hosts).items():
        against[name].append(clause)
    for name, document in documents.items() if campaign else ():
        against[name] += [f"the campaign {other} runs there" for other in beside(document, campaign)]
    return {
        name: replace(verdict, fault=scrub("; ".join(against[name]), most=_MOST_AGAINST))
        if against.get(name) and not verdict.fault
        else verdict
        for name, verdict in verdicts.items()
    }


def beside(document: Mapping[str, Any], campaign: str) -> list[str]:
    """Names of the other campaigns that run on a host, by its doctor's answer."""
    # Of the path, only what it ends with: the folder of all results may be a link.
    return campaigns_beside(document, shown_end(Path("/", campaign, "results")))


def _ask(
    playbook: str,
    fleet: Fleet,
    campaign: str | None,
    variables: dict[str, Any],
    as_json: bool,
    done: str = "asked",
) -> None:
    name = fleet.campaign(campaign)
    verdicts = play(playbook, fleet, {"campaign_name": name, **variables}, as_json=as_json)
    fleet_report.end(verdicts, as_json=as_json, done=done, campaign=name)
