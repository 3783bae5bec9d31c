"""Does the path emulator lose packets that it was not programmed to drop? Ten million packets over one path of a lab.

    python benchmarks/lab/unprogrammed_drops.py [--packets N] [--rate-mbit R]

UDP packets of 1,500 bytes at 1.2 times the path's rate, so that the queue is full all the time; what the full queue
drops is programmed. Overflow, write errors and drops of the TUN devices' own queues are not. Exit code 0: none.
"""

from __future__ import annotations

import argparse
import sys
import time

from vantage.lab.calibrate import probe, unprogrammed
from vantage.lab.lab import open_lab

SLICE_S = 20.0
LONGEST_S = 600.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packets", type=int, default=10_000_000)
    parser.add_argument("--rate-mbit", type=float, default=600.0, help="rate of the path [Mbit/s]")
    wanted = parser.parse_args()
    with open_lab("small") as lab:
        emulator, server = lab.emulator(), lab.topology.server[0]
        vantage = lab.vantage_points[0]
        emulator.ask(
            "set_pair",
            **{"from": server.name, "to": vantage, "delay_us": 2000, "rate_bps": round(wanted.rate_mbit * 1e6)},
            queue_bytes=5_000_000,
            loss=None,
            ecn_threshold_bytes=None,
        )
        sender, address = lab.place(server.name), lab.plan.addresses[vantage].ipv4
        before = after = emulator.ask("snapshot")
        started = time.monotonic()
        carried = 0
        while carried < wanted.packets and time.monotonic() - started < LONGEST_S:
            rate = str(1.2 * wanted.rate_mbit)
            probe(sender, "blast", address, "9", "--rate-mbit", rate, "--seconds", str(SLICE_S), "--burst", "16")
            after = emulator.ask("snapshot")
            carried = sum(
                n["in_packets"] - o["in_packets"] for o, n in zip(before["pairs"], after["pairs"], strict=True)
            )
            print(f"{carried} packets after {time.monotonic() - started:.0f} s", flush=True)
        verdict = unprogrammed(before, after)
        tail = sum(n["tail"] - o["tail"] for o, n in zip(before["pairs"], after["pairs"], strict=True))
        print(f"unprogrammed drops: {verdict.measured}; programmed (full queue): {tail}")
        return 0 if verdict.good and carried >= wanted.packets else 1


if __name__ == "__main__":
    sys.exit(main())
