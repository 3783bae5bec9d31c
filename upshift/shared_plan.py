"""A campaign's plan from its file, before a lab is built or a host is changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core.domain import Target
from core.errors import UsageError, use_one_of
from core.files import disk
from downloader.campaign.campaign import Campaign
from downloader.campaign.targets import check_targets, load_targets
from downloader.schedule.slots import SharedPlan, share

if TYPE_CHECKING:
    from vantage.lab.topology import Topology

LAB_TARGETS = "lab"
"""The value of `targets` that means the sites of the campaign's lab."""


def shared_plan(campaign: Campaign, here: str | None = None, *, hosts: bool = False) -> SharedPlan:
    """The plan that all hosts of a campaign share.

    Args:
        here: the only vantage point of this host; None: all are here.
        hosts: each vantage point is a host of its own, whichever this one is.

    Raises:
        UsageError: a broken topology or target, a vantage point that does not exist, or a slot that is too short.
    """
    targets: Sequence[Target]
    truth: Mapping[str, Any] | None = None
    if campaign.topology is None:
        names, targets = campaign.vantage_points, load_targets(campaign)
        if not names:
            raise UsageError(
                "a campaign without a lab needs a vantage point",
                where=f"{campaign.path}: field vantage_points",
                remedy="name this host",
            )
    else:
        topology = topology_of(campaign, campaign.topology)
        names, targets, truth = _names(campaign, topology), _targets(campaign, topology), _truth(topology)
    if here is None:
        return share(campaign, targets, names, names[:1] if hosts else names, truth)
    require_known((here,), names, whose="the campaign", where=str(campaign.path))
    return share(campaign, targets, names, (here,), truth)


def require_known(names: Sequence[str], known: Sequence[str], *, whose: str, where: str) -> None:
    """Raises UsageError for the first name that is none of the known vantage points."""
    for name in names:
        if name not in known:
            raise UsageError(f"{whose} has no vantage point {name!r}", where=where, remedy=use_one_of(name, known))


def topology_of(campaign: Campaign, name: str) -> Topology:
    """The topology of a campaign's lab. Raises UsageError."""
    from vantage.lab.topology_file import load_topology

    try:
        return load_topology(name)
    except UsageError as error:
        # The error may be in the campaign file (a wrong name) or in the topology: the user needs both.
        raise UsageError(error.sentence(), where=f"{campaign.path}: field lab") from None


def _names(campaign: Campaign, topology: Topology) -> tuple[str, ...]:
    known = tuple(vantage.name for vantage in topology.vantage)
    require_known(campaign.vantage_points, known, whose=f"the lab {topology.name}", where=str(campaign.path))
    return campaign.vantage_points or known


def _targets(campaign: Campaign, topology: Topology) -> Sequence[Target]:
    from vantage.lab.truth import targets_of

    if campaign.targets != LAB_TARGETS:
        return load_targets(campaign)
    targets = targets_of(topology)
    check_targets(targets, where=campaign.targets)
    return targets


def _truth(topology: Topology) -> Mapping[str, Any]:
    """What the topology says of its paths, before a lab is up."""
    from vantage.lab.addresses import address_plan
    from vantage.lab.truth import document

    return document(topology, address_plan(topology), timing={})


def write_windows(folder: Path, targets: Sequence[Target]) -> None:
    """Writes what `upshift survey iw` found of the servers' initial windows, by domain, if it did; for the report."""
    names = ("iw_kind", "iw_segments", "iw_bytes", "paced")
    windows = {
        target.domain: {name: getattr(target, name) for name in names}
        for target in targets
        if target.iw_segments is not None or target.iw_bytes is not None
    }
    if windows:
        disk.write_json(folder / "targets" / "windows.json", windows)
