"""Our prober, asked as the other tools are: by lists of servers. `measure.py` is faster: it reads replies in bulk."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from benchmarks.iw.world import FILE, Answers, Window, World
from survey.iw.probers import prober
from survey.iw.votes import ProbeResult, Vote, decide
from survey.iw.wire import ProbeReply, ProbeRequest, ProbeVerdict, Scheme
from survey.programs import ProberPool

PORTS = {Scheme.HTTP: 80, Scheme.HTTPS: 443}


def ask(
    world: World, hosts: Sequence[str], mss: int, *, together: int = 1_000, scheme: Scheme = Scheme.HTTP
) -> Answers:
    """Its answers, one probe for each."""

    async def work() -> list[ProbeReply]:
        async with ProberPool(prober(world.attachment), world.client.start) as probers:
            return await _replies(probers, hosts, mss, together, scheme)

    began = time.monotonic()
    replies = asyncio.run(work())
    windows = {
        host: Window(segments=reply.flight_segments, bytes=reply.flight_bytes)
        for host, reply in zip(hosts, replies, strict=True)
        if reply.verdict == ProbeVerdict.LIMITED
    }
    return Answers(windows=windows, replies=len(replies), took_s=time.monotonic() - began)


def vote(world: World, hosts: Sequence[str], mss: int, *, together: int = 1_000) -> Answers:
    """Its answers by as many probes as the vote of `upshift survey iw` needs, in rounds, each in the same order."""

    async def work() -> dict[str, Vote]:
        probes: dict[str, list[ProbeResult]] = {host: [] for host in hosts}
        votes: dict[str, Vote] = {}
        async with ProberPool(prober(world.attachment), world.client.start) as probers:
            while waiting := [host for host in hosts if host not in votes]:
                replies = await _replies(probers, waiting, mss, together, Scheme.HTTP)
                for host, reply in zip(waiting, replies, strict=True):
                    probes[host].append(ProbeResult.of(reply))
                    if (decided := decide(probes[host])) is not None:
                        votes[host] = decided
        return votes

    began = time.monotonic()
    votes = asyncio.run(work())
    windows = {
        host: Window(segments=found.segments or 0, bytes=found.bytes or 0)
        for host, found in votes.items()
        if found.verdict == ProbeVerdict.LIMITED
    }
    return Answers(windows=windows, replies=len(votes), took_s=time.monotonic() - began)


async def _replies(
    probers: ProberPool[ProbeRequest, ProbeReply], hosts: Sequence[str], mss: int, together: int, scheme: Scheme
) -> list[ProbeReply]:
    places = asyncio.Semaphore(together)

    async def one(host: str) -> ProbeReply:
        async with places:
            return await probers.ask(
                ProbeRequest(
                    address=host,
                    port=PORTS[scheme],
                    mss=mss,
                    host=host,
                    scheme=scheme,
                    path=FILE,
                    user_agent="bench",
                )
            )

    return list(await asyncio.gather(*map(one, hosts)))
