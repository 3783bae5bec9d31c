"""The gates of a vantage point: every reason why its measurement runs may have to wait, put together in one place."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from core.system.clock import read_clock
from downloader.campaign.campaign import Campaign, VantageClock
from downloader.campaign.plan import PlannedRun
from downloader.control.asked import AskedGate
from downloader.control.reporter import VantageReport
from downloader.execution.journal import Journal
from downloader.limits.budget import BudgetGate
from downloader.limits.captures import CaptureStore
from downloader.limits.disk import DiskGate, FolderDisk
from downloader.limits.opt_out import OptOuts, block_lists
from downloader.schedule.gate import Gate
from downloader.schedule.shared import SharedPlan
from downloader.schedule.slot_gate import SlotGate


def gates_for(
    plan: SharedPlan,
    vantage: str,
    runs: Sequence[PlannedRun],
    journal: Journal,
    folder: Path,
    *,
    until: float | None,
    report: VantageReport,
    store: CaptureStore,
    disk: FolderDisk,
) -> list[Gate]:
    """The gates of one vantage point, in the order in which they are asked.

    Args:
        runs: all runs of its plan.
        journal: for gates that keep an account.
        folder: the campaign's, with what is asked of it.
        until: Unix time at which the campaign ends; None: with its plan.
        report: told how much of the budgets is used.
        store: its captures.
        disk: the campaign's folder.

    Raises:
        UsageError: a block list is missing or not valid.
    """
    gates: list[Gate] = [
        AskedGate(plan.campaign, folder, until=until),
        OptOuts(block_lists(plan.campaign)),
        DiskGate(plan.campaign, vantage, disk, runs, store, journal.captures, journal.recorded_runs()),
        BudgetGate(plan.campaign, journal.spent, vantage_points=len(plan.vantage_points), tell=report.spends),
    ]
    if plan.slots is not None:
        clock = None if trusts_clock(plan.campaign) else read_clock
        gates.append(SlotGate(plan.campaign, plan.slots, plan.index(vantage), clock=clock))
    return gates


def trusts_clock(campaign: Campaign) -> bool:
    """Whether slots are told by this host's clock unchecked: in a lab all vantage points have the same one."""
    return campaign.lab is not None or campaign.vantage_clock == VantageClock.TRUSTED
