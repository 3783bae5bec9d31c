"""`upshift fleet`: the commands of `vantage.fleet`, and those that need a campaign, too."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from core import terminal
from core.errors import UsageError, not_found
from core.outreach import opt_out
from core.untrusted import scrub
from downloader.campaign.campaign import Campaign, load
from downloader.limits.budget import check_budgets
from downloader.schedule.slots import SharedPlan
from upshift import fleet_collect, fleet_status
from upshift.commands.fleet_hosts import (
    INVENTORY,
    OPT_OUTS,
    AsJson,
    AskBecomePass,
    Inventory,
    Limit,
    Name,
    app,
    clock_faults,
    examine,
    hand_over,
    play,
)
from upshift.shared_plan import shared_plan
from vantage.fleet import report
from vantage.fleet.examined import campaigns_beside
from vantage.fleet.inventory import Fleet, open_fleet
from vantage.fleet.verdicts import Verdict

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["app"]

_REFRESH_S = 5.0
"""Between two looks of `status --watch`."""


@app.command()
def run(
    inventory: Inventory = INVENTORY,
    limit: Limit = None,
    ask_become_pass: AskBecomePass = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Run on hosts of which upshift fleet doctor says that they should not, and beside other campaigns.",
        ),
    ] = False,
    json: AsJson = False,
) -> None:
    """Start the inventory's campaign on all hosts, or let it go on; it then runs without this machine.

    Checked first, before any host is changed: the campaign's vantage points are the inventory's hosts, the longest
    measurement run fits a slot, no host has results of another plan, `upshift fleet doctor` has nothing against a
    host, its clock is within 3 s of this machine's and of the other hosts', and no other campaign runs there. A host
    that is spoken against is left out, and paused where its clock is wrong; the others start. Every host that answers
    gets the opt-outs. Exit code 1 if a host was left out or failed.
    """
    fleet = open_fleet(inventory, limit, ask=ask_become_pass)
    name = fleet.campaign()
    plan = planned(fleet)
    opt_outs = _opt_outs(fleet)
    known = play("status", fleet, {"campaign_name": name}, as_json=json)
    others = _of_other_plans(known, plan, name)
    ready = examine(fleet, plan.campaign.isolation, calibrate=False, as_json=json, campaign=name)
    beside = any(campaigns_beside(verdict.result or {}, name) for verdict in ready.values())
    if force:
        ready = {host: _overridden(host, verdict) for host, verdict in ready.items()}
    ready |= {host: replace(ready[host], fault=fault) for host, fault in others.items()}
    able = tuple(host for host, verdict in ready.items() if verdict.fault is None)
    if left := tuple(host for host, verdict in ready.items() if host not in able and not verdict.unreachable):
        hand_over(replace(fleet, selected=left), opt_outs, as_json=json)
        _pause(fleet, name, set(clock_faults(fleet, ready)) & set(left) & fleet_status.running(known), as_json=json)
    variables = {
        "campaign_name": name,
        "campaign_file": fleet.shared("campaign_file"),
        "campaign_targets": _targets(fleet, plan.campaign),
        "campaign_opt_out": str(opt_outs),
        "campaign_plan_sha256": plan.digest,
        "campaign_collected": str(Path(into) / name) if (into := fleet.shared("collect_into")) else "",
        "campaign_beside": force and beside,
    }
    started = play("run", replace(fleet, selected=able), variables, as_json=json) if able else {}
    found = {host: started.get(host, verdict) for host, verdict in ready.items()}
    _show(found, as_json=json)
    report.require_all(found)


@app.command()
def status(
    inventory: Inventory = INVENTORY,
    limit: Limit = None,
    ask_become_pass: AskBecomePass = False,
    campaign: Name = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Again and again until the campaign has ended on all hosts.")
    ] = False,
    json: AsJson = False,
) -> None:
    """What a campaign is doing on each host: state and reason, counts, rate, time left, disk, last error.

    A host is silent if its campaign has not ended, but its status is older than 60 s. Hosts that may lack opt-outs, and
    hosts with a wrong clock, are named on standard error; --watch hands the opt-outs over, and pauses the campaign
    where the clock is more than 3 s from this machine's or another host's. Exit code 1 if a host does not answer.
    """
    fleet = open_fleet(inventory, limit, ask=ask_become_pass)
    name = fleet.campaign(campaign)
    told: set[str] = set()

    def look() -> dict[str, Verdict]:
        found = play("status", fleet, {"campaign_name": name}, as_json=None)
        _look_after(fleet, name, found, told, mend=watch)
        return found

    found = look()
    if watch and not json and sys.stdout.isatty():
        found = terminal.watch(found, look, picture=_table, ended=fleet_status.ended, every_s=_REFRESH_S)
    else:
        _show(found, as_json=json)
        while watch and not fleet_status.ended(found):
            time.sleep(_REFRESH_S)
            found = look()
            _show(found, as_json=json)
    report.require_all(found, campaign=name)


@app.command()
def collect(
    inventory: Inventory = INVENTORY,
    limit: Limit = None,
    ask_become_pass: AskBecomePass = False,
    campaign: Name = None,
    free: Annotated[
        bool | None, typer.Option("--free/--keep", help="Remove captures on the hosts once they are verified here.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Copy the results of all hosts into one campaign folder on this machine, every file verified by its hash.

    Any number of times, while the campaign runs, too: only what is new is copied. A host is trusted with its own
    results only: what the plan of this machine cannot need is refused, and the other hosts are collected.
    """
    fleet = open_fleet(inventory, limit, ask=ask_become_pass)
    into = fleet.required("collect_into", "a folder on this machine")
    name = fleet.campaign(campaign)
    folder = Path(into) / name
    if name == fleet.campaign():
        plan = planned(fleet)
        fleet_collect.write_own(folder, plan)
    else:
        fleet_collect.require_own(folder, name)
    freed = fleet.shared("collect_free").lower() == "true" if free is None else free
    found = play("collect", fleet, {"campaign_name": name, "collect_into": into, "collect_free": freed}, as_json=json)
    report.show(found, as_json=json, said=f"collected into {folder}")
    report.require_all(found, campaign=name)


