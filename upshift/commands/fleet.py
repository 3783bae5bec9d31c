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
from downloader.schedule.slots import SharedPlan
from upshift import fleet_plan, fleet_report
from upshift.commands.fleet_hosts import (
    OPT_OUTS,
    AsJson,
    Name,
    app,
    beside,
    examine,
    hand_over,
    on_hosts,
    play,
)
from vantage.fleet.inventory import Fleet
from vantage.fleet.readiness import clock_faults
from vantage.fleet.verdicts import HostVerdict

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["app"]

_REFRESH_S = 5.0
"""Between two looks of `status --watch`."""


@on_hosts
def run(
    fleet: Fleet,
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
    that fails a check is left out, and paused where its clock is wrong; the others start. Every host that answers
    gets the opt-outs. Exit code 1 if a host was left out or failed.
    """
    name = fleet.campaign()
    plan = fleet_plan.planned(fleet)
    opt_outs, own_lists = _opt_outs(fleet), fleet_plan.own_block_lists(plan.campaign)
    known = play("status", fleet, {"campaign_name": name}, as_json=json)
    others = _of_other_plans(known, plan, name)
    ipv6 = plan.campaign.address_family == "ipv6"
    ready = examine(fleet, plan.campaign.isolation, calibrate=False, as_json=json, campaign=name, ipv6=ipv6)
    has_others = any(beside(verdict.result or {}, name) for verdict in ready.values())
    if force:
        ready = {host: _overridden(host, verdict) for host, verdict in ready.items()}
    ready |= {host: replace(ready[host], fault=fault) for host, fault in others.items()}
    able = tuple(host for host, verdict in ready.items() if verdict.fault is None)
    if left := tuple(host for host, verdict in ready.items() if host not in able and not verdict.unreachable):
        handed = hand_over(replace(fleet, selected=left), opt_outs, as_json=json)
        for host, fault in fleet_report.failed(handed).items():
            why = f"{ready[host].fault}; it did not get the opt-outs: {fleet_report.named(host, fault)}"
            ready[host] = replace(ready[host], fault=why)
        wrong = clock_faults(ready, fleet.hosts).keys() & fleet_report.running(known)
        _pause(fleet, name, wrong.intersection(left), as_json=json)
    variables = {
        "campaign_name": name,
        "campaign_file": fleet.shared("campaign_file"),
        "campaign_targets": fleet_plan.targets_file(fleet),
        "campaign_opt_out": str(opt_outs),
        "campaign_own_block_lists": own_lists,
        "campaign_plan_sha256": plan.digest,
        "campaign_collected": str(Path(into) / name) if (into := fleet.shared("collect_into")) else "",
        "campaign_beside": force and has_others,
    }
    started = play("run", replace(fleet, selected=able), variables, as_json=json) if able else {}
    verdicts = ready | started
    _show(verdicts, as_json=json)
    fleet_report.require_all(verdicts)


@on_hosts
def status(
    fleet: Fleet,
    campaign: Name = None,
    watch: Annotated[bool, typer.Option("--watch", help="Repeat until the campaign has ended on all hosts.")] = False,
    json: AsJson = False,
) -> None:
    """What a campaign is doing on each host: state and reason, counts, rate, time left, disk, last error.

    A host is silent if its campaign has not ended, but its status is older than 60 s. Hosts that may lack opt-outs, and
    hosts with a wrong clock, are named on standard error; --watch hands the opt-outs over, and pauses the campaign
    where the clock is more than 3 s from this machine's or another host's. Exit code 1 if a host does not answer.
    """
    name = fleet.campaign(campaign)
    named: set[str] = set()

    def look() -> dict[str, HostVerdict]:
        states = play("status", fleet, {"campaign_name": name}, as_json=None)
        _look_after(fleet, name, states, named, mend=watch)
        return states

    def ended(states: Mapping[str, HostVerdict]) -> bool:
        return fleet_report.ended(states, name)

    states = look()
    if watch and not json and sys.stdout.isatty():
        states = terminal.watch(states, look, picture=_table, ended=ended, every_s=_REFRESH_S)
    else:
        _show(states, as_json=json)
        while watch and not ended(states):
            time.sleep(_REFRESH_S)
            states = look()
            _show(states, as_json=json)
    fleet_report.require_all(states, campaign=name)


@on_hosts
def collect(
    fleet: Fleet,
    campaign: Name = None,
    free: Annotated[
        bool | None, typer.Option("--free/--keep", help="Remove captures on the hosts once they are verified here.")
    ] = None,
    captures: Annotated[
        bool | None,
        typer.Option(
            "--with-captures/--without-captures",
            help="Captures stay on the hosts, which have inspected them: journals have what they found, a few kB for "
            "each download. upshift inspect here needs the Upshift that the hosts have. Default: with them.",
        ),
    ] = None,
    json: AsJson = False,
) -> None:
    """Copy the results of all hosts into one campaign folder on this machine, every file verified by its hash.

    Any number of times, while the campaign runs, too: only what is new is copied. A host is trusted with its own
    results only: what the plan of this machine cannot need is refused, and the other hosts are collected.
    """
    copied = fleet.shared("collect_without_captures").lower() != "true" if captures is None else captures
    freed = (copied and fleet.shared("collect_free").lower() == "true") if free is None else free
    if freed and not copied:
        what = "captures that stay on the hosts must not be removed"
        raise UsageError(what, where="--free", remedy="add --with-captures")
    into = fleet.required("collect_into", "a folder on this machine")
    name = fleet.campaign(campaign)
    folder = Path(into) / name
    if name == fleet.campaign():
        fleet_plan.write_own(folder, fleet_plan.planned(fleet))
    else:
        fleet_plan.require_own(folder, name)
    variables = {"campaign_name": name, "collect_into": into, "collect_free": freed}
    variables["collect_without_captures"] = not copied
    verdicts = play("collect", fleet, variables, as_json=json)
    fleet_report.end(verdicts, as_json=json, done=f"collected into {folder}", campaign=name)


def _look_after(fleet: Fleet, name: str, states: Mapping[str, HostVerdict], named: set[str], *, mend: bool) -> None:
    """Names hosts that may lack opt-outs or have a wrong clock, each once, and with `mend` does something about it."""
    wrong = clock_faults(states, fleet.hosts)
    news = [f"{host}: {clause}" for host, clause in wrong.items() if f"{host} clock" not in named]
    named |= {f"{host} clock" for host in wrong}
    if fleet.shared("campaign_opt_out"):
        opt_outs = _opt_outs(fleet)
        lacking = fleet_report.unconfirmed(states, opt_out.digest(opt_out.listed(opt_outs)))
        news += [f"{host} has not confirmed the newest opt-outs" for host in lacking if host not in named]
        named -= states.keys() - lacking  # so that it is named when it lacks others
        named |= set(lacking)
        there = tuple(host for host in lacking if not states[host].unreachable)
        if mend and there:
            hand_over(replace(fleet, selected=there), opt_outs, as_json=None)
    if mend:
        _pause(fleet, name, wrong.keys() & fleet_report.running(states), as_json=None)
    for line in news:
        typer.echo(f"upshift: {line}", err=True)


def _pause(fleet: Fleet, name: str, hosts: Collection[str], *, as_json: bool | None) -> None:
    """Lets no measurement run start on these hosts until `upshift fleet resume`."""
    if not hosts:
        return
    variables = {"campaign_name": name, "campaign_paused": True}
    verdicts = play("pause", replace(fleet, selected=tuple(hosts)), variables, as_json=as_json)
    failed = fleet_report.failed(verdicts)
    if paused := sorted(verdicts.keys() - failed):
        typer.echo(f"upshift: paused until upshift fleet resume: {', '.join(paused)}", err=True)
    for host, fault in failed.items():
        typer.echo(f"upshift: {host} could not be paused: {fleet_report.named(host, fault)}", err=True)


def _opt_outs(fleet: Fleet) -> Path:
    """The file of opt-outs on this machine. Raises UsageError if there is none, or it is not valid."""
    path = Path(fleet.required(*OPT_OUTS))
    if not path.is_file():
        raise not_found(path, "file of opt-outs", remedy="make it, even if it is empty, or correct campaign_opt_out")
    opt_out.listed(path)
    return path


def _of_other_plans(known: Mapping[str, HostVerdict], plan: SharedPlan, name: str) -> dict[str, str]:
    """Host -> its fault, for those that have results of another plan in the campaign's folder.

    Raises UsageError if most of the hosts have such: then the campaign is wrong here, and not a host.
    """
    digests = {host: str((verdict.result or {}).get("plan_sha256") or "") for host, verdict in known.items()}
    others = {
        host: f"it has results of another plan ({scrub(digest)[:12]}, not {plan.digest[:12]})"
        for host, digest in digests.items()
        if digest not in ("", plan.digest)
    }
    remedy = "set another campaign_name, or use the campaign and the targets as they were"
    if len(others) > len(known) / 2:
        host, fault = next(iter(others.items()))
        raise UsageError(fault.replace("it", host, 1), where=f"campaign {name}", remedy=remedy)
    return {host: f"{fault}; {remedy}" for host, fault in others.items()}


def _overridden(host: str, verdict: HostVerdict) -> HostVerdict:
    """A verdict of the doctor, without effect; what is overridden is named."""
    if verdict.fault is None or verdict.result is None:
        return verdict
    typer.echo(f"upshift: --force: {host} runs although {verdict.fault}", err=True)
    return replace(verdict, fault=None)


def _show(states: Mapping[str, HostVerdict], *, as_json: bool) -> None:
    if as_json:
        typer.echo(dumps(fleet_report.document(states), sort_keys=True))
    else:
        terminal.console(sys.stdout).print(_table(states))


def _table(states: Mapping[str, HostVerdict]) -> Table:
    return terminal.table(fleet_report.cells(states, time.time()), words=fleet_report.WORDS)
