"""What the control machine knows of a campaign by itself: the plan that all hosts share, and what results can need.

Nothing of that comes from a host.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

from core.errors import UsageError, not_found
from core.files import campaign_json, disk
from core.files.config import build, read_json
from core.outreach.blocks import read_blocked
from downloader.campaign.campaign import Campaign, load
from downloader.campaign.expected import downloads_per_run, worst_run_bytes
from downloader.limits.budget import check_budgets
from downloader.schedule.slots import SharedPlan
from upshift.shared_plan import shared_plan, write_windows
from vantage.fleet.collecting import PLAN
from vantage.fleet.inventory import Fleet
from vantage.fleet.offer import Needs

JOURNAL_BYTES, ROW_BYTES = 50_000_000, 20_000
"""Most bytes of a journal, whatever its length, and for each download of each attempt: 4,700 as a rule."""

CAPTURE_FACTOR = 2
"""Most bytes of a capture per IP byte: 76 for an acknowledgement of 40."""


def planned(fleet: Fleet) -> SharedPlan:
    """The plan that all hosts share, as they compute it.

    Raises:
        UsageError: a campaign in a lab, other vantage points than the inventory's hosts, or a slot that is too short.
    """
    campaign = load(_campaign_file(fleet))
    path = campaign.path
    if campaign.topology is not None:
        raise UsageError(
            "a campaign in a lab has its vantage points there", where=f"{path}: field lab", remedy="leave lab out"
        )
    if isolation := fleet.shared("campaign_isolation"):
        campaign = replace(campaign, isolation=isolation)
    if "wget2" in campaign.published_quirks:
        raise UsageError(
            "the quirk wget2 mounts its name servers, which the service on a host may not",
            where=f"{path}: field published_quirks",
            remedy="leave it out",
        )
    _check_names(campaign, fleet)
    targets = targets_file(fleet)
    plan = shared_plan(replace(campaign, targets=targets), hosts=True)
    check_budgets(campaign, plan.targets, vantage_points=len(plan.vantage_points))
    on_hosts = f"targets{Path(targets).suffix}"  # the role's name for it, which is in the plan's hash
    return replace(plan, campaign=replace(plan.campaign, targets=on_hosts))


def _campaign_file(fleet: Fleet) -> Path:
    path = Path(fleet.required("campaign_file", "the campaign's file"))
    if not path.is_file():
        raise not_found(path, "campaign file")
    return path


def targets_file(fleet: Fleet) -> str:
    """The file of targets on this machine: the inventory's, else the one that the campaign's file names."""
    if given := fleet.shared("campaign_targets"):
        return given
    path = _campaign_file(fleet)
    return str((path.parent / load(path).targets).resolve())


def own_block_lists(campaign: Campaign) -> list[str]:
    """The files on this machine that the campaign's file itself names in `block_lists` and `opt_out`.

    A host obeys them besides those of the inventory. Raises UsageError for one that is missing or not valid.
    """
    folder = campaign.path.parent
    paths = [(folder / name).resolve() for name in campaign.block_lists]
    if campaign.opt_out is not None and (opt_outs := (folder / campaign.opt_out).resolve()).exists():
        paths.append(opt_outs)
    for path in paths:
        read_blocked(path)
    return list(map(str, paths))


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


def needs(plan: SharedPlan) -> Needs:
    """What the results of each vantage point can need."""
    campaign = plan.campaign
    runs = campaign.iterations * len(plan.targets)
    attempts = runs * campaign.max_attempts
    return Needs(
        plan_sha256=plan.digest,
        iterations=campaign.iterations,
        runs=runs,
        captures=attempts,
        capture_bytes=CAPTURE_FACTOR * worst_run_bytes(campaign),
        journal_bytes=JOURNAL_BYTES + attempts * downloads_per_run(campaign) * ROW_BYTES,
        disk_bytes=campaign.disk.limit,
    )


def write_own(folder: Path, plan: SharedPlan) -> None:
    """Writes what a collected folder has of the campaign: its description, its targets' windows, and what hosts need.

    Raises:
        UsageError: the folder has results of another plan.
    """
    wanted, path = needs(plan), folder / PLAN
    if path.exists() and build(read_json(path), Needs, where=str(path)).plan_sha256 != wanted.plan_sha256:
        raise UsageError(
            f"the results in {folder} are of another plan",
            where=str(plan.campaign.path),
            remedy="use another collect_into, or the campaign and the targets as they were",
        )
    folder.mkdir(parents=True, exist_ok=True)
    campaign_json.write(folder, plan.campaign.for_analysis(plan.without_http3))
    write_windows(folder, plan.targets)
    disk.write_json(path, asdict(wanted))


def require_own(folder: Path, name: str) -> None:
    """Raises UsageError if an earlier collect has not left what this machine knows of a campaign."""
    if not (folder / PLAN).exists():
        raise UsageError(
            f"the inventory's campaign is not {name}, so this machine does not know what its hosts may send",
            where="--campaign",
            remedy="set campaign_name, campaign_file and campaign_targets to that campaign's",
        )
