"""Campaigns that run in places that a test made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from core.domain import Target
from core.files.disk import folder_lock
from core.system.place import Place
from downloader.campaign.campaign import Campaign
from downloader.campaign.targets import check_targets
from downloader.control.reporter import Reporter
from downloader.execution.engine import Session
from downloader.execution.run import RunSummary, check_plan, run_campaign
from downloader.schedule.slots import share


class Silent:
    """No progress."""

    def update(self, task: str, *, done: int, total: int, failed: int = 0, note: str = "") -> None:
        pass


def run_in(
    campaign: Campaign, targets: Sequence[Target], places: Mapping[str, Place], out: Path, **options: Any
) -> RunSummary:
    """As `upshift run`: the campaign is planned, checked and run; `options` are fields of `Session`."""
    check_targets(targets, where=campaign.targets)
    plan = share(campaign, targets, list(places), list(places))
    check_plan(plan, out, in_folder=len(places))
    if "reporter" in options:
        with folder_lock(out):
            return run_campaign(Session(plan=plan, out=out, **options), places)
    with folder_lock(out), Reporter(out, campaign=campaign.name) as reporter:
        return run_campaign(Session(plan=plan, out=out, reporter=reporter, **options), places)
