"""Other tools for initial windows, on the same servers: estimates per second, and how many are right."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.iw import iw_prober, iwprobe, zmap
from benchmarks.iw.world import EXACT_BYTES, Answers, open_world
from survey.iw.wire import Scheme

SERVERS = ((Scheme.HTTP, 10), (Scheme.HTTP, 100), (Scheme.HTTP, None), (Scheme.HTTPS, 10))
"""Scheme and window; None: an answer as long as the window (*exact fit*), where no window is the right result."""

PARALLEL = (10, 100, 1_000)
"""Connections of iw-prober at a time."""

RATES = (1_000, 10_000)
"""SYNs per second of zmap."""


def addresses(window: int | None, count: int) -> list[str]:
    """Servers with this window; None: whose answer is no longer than the window, so that nobody can tell it."""
    if window is None:
        return [f"198.19.101.{number % 254 + 1}" for number in range(count)]
    if window == 100:
        return [f"198.19.100.{number % 254 + 1}" for number in range(count)]
    return [f"198.19.{number >> 8 & 63}.{number & 255}" for number in range(count)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=2_000)
    parser.add_argument("--mss", type=int, default=64)
    given = parser.parse_args()
    peer, no_peer = iw_prober.find()
    modules, no_modules = zmap.find()
    with open_world() as world:
        for scheme, window in SERVERS:
            mss = given.mss if window else EXACT_BYTES // 10
            hosts = addresses(window, given.hosts if window == 10 else 200)
            print(f"{scheme.name}, {f'IW {window}' if window else 'exact fit'}, MSS {mss}, {len(hosts):,} hosts")
            said("iwprobe, 1,000 together", hosts, window, iwprobe.ask(world, hosts, mss, scheme=scheme))
            for together in PARALLEL if peer and scheme == Scheme.HTTP else ():
                some = hosts[: max(100, 2 * together)]
                found = iw_prober.ask(peer or "", world, some, mss, together=together)
                said(f"iw-prober, {together:,} together", some, window, found)
            for rate in RATES if modules else ():
                found = zmap.ask(modules or "", world, hosts, mss, rate=rate, scheme=scheme)
                said(f"zmap module, {rate:,} SYNs/s", hosts, window, found)
    for reason in (None if peer else no_peer, None if modules else no_modules):
        if reason:
            print(reason)


def said(name: str, hosts: Sequence[str], window: int | None, found: Answers) -> None:
    rate, right = found.replies / found.took_s, found.right(hosts, window)
    print(f"  {name}: {rate:,.0f} estimates/s, {right:,} of {len(hosts):,} right", flush=True)


if __name__ == "__main__":
    main()
