"""A campaign from its file to `kpis.parquet`: opens places, runs or resumes, inspects the folder."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from downloader import clients
from downloader.campaign.campaign import Campaign, load
from downloader.campaign.stop_rule import parse_rule
from downloader.campaign.targets import load_targets
from downloader.campaign.trust import check_trust
from downloader.execution.run import RunSummary, check_clients, run_campaign
from downloader.limits.opt_out import block_lists
from upshift.compose.inspect import Inspection, inspect_campaign
from upshift.domain import Target
from upshift.errors import UsageError, use_one_of
from upshift.files import atomic
from upshift.progress import Progress
from upshift.system.place import Place

LAB_TARGETS = "lab"
"""The value of `targets` that means the sites of the campaign's lab."""


def run_file(
    path: Path,
    out: Path,
    *,
    progress: Progress,
    order: str | None = None,
    vantage_points: Sequence[str] = (),
    isolation: str | None = None,
    stop_when: Sequence[str] = (),
    let_cpus_sleep: bool = False,
) -> tuple[RunSummary, Inspection]:
    """Runs the campaign of a file into a folder, or resumes the one in that folder.

    Args:
        order, vantage_points, isolation, stop_when: replace the campaign's values if given.
        let_cpus_sleep: do not keep the host's CPUs awake while measuring.

    Raises:
        UpshiftError: wrong input, a place that cannot be opened, or a folder that holds another plan.
    """
    campaign = load(path)
    if order is not None:
        campaign = replace(campaign, order=order)
    if vantage_points:
        campaign = replace(campaign, vantage_points=tuple(vantage_points))
    if isolation is not None:
        campaign = replace(campaign, isolation=isolation)
    if stop_when:
        campaign = replace(campaign, stop_when=parse_rule(stop_when, campaign.comparisons))
    check_clients(campaign)  # before a lab is built
    check_trust(campaign)
    block_lists(campaign)
    with ExitStack() as stack:
        targets: Sequence[Target]
        truth: Mapping[str, Any] | None
        if campaign.topology is None:
            places, targets, truth = _host_place(campaign, stack, let_cpus_sleep), load_targets(campaign), None
        else:
            places, targets, truth = _lab_places(campaign, campaign.topology, stack, progress, let_cpus_sleep)
        ceilings = _client_ceilings()
        summary = run_campaign(campaign, targets, places, out, progress=progress, client_ceilings=ceilings)
    # Only now: a folder that holds another plan was refused above, and keeps its lab.json.
    if truth is not None:
        atomic.write_json(out / "lab.json", truth)
    return summary, inspect_campaign(out, progress=progress)


def _client_ceilings() -> Mapping[str, Any] | None:
    """This host's calibration, judged for the present versions; its single transfers are left out."""
    from vantage.doctor.ceilings import record

    found = record.present(clients.ALL.values(), path=record.calibration_file(), now=record.circumstances())
    return record.summary(found)


def _lab_places(
    campaign: Campaign, topology: str, stack: ExitStack, progress: Progress, let_cpus_sleep: bool
) -> tuple[Mapping[str, Place], Sequence[Target], Mapping[str, Any]]:
    """The campaign's vantage points in its lab, its targets, and the programmed paths."""
    from vantage.lab.lab import open_lab
    from vantage.lab.topology_file import load_topology

    try:
        load_topology(topology)
    except UsageError as error:
        # The error may be in the campaign file (a wrong name) or in the topology: the user needs both.
        raise UsageError(error.sentence(), where=f"{campaign.path}: field lab") from None
    # Before the lab is built, so that a broken row is reported at once.
    listed = None if campaign.targets == LAB_TARGETS else load_targets(campaign)
    lab = stack.enter_context(open_lab(topology, progress=progress, let_cpus_sleep=let_cpus_sleep))
    targets = lab.targets() if listed is None else listed
    places: dict[str, Place] = {}
    for name in campaign.vantage_points or lab.vantage_points:
        if name not in lab.vantage_points:
            raise UsageError(
                f"the lab {lab.name} has no vantage point {name!r}",
                where=str(campaign.path),
                remedy=use_one_of(name, lab.vantage_points),
            )
        place = lab.place(name)
        stack.callback(place.close)
        place.claim()
        places[name] = place
    return places, targets, lab.truth()


def _host_place(campaign: Campaign, stack: ExitStack, let_cpus_sleep: bool) -> Mapping[str, Place]:
    """This host, under the name that the campaign gives it."""
    from vantage.host.place import HostPlace

    if len(campaign.vantage_points) != 1:
        raise UsageError(
            f"a campaign without a lab runs at one vantage point, this one names {len(campaign.vantage_points)}",
            where=str(campaign.path),
            remedy="name this host, or choose one with --vantage NAME",
        )
    place = HostPlace(
        campaign.vantage_points[0],
        isolation="host" if campaign.isolation == "host" else "netns",
        allowed_prefixes=campaign.allowed_prefixes,
        nameservers=campaign.nameservers,
        let_cpus_sleep=let_cpus_sleep,
    )
    stack.callback(place.close)
    for note in place.notes:
        print(f"upshift: {note}", file=sys.stderr)  # noqa: T201 - the user should read it before the run
    return {place.name: place}
