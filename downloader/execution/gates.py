"""The gates of a vantage point: every reason why its measurement runs may have to wait, put together in one place."""

from __future__ import annotations

from collections.abc import Sequence

from downloader.campaign.campaign import Campaign
from downloader.campaign.plan import PlannedRun
from downloader.execution.journal import Journal
from downloader.limits.opt_out import OptOuts, block_lists
from downloader.schedule.gate import Gate


def gates_for(campaign: Campaign, runs: Sequence[PlannedRun], journal: Journal) -> list[Gate]:  # noqa: ARG001
    """The gates of one vantage point, in the order in which they are asked.

    Args:
        runs: all runs of its plan.
        journal: for gates that keep an account.

    Raises:
        UsageError: a block list is missing or not valid.
    """
    return [OptOuts(block_lists(campaign))]
