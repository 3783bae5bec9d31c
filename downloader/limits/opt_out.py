"""Who opted out is left alone: block lists are read again every 2 s, also while a download runs.

A host that has booted may have missed opt-outs: nothing starts there before a control machine has handed over its list.
"""

from __future__ import annotations

from core.domain import Failure
from core.errors import BlockedError
from core.outreach import opt_out as lists_of_opt_outs
from core.outreach.blocks import BlockLists, block_list_paths
from core.untrusted import host_and_port
from downloader.campaign.campaign import Campaign
from downloader.campaign.plan import PlannedRun
from downloader.schedule.schedule import Cut, Gate, State, Wait


def block_lists(campaign: Campaign) -> BlockLists:
    """The block lists of a campaign, and its opt-out file. Raises UsageError for one that is missing or not valid."""
    folder = campaign.path.parent
    opt_out = None if campaign.opt_out is None else folder / campaign.opt_out
    return BlockLists(block_list_paths([folder / name for name in campaign.block_lists], opt_out))


_MISSED = "this host booted, and may have missed opt-outs: upshift fleet status --watch, run or optout hands them over"


class OptOuts(Gate):
    """Ends runs whose domain, host or address is listed; their downloads have the cause `opted_out`."""

    def __init__(self, lists: BlockLists) -> None:
        self._lists = lists
        self._address: str | None = None
        self._current = False

    def holds(self, now: float) -> Wait | None:  # noqa: ARG002
        if not self._current:
            confirmation = lists_of_opt_outs.confirmed()
            self._current = confirmation is None or bool(confirmation["current"])
        return None if self._current else Wait(State.WAITING_FOR_OPT_OUTS, _MISSED)

    def began(self, run: PlannedRun, attempt: int, now: float) -> None:  # noqa: ARG002
        self._address = None

    def resolved(self, run: PlannedRun, attempt: int, address: str, now: float) -> None:  # noqa: ARG002
        self._address = address

    def cuts(self, run: PlannedRun, now: float) -> Cut | None:  # noqa: ARG002
        host, _ = host_and_port(run.target.url)
        try:
            for name in dict.fromkeys((run.target.domain, host)):
                self._lists.check(name, self._address)
        except BlockedError as error:
            return Cut(error.what, Failure.OPTED_OUT)
        return None
