"""`upshift plan`: what a campaign will take, before anything is sent."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from json import dumps
from math import log
from pathlib import Path
from time import time
from typing import Annotated, TextIO

import typer

from core import terminal
from core.domain import Role, Target, Transport
from core.errors import BlockedError, ReachError
from core.files.disk import free_bytes, size_text
from core.options import with_options
from core.reach import check_address, check_named
from core.untrusted import host_and_port, is_address
from downloader.campaign.campaign import Campaign, load
from downloader.campaign.configurations import transport_of
from downloader.campaign.expected import USUAL, PathGuess
from downloader.campaign.limits import KeptCaptures
from downloader.execution.run import check_limits
from downloader.limits.opt_out import block_lists
from downloader.schedule.slots import SharedPlan
from upshift.estimate import Estimate, OwnerTraffic, Paths, VantageEstimate, estimate
from upshift.shared_plan import shared_plan, topology_of

_MOST_SHOWN = 10
"""Most providers, networks and domains in a printed table; --json has all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """What is expected, and what hosts cost."""

    here: Annotated[
        bool, typer.Option("--here", help="As it runs with one vantage point per host (upshift run --here): in slots.")
    ] = False
    rtt_ms: Annotated[
        float, typer.Option(min=0.1, max=10_000, help="Expected round-trip time of paths outside a lab [ms].")
    ] = USUAL.rtt_s * 1e3
    mbit: Annotated[
        float, typer.Option(min=0.01, max=1e6, help="Expected goodput of a download outside a lab [Mbit/s].")
    ] = USUAL.mbit
    price_hour: Annotated[
        float, typer.Option(min=0, metavar="PRICE", help="What an hour of a host costs, in your currency.")
    ] = 0.0
    price_gb: Annotated[
        float, typer.Option(min=0, metavar="PRICE", help="What a GB (10^9 bytes) costs that a host sends.")
    ] = 0.0
    price_gb_in: Annotated[
        float, typer.Option(min=0, metavar="PRICE", help="What a GB costs that a host receives; free with most clouds.")
    ] = 0.0
    noise: Annotated[
        float,
        typer.Option(
            min=0.1, max=100, metavar="PERCENT", help="Expected noise of the time of one download (standard deviation)."
        ),
    ] = 10.0

    def price(self, part: VantageEstimate) -> float:
        """The price of one vantage point's part; a GB is 10^9 bytes."""
        of_bytes = self.price_gb * part.sent_bytes + self.price_gb_in * part.received_bytes
        return self.price_hour * part.hours + of_bytes / 1e9


