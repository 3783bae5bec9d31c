"""Budgets: a target rests until midnight UTC where its next measurement run does not fit.

Each of K vantage points has 1/K of each budget, so the sum holds without any exchange between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from core.domain import Target
from core.errors import UsageError
from core.files.sizes import size_text
from downloader.campaign.campaign import Campaign
from downloader.campaign.expected import run_bytes
from downloader.campaign.plan import PlannedRun
from downloader.limits.spent import DAY_S, Spent, Totals, day_start, network_of
from downloader.schedule.gate import Cut, Gate, State, Wait


class _BudgetPart(NamedTuple):
    """What one vantage point has of one budget."""

    field: str
    whose: str
    most: int
    spent: int


class BudgetGate(Gate):
    """Admits runs whose expected bytes fit into what is left today. The account itself is the journal's.

    Args:
        vantage_points: number of those in the plan, wherever they run.
        tell: told of each budget, before each choice, its name, whose it is, the bytes used and the most bytes; of
            those for an AS and a domain the one that is used most.
    """

    def __init__(
        self,
        campaign: Campaign,
        spent: Spent,
        *,
        vantage_points: int,
        tell: Callable[[str, str, int, int], object] = lambda *_: None,
    ) -> None:
        self._campaign, self._spent, self._count, self._tell = campaign, spent, vantage_points, tell
        self._networks: dict[str, str] = {}
        """Domain -> network of its last address, where its AS is not known."""
        self._totals: Totals | None = None
        self._cut: Cut | None = None

    def holds(self, now: float) -> None:  # noqa: ARG002
        self._totals = None  # read once for each choice

    def admits(self, run: PlannedRun, now: float) -> Wait | None:
        if self._totals is None:
            self._totals = self._spent.totals(now)
            self._tell_all(self._totals)
        network = network_of(run.target, run.target.server_ip) or self._networks.get(run.target.domain)
        why = self._refusal(run.target, network, self._totals)
        return None if why is None else Wait(State.WAITING_FOR_BUDGET, why, day_start(now) + DAY_S)

    def began(self, run: PlannedRun, attempt: int, now: float) -> None:  # noqa: ARG002
        self._cut = None

    def resolved(self, run: PlannedRun, attempt: int, address: str, now: float) -> None:
        """Checks a target whose AS is not known again, as its network is known only now."""
        network = network_of(run.target, address)
        if run.target.asn is not None or network is None:
            return
        self._networks[run.target.domain] = network
        why = self._refusal(run.target, network, self._spent.totals(now, without=(run.number, attempt)))
        self._cut = None if why is None else Cut(why)

    def cuts(self, run: PlannedRun, now: float) -> Cut | None:  # noqa: ARG002
        return self._cut

    def _tell_all(self, totals: Totals) -> None:
        domain, network = totals.most
        for share in _shares(self._campaign, domain, network, totals, self._count):
            if share.whose:
                self._tell(share.field, share.whose, share.spent, share.most)

    def _refusal(self, target: Target, network: str | None, totals: Totals) -> str | None:
        needed = run_bytes(self._campaign, target)
        for share in _shares(self._campaign, target.domain, network, totals, self._count):
            if share.spent + needed > share.most:
                left = size_text(max(share.most - share.spent, 0))
                return (
                    f"of today's {size_text(share.most)} for {share.whose} {left} are left, and a measurement run "
                    f"needs {size_text(needed)}"
                )
        return None


def _shares(
    campaign: Campaign, domain: str, network: str | None, totals: Totals, vantage_points: int
) -> Iterator[_BudgetPart]:
    budgets = campaign.budgets
    yield _BudgetPart("campaign", "the campaign", budgets.campaign // vantage_points, totals.campaign)
    if network is not None:
        yield _BudgetPart("as", network, budgets.network // vantage_points, totals.networks.get(network, 0))
    yield _BudgetPart("domain", domain, budgets.domain // vantage_points, totals.domains.get(domain, 0))


def check_budgets(campaign: Campaign, targets: Sequence[Target], *, vantage_points: int) -> None:
    """Raises UsageError if a measurement run does not fit into a budget of which nothing is spent yet."""
    nothing = Totals()
    for target in targets:
        needed = run_bytes(campaign, target)
        for share in _shares(campaign, target.domain, "its AS", nothing, vantage_points):
            if needed > share.most:
                each = f"each of {vantage_points} vantage points has" if vantage_points > 1 else "there are"
                raise UsageError(
                    f"{each} {size_text(share.most)} a day for {share.whose}, and one measurement run of "
                    f"{target.domain} needs {size_text(needed)}",
                    where=f"{campaign.path}: field budgets.{share.field}",
                    remedy="raise it, or lower max_bytes",
                )
