"""Other tools for initial windows, on the same servers: estimates per second, and how many are right.

iw-prober (the tool of the TMA'18 paper on CDNs, github.com/janrueth/iw-prober) is taken from PATH or $IW_PROBER.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from math import ceil
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.iw.world import FILE, World, open_world
from survey.iw.program import prober
from survey.iw.wire import Request, Verdict
from survey.programs import Programs

PARALLEL = (10, 100, 1_000)
UNLIMITED = 1_000_000
"""Packets per second of iw-prober; it keeps a queue of as many."""


def addresses(window: int, count: int) -> list[str]:
    """Servers with this window."""
    if window == 100:
        return [f"198.19.100.{number % 254 + 1}" for number in range(count)]
    return [f"198.19.{number >> 8 & 63}.{number & 255}" for number in range(count)]


def ours(world: World, hosts: Sequence[str], window: int, mss: int, together: int) -> tuple[float, int]:
    """Estimates per second, and how many are right."""

    async def work() -> int:
        places = asyncio.Semaphore(together)

        async def one(host: str) -> bool:
            async with places:
                request = Request(address=host, port=80, mss=mss, host=host, path=FILE, user_agent="bench")
                reply = await probers.ask(request)
            return reply.verdict == Verdict.LIMITED and reply.flight_segments == window

        async with Programs(prober(world.attachment), world.client.start) as probers:
            return sum(await asyncio.gather(*map(one, hosts)))

    began = time.monotonic()
    right = asyncio.run(work())
    return len(hosts) / (time.monotonic() - began), right


def iw_prober(
    program: str, world: World, hosts: Sequence[str], window: int, mss: int, together: int
) -> tuple[float, int]:
    """The same."""
    own, gateway = world.attachment.addresses[0], world.attachment.next_hop or ""
    argv = [*world.client.enter, program, "-source-ip", own, "-dev", world.attachment.device, "-gw", gateway]
    argv += ["-src-mac", world.client_mac, "-parallel", str(together), "-pktrate", str(UNLIMITED)]
    lines = "".join(json.dumps(_asked(host, mss)) + "\n" for host in hosts)
    began = time.monotonic()
    done = subprocess.run(argv, input=lines, capture_output=True, text=True, check=False, timeout=600)
    took = time.monotonic() - began
    right = sum(_window(json.loads(line)) == window for line in done.stdout.splitlines())
    return len(hosts) / took, right


def _asked(host: str, mss: int) -> dict[str, object]:
    # With an answer of DNS in it, it does not ask a name server.
    answers = [{"type": "A", "answer": host}]
    return {"mss": mss, "url": f"http://{host}{FILE}", "result": {"dns": {"answers": answers}}}


def _window(line: dict[str, object]) -> int | None:
    result = line["result"]
    assert isinstance(result, dict)
    if result["error"]:
        return None
    data = result["connection"]["data"]
    length, largest = int(data["end_of_data"]) - int(data["start_of_data"]), int(data["observed_mss"])
    return ceil(length / max(1, largest))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=2_000)
    parser.add_argument("--mss", type=int, default=64)
    given = parser.parse_args()
    peer = os.environ.get("IW_PROBER") or shutil.which("iw-prober")
    with open_world() as world:
        for window in (10, 100):
            hosts = addresses(window, given.hosts if window == 10 else 200)
            print(f"IW {window}, MSS {given.mss}, {len(hosts)} hosts")
            rate, right = ours(world, hosts, window, given.mss, 1_000)
            print(f"  iwprobe, 1000 together: {rate:,.0f} estimates/s, {right} right", flush=True)
            for together in PARALLEL if peer else ():
                some = hosts[: max(100, 2 * together)]
                rate, right = iw_prober(peer or "", world, some, window, given.mss, together)
                print(
                    f"  iw-prober, {together} together: {rate:,.0f} estimates/s, {right} of {len(some)} right",
                    flush=True,
                )
    if not peer:
        print("iw-prober is not installed: put it on PATH or set IW_PROBER to compare with it")


if __name__ == "__main__":
    main()