@with_options
def plan(
    campaign: Annotated[
        Path, typer.Argument(help="Campaign file (TOML); examples/ has some.", metavar="CAMPAIGN.toml")
    ],
    options: PlanOptions,
    json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """What a campaign will take, before anything is sent: runs, time, bytes, disk, days, money.

    In a lab the paths are known. Outside, time is computed for the round-trip time and the goodput that you expect,
    and money for the prices of your hosts' provider: hours from now to the last run, what the host sends (its results
    once, too), and what it receives.
    """
    loaded = load(campaign)
    hosts = options.here or (loaded.topology is None and len(loaded.vantage_points) > 1)
    shared = shared_plan(loaded, hosts=hosts)
    in_folder = 1 if hosts else len(shared.vantage_points)
    check_limits(shared, in_folder=in_folder)
    expected = estimate(shared, _paths(loaded, PathGuess(rtt_s=options.rtt_ms / 1e3, mbit=options.mbit)), time())
    prices = {name: options.price(part) for name, part in expected.parts.items()}
    needed = _domains_needed(loaded, len(expected.parts), options.noise / 100)
    if json:
        typer.echo(
            dumps(
                {
                    **asdict(expected),
                    "domains_for_5_percent": needed,
                    "without_http3": [target.domain for target in shared.without_http3],
                    "last_day": expected.last_day,
                    "prices": prices,
                },
                default=str,
            )
        )
        return
    show(expected, sys.stdout)
    to = terminal.console(sys.stdout)
    if needed is not None:
        domains = len({target.domain for target in shared.targets})
        enough = "it has" if domains >= needed else "this campaign has"
        by_quic = _domains_over_quic(shared)
        of_quic = "" if by_quic is None else f"; {by_quic} in comparisons with QUIC"
        terminal.print_line(
            to,
            f"An effect of 5 % on all domains is found with 90 % power from {_count(needed, 'domain')} on ({enough} "
            f"{domains}{of_quic}), if the time of a download has {options.noise:g} % of noise (--noise).",
        )
    left = (*_without_http3(shared), *_left_alone(loaded, shared.targets))
    for sentence in (*_disk(loaded, expected, in_folder), *left):
        terminal.print_line(to, sentence)
    if loaded.topology is None:
        costs = _costs(expected, prices if any(prices.values()) else None)
        terminal.print_table(to, [costs], title="Hours, traffic and price of hosts", words={costs[0][0]})
        note = f"The time is that of paths with {options.rtt_ms:g} ms and {options.mbit:g} Mbit/s (--rtt-ms, --mbit)."
        if not any(prices.values()):
            note += " What the hosts cost: --price-hour, --price-gb."
        terminal.print_line(to, note)
    unknown = sum(target.size_bytes is None or target.size_is_lower_bound for target in shared.targets)
    if unknown:
        size = size_text(loaded.max_bytes)
        note = f"The size of {_count(unknown, 'target')} is not known, so max_bytes ({size}) counts."
        terminal.print_line(to, note)


def _domains_over_quic(plan: SharedPlan) -> int | None:
    """Domains that effects with QUIC have; None if all have as many."""
    names = {name for one in plan.campaign.comparisons if one.role is Role.EFFECT for name in (one.config, one.vs)}
    if not any(one.name in names and transport_of(one) is Transport.QUIC for one in plan.campaign.every):
        return None
    without = {target.domain for target in plan.without_http3}
    return len({target.domain for target in plan.targets} - without) if without else None


def _domains_needed(campaign: Campaign, vantage_points: int, noise: float) -> int | None:
    """Domains with which a uniform effect of 5 % is found; None for a campaign without effects."""
    from analysis.measures.statistics.tests import domains_needed
    from analysis.measures.verdicts import DIRECTION_SHARE, SIGNIFICANCE

    effects = sum(comparison.role is Role.EFFECT for comparison in campaign.comparisons)
    if not effects:
        return None
    # At worst no other effect is real, and all tests of the table count.
    level = SIGNIFICANCE * DIRECTION_SHARE / effects
    return domains_needed(log(1.05), noise=noise, runs=campaign.iterations * vantage_points, level=level)


def _disk(campaign: Campaign, expected: Estimate, vantage_points: int) -> Iterator[str]:
    """What becomes of a folder, which so many vantage points share, that needs more than its limit, or than is free."""
    limits = campaign.disk
    needed, kept = (vantage_points * expected.disk[policy.value] for policy in (limits.captures, KeptCaptures.NONE))
    free = max(free_bytes(Path()) - limits.reserve, 0)
    least = min(limits.limit, free)
    if needed <= least:
        return
    which = f"the limit is {size_text(limits.limit)} (disk.limit)"
    if free < limits.limit:
        which = f"{size_text(free)} of this disk can be used (disk.reserve is {size_text(limits.reserve)})"
    yield (
        f"Disk: with captures = {limits.captures.value} the folder needs about {size_text(needed)}, and {which}. "
        + (
            "From then on captures of clean measurement runs are dropped, the oldest first."
            if kept <= least
            else f"Without captures it needs {size_text(kept)}, so the campaign will pause."
        )
    )


def _without_http3(plan: SharedPlan) -> Iterator[str]:
    """What is not planned, as it could only fail."""
    left = {target.key for target in plan.targets}
    gone = sum(target.key not in left for target in plan.without_http3)
    if plan.without_http3:
        yield (
            f"Not planned over QUIC: {_count(len(plan.without_http3), 'target')} known to be without HTTP/3 (column "
            f"quic of the targets){f'; nothing else is left for {gone} of them' if gone else ''}."
        )


def _left_alone(campaign: Campaign, targets: Sequence[Target]) -> Iterator[str]:
    """Targets that no run will download: of a block list, or at an address that may not be contacted.

    Raises:
        UsageError: a block list is missing or not valid.
    """
    if campaign.opt_out is not None and not (campaign.path.parent / campaign.opt_out).exists():
        campaign = replace(campaign, opt_out=None)  # only a run makes it
    lists, refused, blocked = block_lists(campaign), 0, 0
    for target in targets:
        host, _ = host_and_port(target.url)
        try:
            for name in dict.fromkeys((target.domain, host)):
                lists.check(name, target.server_ip)
            if campaign.lab is None and (address := target.server_ip or (host if is_address(host) else None)):
                check_named(address, campaign.allowed_prefixes)
                check_address(address, campaign.allowed_prefixes)
        except BlockedError:
            blocked += 1
        except ReachError:
            refused += 1
    if blocked:
        yield f"Left alone: {_count(blocked, 'target')} of a block list."
    if refused:
        yield f"Refused: {_count(refused, 'target')} with an address that may not be contacted."


def _paths(campaign: Campaign, usual: PathGuess) -> Paths:
    """The lab's own paths; outside, and for targets that no server of the lab has, the usual one."""
    if campaign.topology is None:
        return lambda _, __: usual
    topology = topology_of(campaign, campaign.topology)
    known: Mapping[tuple[str, str], PathGuess] = {
        (vantage, domain): PathGuess(rtt_s=path.rtt_ms / 1e3, mbit=0.95 * path.rate_mbit)
        for server in topology.server
        for vantage, path in server.paths.items()
        for domain in server.domains
    }
    return lambda vantage, target: known.get((vantage, target.domain), usual)


def show(expected: Estimate, stream: TextIO) -> None:
    """Prints the tables."""
    to = terminal.console(stream)
    for title, cells in _tables(expected):
        terminal.print_table(to, [cells], title=title, words={cells[0][0]})
    days = f"Last day (UTC): {expected.last_day}."
    if expected.binding is not None:
        days += f" The daily budget of {expected.binding} is what takes longest."
    terminal.print_line(to, days)
    terminal.print_line(to, f"Hash of the plan: {expected.plan_sha256[:12]}.")


def _tables(expected: Estimate) -> Iterator[tuple[str, terminal.Cells]]:
    slots = "" if expected.slot_s is None else f", in slots of {_span(expected.slot_s)}"
    yield (
        f"{expected.campaign.name}: {_count(expected.targets, 'target')}, {_count(expected.iterations, 'iteration')}, "
        f"{expected.downloads_per_run} downloads per measurement run{slots}",
        [
            ["vantage point", "runs", "expected time", "worst time", "IP bytes", "last day"],
            *(
                [name, str(p.runs), _span(p.expected_s), _span(p.worst_s), size_text(p.ip_bytes), str(p.last_day)]
                for name, p in expected.parts.items()
            ),
        ],
    )
    for word, shares in (
        ("provider", expected.providers),
        ("network", expected.networks),
        ("domain", expected.domains),
    ):
        if shares:
            yield _share_table(word, shares, expected.campaign)
    yield (
        "Disk per vantage point, by [disk] captures",
        [
            ["captures", "disk"],
            *([policy, "from " * (policy == "failures") + size_text(size)] for policy, size in expected.disk.items()),
        ],
    )


def _costs(expected: Estimate, prices: Mapping[str, float] | None) -> terminal.Cells:
    """Hours, GB and, if there are prices, money for each vantage point and for all."""
    rows = {name: [p.hours, p.sent_bytes / 1e9, p.received_bytes / 1e9] for name, p in expected.parts.items()}
    for name, price in (prices or {}).items():
        rows[name].append(price)
    rows["all"] = [sum(column) for column in zip(*rows.values(), strict=True)]
    heading = ["vantage point", "hours", "GB sent", "GB received", *(["price"] if prices else [])]
    return [heading, *([name, f"{row[0]:,.1f}", *(f"{cell:,.2f}" for cell in row[1:])] for name, row in rows.items())]


def _share_table(word: str, shares: Sequence[OwnerTraffic], whole: OwnerTraffic) -> tuple[str, terminal.Cells]:
    shown = list(shares[:_MOST_SHOWN])
    title = f"IP bytes by {word}, all vantage points together"
    if len(shares) > len(shown):
        title += f" (the largest {len(shown)} of {len(shares)})"
    rows = [[s.name, size_text(s.ip_bytes), str(s.days)] for s in [*shown, replace(whole, name="all")]]
    columns = 2 if shares[0].days is None else 3
    return title, [line[:columns] for line in ([word, "IP bytes", "days by budget"], *rows)]


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _span(seconds: float) -> str:
    """A time for people: `1.2 s`, `0:03:20`, `2 days, 1:00:00`."""
    return f"{seconds:.2g} s" if seconds < 60 else str(timedelta(seconds=round(seconds)))
