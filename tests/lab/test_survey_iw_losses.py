"""Initial windows over paths that lose packets: drops placed by the emulator, and random loss.

The emulator loses the same packets of every connection, so random loss is the kernel's.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from core.system.place import Place
from core.system.process import Child
from survey.iw.probers import Attachment, prober
from survey.iw.votes import MOST_PROBES, ProbeResult, Vote, decide
from survey.iw.wire import ProbeReply, ProbeRequest, ProbeVerdict
from survey.programs import ProberPool
from tests.cells import cells
from tests.lab._iw_world import DEVICE, IwWorld, server_address
from tests.topologies import server, topology
from vantage.lab.lab import Lab, open_lab

pytestmark = pytest.mark.lab

WINDOWS = (10, 32, 100)
SIZES = (64, 128, 536, 1200)
DROPS = ("none", "first", "second", "middle", "last-but-one", "first-three", "every-third", "last")
"""What each vantage point's path loses."""

RANDOM_WINDOWS = (10, 16, 20, 25, 32, 64, 100)
NEAR = "rtt_ms = 10, rate_mbit = 1000"


def lost(drop: str, window: int) -> list[int]:
    """Numbers of the payload segments that are lost, from 0."""
    return {
        "none": [],
        "first": [0],
        "second": [1],
        "middle": [window // 2],
        "last-but-one": [window - 2],
        "first-three": [0, 1, 2],
        "every-third": list(range(2, window - 1, 3)),
        "last": [window - 1],
    }[drop]


def text() -> str:
    def made(name: str, more: str, paths: dict[str, str]) -> str:
        found = server(
            name, f"www.{name}.example", more=f'web_server = "nginx"\nplain_http = true\n{more}', size="1 MB"
        )
        listed = ", ".join(f"{vantage} = {{ {NEAR}{paths.get(vantage, '')} }}" for vantage in DROPS)
        return found[: found.index("paths = ")] + f"paths = {{ {listed} }}\n"

    losing = [
        made(f"iw{window}", f"initcwnd = {window}", {drop: f", drop = {lost(drop, window)}" for drop in DROPS})
        for window in WINDOWS
    ]
    return topology("iwlosses", *losing, vantages=DROPS)


@pytest.fixture(scope="module")
def lab(lab_host: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    path = tmp_path_factory.mktemp("iwlosses") / "iwlosses.toml"
    path.write_text(text())
    with open_lab(path) as found:
        yield found


def request(lab: Lab, window: int, mss: int) -> ProbeRequest:
    address = lab.plan.addresses[f"iw{window}"].ipv4
    return ProbeRequest(address=address, port=80, mss=mss, host=f"www.iw{window}.example", path="/a.bin", user_agent="")


def asked(place: Place, requests: Sequence[ProbeRequest]) -> list[ProbeReply]:
    """The replies of a prober in a place, to requests side by side."""
    own = place.prober()
    addresses = [address for address in (own.ipv4, own.ipv6) if address is not None]
    attachment = Attachment(device=own.device, addresses=addresses, next_hop=own.neighbour)

    def start(argv: Sequence[str]) -> Child:
        return place.start(argv, stdin=True, stdout=True, binary=True)

    async def work() -> list[ProbeReply]:
        async with ProberPool(prober(attachment), start) as probers:
            return list(await asyncio.gather(*map(probers.ask, requests)))

    return asyncio.run(work())


@cells("window", every=WINDOWS, quick=[32])
def test_drops_placed_by_the_emulator(lab: Lab, window: int) -> None:
    """A single probe is exact, unless the last segment is lost: then it is one too small, and still `limited`."""
    requests = [request(lab, window, mss) for mss in SIZES]
    for drop in DROPS:
        for mss, reply in zip(SIZES, asked(lab.place(drop), requests), strict=True):
            seen = (reply.verdict, reply.flight_segments, reply.holes)
            is_last = drop == "last"
            missing = 0 if is_last else len(set(lost(drop, window)) - {0})
            assert seen[:2] == (ProbeVerdict.LIMITED, window - is_last), (drop, mss, reply)
            # The first one fills its hole when it comes again.
            assert reply.holes in (missing, missing + (0 in lost(drop, window))), (drop, mss, reply)


def test_votes_outvote_a_lost_last_segment_unless_it_is_always_lost(lab: Lab) -> None:
    window, mss = 32, 536
    asking = request(lab, window, mss)
    [bad], good = asked(lab.place("last"), [asking]), asked(lab.place("none"), [asking] * 2)
    vote = decide([ProbeResult.of(reply) for reply in (bad, *good)])
    assert vote is not None and (vote.verdict, vote.segments, vote.agreeing) == ("limited", window, 2), vote
    assert decide([ProbeResult.of(bad), ProbeResult.of(good[0])]) is None
    always = [ProbeResult.of(reply) for reply in asked(lab.place("last"), [asking] * MOST_PROBES)]
    vote = decide(always, published=True)
    assert vote is not None and (vote.verdict, vote.segments, vote.agreeing) == ("limited", window - 1, 10), vote


@cells("percent", every=(1, 5), quick=[5])
def test_random_loss(tmp_path: Path, percent: int) -> None:
    """200 hosts: what is decided is right, the rest undecided rather than wrong."""
    world = IwWorld(tmp_path / "world", RANDOM_WINDOWS)
    try:
        lose_at_random(world, percent)
        hosts = [RANDOM_WINDOWS[number % len(RANDOM_WINDOWS)] for number in range(200)]
        decided = asyncio.run(decisions(world, hosts))
    finally:
        world.close()
    seen: Counter[str] = Counter()
    for window, mss, vote in decided:
        seen[("right" if vote.segments == window else "wrong") if vote.verdict == "limited" else vote.verdict] += 1
        assert vote.segments is None or vote.segments <= window, (window, mss, vote)
    assert seen["right"] >= (1 - percent / 100) * (seen["right"] + seen["wrong"]), seen
    assert seen["right"] + seen["wrong"] >= 0.95 * seen.total(), seen


def lose_at_random(world: IwWorld, percent: int) -> None:
    """Packets from the servers that were drawn go to a device that leads nowhere: their kernel does not know."""
    run = world.server.run
    run("ip", "link", "add", "nowhere", "type", "veth", "peer", "dead-end")
    for device in ("nowhere", "dead-end"):
        run("ip", "link", "set", device, "up")
    hook = f"type filter hook egress device {DEVICE} priority 0;"
    run("nft", f"add table netdev lost; add chain netdev lost out {{ {hook} }}")
    run("nft", f"add rule netdev lost out ip protocol tcp numgen random mod 100 < {percent} fwd to nowhere")


async def decisions(world: IwWorld, windows: Sequence[int]) -> list[tuple[int, int, Vote]]:
    """The votes of servers, side by side: (window, MSS, vote)."""
    together = asyncio.Semaphore(60)

    async def vote(window: int, mss: int) -> tuple[int, int, Vote]:
        asking = ProbeRequest(
            address=server_address(window), port=80, mss=mss, host="iw.test", path="/big", user_agent=""
        )
        probes: list[ProbeResult] = []
        async with together:
            while (found := decide(probes)) is None:
                probes.append(ProbeResult.of(await probers.ask(asking)))
        return window, mss, found

    async with ProberPool(prober(world.attachment), world.client.start) as probers:
        return list(await asyncio.gather(*(vote(window, SIZES[n // 7 % 4]) for n, window in enumerate(windows))))
