"""A campaign from its file to `kpis.parquet`: opens places, runs or resumes, exports, inspects the captures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from downloader.campaign import Campaign, load
from downloader.export import export_downloads
from downloader.run import RunSummary, run_campaign
from downloader.targets import load_targets

from upshift import store
from upshift.compose.inspect import inspect_campaign
from upshift.domain import Target
from upshift.errors import UsageError
from upshift.place import Place
from upshift.progress import Progress

LAB_TARGETS = "lab"
"""The value of `targets` that stands for the sites of the campaign's lab."""


def run_file(
    path: Path,
    out: Path,
    *,
    progress: Progress,
    order: str | None = None,
    vantage_points: Sequence[str] = (),
    isolation: str | None = None,
) -> RunSummary:
    """Runs the campaign of a file into a folder, or goes on with the one that is there.

    Args:
        order, vantage_points, isolation: replace the campaign's own where given.

    Raises:
        UpshiftError: wrong input, a place that cannot be had, or a folder that holds another plan.
    """
    campaign = load(path)
    if order is not None:
        campaign = replace(campaign, order=order)
    if vantage_points:
        campaign = replace(campaign, vantage_points=tuple(vantage_points))
    if isolation is not None:
        campaign = replace(campaign, isolation=isolation)
    with open_places(campaign, out, progress=progress) as (places, targets):
        summary = run_campaign(campaign, targets, places, out, progress=progress)
    export_downloads(out)
    inspect_campaign(out, progress=progress)
    return summary


@contextmanager
def open_places(
    campaign: Campaign, out: Path, *, progress: Progress
) -> Iterator[tuple[Mapping[str, Place], Sequence[Target]]]:
    """The places of a campaign and its targets, for the time of the block."""
    with ExitStack() as stack:
        places: dict[str, Place] = {}
        if campaign.lab is None:
            targets: Sequence[Target] = load_targets(campaign)
            places = _host_places(campaign)
        else:
            from vantage.lab.lab import open_lab

            lab = stack.enter_context(open_lab(campaign.lab, progress=progress))
            targets = lab.targets() if campaign.targets == LAB_TARGETS else load_targets(campaign)
            for name in campaign.vantage_points or lab.vantage_points:
                if name not in lab.vantage_points:
                    raise UsageError(
                        f"the lab {lab.name} has no vantage point {name!r}",
                        where="vantage_points",
                        remedy=f"it has: {', '.join(lab.vantage_points)}",
                    )
                places[name] = lab.place(name)
            store.write_json(out / "lab.json", lab.truth())
        for place in places.values():
            stack.callback(place.close)
        yield places, targets


def _host_places(campaign: Campaign) -> dict[str, Place]:
    """This host, under the one name that the campaign gives it."""
    from vantage.host import HostPlace

    if len(campaign.vantage_points) != 1:
        raise UsageError(
            f"a campaign without a lab runs at one vantage point, this one names {len(campaign.vantage_points)}",
            where="vantage_points",
            remedy="name this host, or pick one by --vantage NAME",
        )
    name = campaign.vantage_points[0]
    return {
        name: HostPlace(
            name,
            isolation=campaign.isolation,
            allowed_prefixes=campaign.allowed_prefixes,
            nameservers=campaign.nameservers,
        )
    }