def _look_after(fleet: Fleet, name: str, found: Mapping[str, Verdict], told: set[str], *, mend: bool) -> None:
    """Names hosts that may lack opt-outs or have a wrong clock, each once, and with `mend` does something about it."""
    wrong = clock_faults(fleet, found)
    news = [f"{host}: {clause}" for host, clause in wrong.items() if f"{host} clock" not in told]
    told |= {f"{host} clock" for host in wrong}
    if fleet.shared("campaign_opt_out"):
        opt_outs = _opt_outs(fleet)
        lacking = fleet_status.unconfirmed(found, opt_out.digest(opt_out.listed(opt_outs)))
        news += [f"{host} has not confirmed the newest opt-outs" for host in lacking if host not in told]
        told -= found.keys() - lacking  # so that it is named when it lacks others
        told |= set(lacking)
        there = tuple(host for host in lacking if not found[host].unreachable)
        if mend and there:
            hand_over(replace(fleet, selected=there), opt_outs, as_json=None)
    if mend:
        _pause(fleet, name, wrong.keys() & fleet_status.running(found), as_json=None)
    for line in news:
        typer.echo(f"upshift: {line}", err=True)


def _pause(fleet: Fleet, name: str, hosts: Collection[str], *, as_json: bool | None) -> None:
    """Lets no measurement run start on these hosts until `upshift fleet resume`."""
    if hosts:
        variables = {"campaign_name": name, "campaign_paused": True}
        play("pause", replace(fleet, selected=tuple(hosts)), variables, as_json=as_json)
        typer.echo(f"upshift: paused until upshift fleet resume: {', '.join(sorted(hosts))}", err=True)


def _opt_outs(fleet: Fleet) -> Path:
    """The file of opt-outs on this machine. Raises UsageError if there is none, or it is not valid."""
    path = Path(fleet.required(*OPT_OUTS))
    if not path.is_file():
        raise not_found(path, "file of opt-outs", remedy="make it, even if it is empty, or correct campaign_opt_out")
    opt_out.listed(path)
    return path


