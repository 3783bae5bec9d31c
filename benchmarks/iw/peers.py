"""Other tools for initial windows, on the same servers: estimates per second, and how many are right.

iw-prober (the tool of the TMA'18 paper on CDNs, github.com/janrueth/iw-prober) is taken from PATH or $IW_PROBER; the
zmap modules: see `zmap.py`.
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

from benchmarks.iw import zmap
from benchmarks.iw.world import EXACT_BYTES, FILE, World, open_world
from survey.iw.program import prober
from survey.iw.wire import Request, Scheme, Verdict
from survey.programs import Programs

SERVERS = ((Scheme.HTTP, 10), (Scheme.HTTP, 100), (Scheme.HTTP, None), (Scheme.HTTPS, 10))
"""Scheme and window; None: an answer as long as the window (*exact fit*), where no window is the right result."""

PARALLEL = (10, 100, 1_000)
UNLIMITED = 1_000_000
"""Packets per second of iw-prober; it keeps a queue of as many."""


def addresses(window: int | None, count: int) -> list[str]:
    """Servers with this window; None: whose answer is no longer than the window, so that nobody can tell it."""
    if window is None:
        return [f"198.19.101.{number % 254 + 1}" for number in range(count)]
    if window == 100:
        return [f"198.19.100.{number % 254 + 1}" for number in range(count)]
    return [f"198.19.{number >> 8 & 63}.{number & 255}" for number in range(count)]


def ours(
    world: World, hosts: Sequence[str], window: int | None, mss: int, together: int, scheme: Scheme = Scheme.HTTP
) -> tuple[float, int]:
    """Estimates per second, and how many are right."""
    port = {Scheme.HTTP: 80, Scheme.HTTPS: 443}[scheme]

    async def work() -> int:
        places = asyncio.Semaphore(together)

        async def one(host: str) -> bool:
            async with places:
                request = Request(
                    address=host, port=port, mss=mss, host=host, scheme=scheme, path=FILE, user_agent="bench"
                )
                reply = await probers.ask(request)
            return (reply.flight_segments if reply.verdict == Verdict.LIMITED else None) == window

        async with Programs(prober(world.attachment), world.client.start) as probers:
            return sum(await asyncio.gather(*map(one, hosts)))

    began = time.monotonic()
    right = asyncio.run(work())
    return len(hosts) / (time.monotonic() - began), right


def iw_prober(
    program: str, world: World, hosts: Sequence[str], window: int | None, mss: int, together: int
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
    modules, reason = zmap.find()
    with open_world() as world:
        for scheme, window in SERVERS:
            mss = given.mss if window else EXACT_BYTES // 10
            hosts = addresses(window, given.hosts if window == 10 else 200)
            print(f"{scheme.name}, {f'IW {window}' if window else 'exact fit'}, MSS {mss}, {len(hosts):,} hosts")
            said("iwprobe, 1,000 together", hosts, *ours(world, hosts, window, mss, 1_000, scheme))
            for together in PARALLEL if peer and scheme == Scheme.HTTP else ():
                some = hosts[: max(100, 2 * together)]
                found = iw_prober(peer or "", world, some, window, mss, together)
                said(f"iw-prober, {together:,} together", some, *found)
            for rate in zmap.RATES if modules else ():
                found = zmap.estimates(modules or "", world, hosts, window, mss, rate, scheme)
                said(f"zmap module, {rate:,} SYNs/s", hosts, *found)
    if not peer:
        print("iw-prober is not installed: put it on PATH or set IW_PROBER to compare with it")
    if not modules:
        print(reason)


def said(name: str, hosts: Sequence[str], rate: float, right: int) -> None:
    print(f"  {name}: {rate:,.0f} estimates/s, {right:,} of {len(hosts):,} right", flush=True)


if __name__ == "__main__":
    main()
