"""Whether a vantage point has measured enough: the campaign's rule, asked after each measurement run. No I/O.

The steps are those of `core.sequential`: the first measurement run of a domain in which both sides of a comparison
have a time. They follow from the journal's downloads, so a resumed campaign goes on where it was.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from core.domain import Download, Role
from core.sequential import ALPHA, Quantity, SpeedUps, all_meet
from downloader.campaign.campaign import Campaign


class Stopping:
    """The intervals of one vantage point.

    Args:
        recorded: its downloads so far, those of a measurement run together.
    """

    def __init__(self, campaign: Campaign, recorded: Iterable[Download]) -> None:
        self._rule = campaign.stop_when
        effects = [comparison for comparison in campaign.comparisons if comparison.role is Role.EFFECT]
        self._comparisons = [(comparison, SpeedUps()) for comparison in effects] if self._rule else []
        if self._rule:
            for _, run in groupby(recorded, key=lambda d: (d.iteration, d.domain, d.url)):
                self.record(list(run))

    def record(self, run: Sequence[Download]) -> None:
        """The downloads of an accepted measurement run."""
        found = {download.configuration: download for download in run}
        for comparison, speed_ups in self._comparisons:
            config, vs = found.get(comparison.config), found.get(comparison.vs)
            if config is None or vs is None or config.accepted is False or vs.accepted is False:
                continue
            mine, theirs = config.time_bounds_s, vs.time_bounds_s
            if mine is not None and theirs is not None:
                speed_ups.add(config.domain, mine, theirs)

    @property
    def reached(self) -> bool:
        """Whether all intervals are narrow enough; never, without a rule."""
        return all_meet(self._rule, (speed_ups for _, speed_ups in self._comparisons))

    def state(self) -> dict[str, Any]:
        """For the journal and `environment.json`: the rule, and each interval; an infinite end is None."""
        return {
            "rule": {quantity.value: width for quantity, width in self._rule.items()},
            "alpha": ALPHA,
            "reached": self.reached,
            "comparisons": [
                {
                    "name": comparison.name,
                    "domains": len(speed_ups.domains),
                    "reached": speed_ups.meets(self._rule),
                    **{quantity.value: _ends(speed_ups, quantity) for quantity in Quantity},
                }
                for comparison, speed_ups in self._comparisons
            ],
        }


def _ends(speed_ups: SpeedUps, quantity: Quantity) -> tuple[float, float | None]:
    found = speed_ups.interval(quantity)
    return found.low, found.high if math.isfinite(found.high) else None