def planned(fleet: Fleet) -> SharedPlan:
    """The plan that all hosts share, as they compute it.

    Raises:
        UsageError: a campaign in a lab, other vantage points than the inventory's hosts, or a slot that is too short.
    """
    path = Path(fleet.required("campaign_file", "the campaign's file"))
    if not path.is_file():
        raise not_found(path, "campaign file")
    campaign = load(path)
    if campaign.topology is not None:
        raise UsageError(
            "a campaign in a lab has its vantage points there", where=f"{path}: field lab", remedy="leave lab out"
        )
    if isolation := fleet.shared("campaign_isolation"):
        campaign = replace(campaign, isolation=isolation)
    if "wget2" in campaign.published_quirks and campaign.isolation == "netns":
        raise UsageError(
            "the quirk wget2 mounts its name servers, which the service on a host may not",
            where=f"{path}: field published_quirks",
            remedy='leave it out, or use isolation = "host"',
        )
    _check_names(campaign, fleet)
    targets = _targets(fleet, campaign)
    plan = shared_plan(replace(campaign, targets=targets), hosts=True)
    check_budgets(campaign, plan.targets, vantage_points=len(plan.vantage_points))
    on_hosts = f"targets{Path(targets).suffix}"  # the role's name for it, which is in the plan's hash
    return replace(plan, campaign=replace(plan.campaign, targets=on_hosts))


def _targets(fleet: Fleet, campaign: Campaign) -> str:
    """The file of targets on this machine."""
    return fleet.shared("campaign_targets") or str((campaign.path.parent / campaign.targets).resolve())


def _check_names(campaign: Campaign, fleet: Fleet) -> None:
    """A host runs the part of the vantage point of its name; all parts have a host, and all hosts a part."""
    hosts, points = set(fleet.hosts), set(campaign.vantage_points)
    where = f"{campaign.path}: field vantage_points"
    if missing := sorted(points - hosts):
        raise UsageError(
            f"no host of {fleet.path} is named {', '.join(missing)}", where=where, remedy="a host has its name"
        )
    if extra := sorted(hosts - points):
        raise UsageError(
            f"{', '.join(extra)} of {fleet.path} is not among them", where=where, remedy="name all hosts of the fleet"
        )


def _of_other_plans(found: Mapping[str, Verdict], plan: SharedPlan, name: str) -> dict[str, str]:
    """Host -> its fault, for those that have results of another plan in the campaign's folder.

    Raises UsageError if all have that tell of one: then the campaign is wrong here, and not a host.
    """
    digests = {host: str((verdict.result or {}).get("plan_sha256") or "") for host, verdict in found.items()}
    told = {host: digest for host, digest in digests.items() if digest}
    others = {
        host: f"it has results of another plan ({scrub(digest)[:12]}, not {plan.digest[:12]})"
        for host, digest in told.items()
        if digest != plan.digest
    }
    remedy = "set another campaign_name, or use the campaign and the targets as they were"
    if others and len(others) == len(told):
        host, fault = next(iter(others.items()))
        raise UsageError(fault.replace("it", host, 1), where=f"campaign {name}", remedy=remedy)
    return {host: f"{fault}; {remedy}" for host, fault in others.items()}


def _overridden(host: str, verdict: Verdict) -> Verdict:
    """A verdict of the doctor, without effect; what is overridden is named."""
    if verdict.fault is None or verdict.result is None:
        return verdict
    typer.echo(f"upshift: --force: {host} runs although {verdict.fault}", err=True)
    return replace(verdict, fault=None)


def _show(found: Mapping[str, Verdict], *, as_json: bool) -> None:
    if as_json:
        typer.echo(dumps(report.document(found), sort_keys=True))
    else:
        terminal.console(sys.stdout).print(_table(found))


def _table(found: Mapping[str, Verdict]) -> Table:
    return terminal.table(fleet_status.cells(found, time.time()), words=fleet_status.WORDS)
