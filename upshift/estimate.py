"""What a campaign will take, before anything is sent: time, bytes, disk, days. Pure; `now` is passed in."""

from __future__ import annotations

import math
import random
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta

from core.domain import Target, TargetKey
from downloader.campaign.expected import PathGuess, downloads_per_run, expected_s, planned_downloads, run_bytes, worst_s
from downloader.campaign.limits import KeptCaptures
from downloader.limits.budget import network_of
from downloader.limits.disk import RECORDED_BYTES
from downloader.schedule.slots import MARGIN_S, SharedPlan, Slots

Paths = Callable[[str, Target], PathGuess]
"""(vantage point, target) -> what is expected of the path."""

CAPTURE_SHARE = 0.15
"""Expected bytes of a capture per IP byte: 176 for a data packet of 1,500, and 82 for the acknowledgement of two."""

CAPTURE_BYTES = 8_000
"""What each download adds to a capture besides: handshakes, those of QUIC whole."""

SENT_SHARE = 0.03
"""Expected share of IP bytes that a host sends: an acknowledgement of 52 (TCP) to 90 (QUIC) for 2 packets of 1,500."""

PACKED = 0.64
"""Size of a packed capture, as a share: the snapped payload is encrypted, so it cannot be made smaller."""

FOLDER_BYTES = 210_000
"""Size of journal and tables besides, whatever their length: schemas, indices, status, environment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VantageEstimate:
    """The part of one vantage point."""

    runs: int
    expected_s: float
    """From now to the end of its last run, waits for slots included, those for budgets not."""
    worst_s: float
    """The same where every run takes its worst case."""
    ip_bytes: int
    last_day: date
    """UTC day of its last run, budgets included."""
    hours: float
    """From now to the end of its last run; where budgets make it longer, to the end of that UTC day."""
    sent_bytes: int
    """What the host sends: acknowledgements and requests, and its results once, to be collected."""
    received_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerTraffic:
    """What goes to one owner: a provider, an AS (or a /24 or /48), a domain, or all."""

    name: str
    ip_bytes: int
    """The sum of all vantage points."""
    days: int | None
    """Least number of UTC days by its budget; None: it has no budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What a campaign will take."""

    plan_sha256: str
    targets: int
    iterations: int
    downloads_per_run: int
    slot_s: float | None
    """Length of slots; None: there are none."""
    parts: Mapping[str, VantageEstimate]
    """Vantage point -> its part."""
    campaign: OwnerTraffic
    providers: tuple[OwnerTraffic, ...]
    """Largest first, like the next two."""
    networks: tuple[OwnerTraffic, ...]
    """By AS; a target whose AS and address are not known is in none."""
    domains: tuple[OwnerTraffic, ...]
    disk: Mapping[str, int]
    """Capture policy -> bytes per vantage point; for `failures` without the captures of failures."""
    binding: str | None
    """The budget that makes the campaign longer than its time does; None: none does."""

    @property
    def last_day(self) -> date:
        """UTC day of the last run."""
        return max(part.last_day for part in self.parts.values())


def estimate(plan: SharedPlan, paths: Paths, now: float) -> Estimate:
    """What a campaign will take if it starts at a Unix time."""
    campaign, count = plan.campaign, len(plan.vantage_points)
    sizes = [(target, campaign.iterations * run_bytes(campaign, target)) for target in plan.targets]
    total = sum(size for _, size in sizes)
    budgets = campaign.budgets
    whole = OwnerTraffic(name=campaign.name, ip_bytes=total * count, days=_days(plan, plan.targets, budgets.campaign))
    networks = _shares(plan, lambda target: network_of(target, target.server_ip), budgets.network)
    domains = _shares(plan, lambda target: target.domain, budgets.domain)
    limited = [("the campaign", whole), *((share.name, share) for share in (*networks, *domains))]
    slowest, longest = max(limited, key=lambda pair: pair[1].days or 0)
    days = longest.days or 0
    disk = _disk(plan, total)
    collected = disk[campaign.disk.captures.value]
    parts = {name: _part(plan, name, paths, now, total, days, collected) for name in plan.vantage_points}
    by_time = max(_day(now + part.expected_s) for part in parts.values())
    return Estimate(
        plan_sha256=plan.digest,
        targets=len(plan.targets),
        iterations=campaign.iterations,
        downloads_per_run=downloads_per_run(campaign),
        slot_s=None if plan.slots is None else plan.slots.length_s,
        parts=parts,
        campaign=whole,
        providers=_shares(plan, lambda target: str(target.provider), None),
        networks=networks,
        domains=domains,
        disk=disk,
        binding=slowest if _day(now) + timedelta(days=days - 1) > by_time else None,
    )


def _part(
    plan: SharedPlan, name: str, paths: Paths, now: float, ip_bytes: int, days: int, collected_bytes: int
) -> VantageEstimate:
    campaign = plan.campaign
    expected = _duration_s(plan, name, lambda target: expected_s(campaign, target, paths(name, target)), now)
    last_day = max(_day(now + expected), _day(now) + timedelta(days=max(days - 1, 0)))
    midnight = datetime.combine(last_day + timedelta(days=1), time(tzinfo=UTC)).timestamp()
    sent = round(ip_bytes * SENT_SHARE)
    return VantageEstimate(
        runs=campaign.iterations * len(plan.targets),
        expected_s=expected,
        worst_s=_duration_s(plan, name, lambda target: worst_s(campaign, target), now),
        ip_bytes=ip_bytes,
        last_day=last_day,
        hours=(expected if last_day == _day(now + expected) else midnight - now) / 3600,
        sent_bytes=sent + collected_bytes,
        received_bytes=ip_bytes - sent,
    )


def _duration_s(plan: SharedPlan, name: str, time_of: Callable[[Target], float], now: float) -> float:
    """From now to the end of the last run of a vantage point."""
    times = {target.key: time_of(target) for target in plan.targets}
    if plan.slots is None:  # vantage points that share few targets wait for each other
        crowd = max(1.0, len(plan.vantage_points) / len({target.domain for target in plan.targets}))
        return plan.campaign.iterations * crowd * sum(times.values())
    return max(_ends(plan.slots, plan, plan.index(name), times, now)) - now


def _ends(slots: Slots, plan: SharedPlan, index: int, times: Mapping[TargetKey, float], now: float) -> Iterator[float]:
    """When a vantage point has done all runs of each class; it works on one class at a time, so each is by itself."""
    order = list(plan.targets)
    random.Random(plan.campaign.seed).shuffle(order)  # a plan is shuffled, too
    classes: dict[int, list[Target]] = {}
    for target in order:
        classes.setdefault(slots.classes[target.key], []).append(target)
    for members in classes.values():
        first = members[0]
        at = now if slots.is_turn(first, index, now) else slots.next_turn(first, index, now)
        runs = [(worst_s(plan.campaign, target), times[target.key]) for target in members]
        left = deque(runs * plan.campaign.iterations)
        counts = Counter(worst for worst, _ in left)
        shortest = deque(sorted(counts))
        while left:
            room = slots.end(at) - at - MARGIN_S
            if shortest[0] > room:
                at = slots.next_turn(first, index, at)
                continue
            number, (worst, took) = next(run for run in enumerate(left) if run[1][0] <= room)
            del left[number]
            counts[worst] -= 1
            while shortest and not counts[shortest[0]]:
                shortest.popleft()
            at += took
        yield at


def _shares(plan: SharedPlan, owner: Callable[[Target], str | None], budget: int | None) -> tuple[OwnerTraffic, ...]:
    members: dict[str, list[Target]] = {}
    for target in plan.targets:
        if (name := owner(target)) is not None:
            members.setdefault(name, []).append(target)
    shares = (
        OwnerTraffic(
            name=name,
            ip_bytes=len(plan.vantage_points)
            * sum(run_bytes(plan.campaign, target) for target in targets)
            * plan.campaign.iterations,
            days=None if budget is None else _days(plan, targets, budget),
        )
        for name, targets in members.items()
    )
    return tuple(sorted(shares, key=lambda share: (-share.ip_bytes, share.name)))


def _days(plan: SharedPlan, targets: Sequence[Target], budget: int) -> int:
    """Least days of a vantage point by its part of a budget: only whole measurement runs of them fit into a day."""
    sizes = [run_bytes(plan.campaign, target) for target in targets]
    per_day = max(budget // len(plan.vantage_points) * len(sizes) // sum(sizes), 1)
    return math.ceil(plan.campaign.iterations * len(sizes) / per_day)


def _disk(plan: SharedPlan, ip_bytes: int) -> dict[str, int]:
    """Bytes per vantage point with each capture policy."""
    campaign = plan.campaign
    downloads = planned_downloads(campaign, plan.targets)
    rows = FOLDER_BYTES + downloads * RECORDED_BYTES
    captures = PACKED * (ip_bytes * CAPTURE_SHARE + downloads * CAPTURE_BYTES)
    share = {
        KeptCaptures.ALL: 1.0,
        KeptCaptures.SAMPLE: campaign.disk.sample,
        KeptCaptures.FAILURES: 0.0,
        KeptCaptures.NONE: 0.0,
    }
    return {policy.value: round(rows + part * captures) for policy, part in share.items()}


def _day(at: float) -> date:
    return datetime.fromtimestamp(at, UTC).date()
