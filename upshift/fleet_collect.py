"""What the control machine knows of a campaign by itself, before it collects: nothing of that comes from a host."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from core.errors import UsageError
from core.files import description, disk
from core.files.config import build, read_json
from downloader.campaign.expected import downloads_per_run, worst_run_bytes
from downloader.schedule.slots import SharedPlan
from upshift.shared_plan import initial_windows
from vantage.fleet.collecting import PLAN
from vantage.fleet.offer import Needs

JOURNAL_BYTES, ROW_BYTES = 50_000_000, 20_000
"""Most bytes of a journal, whatever its length, and for each download of each attempt: 4,700 as a rule."""

CAPTURE_FACTOR = 2
"""Most bytes of a capture per IP byte: 76 for an acknowledgement of 40."""


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
    description.write(folder, plan.campaign.for_analysis())
    if windows := initial_windows(plan.targets):
        disk.write_json(folder / "targets" / "windows.json", windows)
    disk.write_json(path, asdict(wanted))


def require_own(folder: Path, name: str) -> None:
    """Raises UsageError if an earlier collect has not left what this machine knows of a campaign."""
    if not (folder / PLAN).exists():
        raise UsageError(
            f"the inventory's campaign is not {name}, so this machine does not know what its hosts may send",
            where="--campaign",
            remedy="set campaign_name, campaign_file and campaign_targets to that campaign's",
        )
