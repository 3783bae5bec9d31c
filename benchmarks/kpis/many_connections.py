"""A million connections, half of them a SYN alone, half whole downloads, through `upshift kpis`: memory and time."""

from __future__ import annotations

import argparse
import resource
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

MOST_MB = 500
SYN, ACK, FIN = 0x02, 0x10, 0x11
DOWNLOAD = (
    (True, 0, 0, SYN, 0),
    (False, 0, 1, SYN | ACK, 0),
    (True, 1, 1, ACK, 100),
    (False, 1, 101, ACK, 1400),
    (False, 1401, 101, ACK, 1400),
    (True, 101, 2801, ACK, 0),
    (False, 2801, 101, FIN, 0),
    (True, 101, 2802, FIN, 0),
    (False, 2802, 102, ACK, 0),
)
"""From the client, relative sequence number, relative ACK, flags, payload."""

CONNECTIONS_PER_S = 2_000


def packet(number: int, step: tuple[bool, int, int, int, int], time_s: float) -> bytes:
    """A record of raw IP with timestamps, its payload cut off."""
    from_client, seq, ack, flags, size = step
    client, server = (0xC6120000 + (number >> 15), 1024 + (number & 0x7FFF)), (0xC6130001, 443)
    (source, sport), (target, tport) = (client, server) if from_client else (server, client)
    ticks = int(time_s * 1000) & 0xFFFFFFFF
    head = struct.pack(">BBHHHBBHII", 0x45, 0, 52 + size, number & 0xFFFF, 0, 64, 6, 0, source, target)
    head += struct.pack(">HHIIBBHHH", sport, tport, 1000 + seq, 1000 + ack, 0x80, flags, 1000, 0, 0)
    head += struct.pack(">BBBBII", 1, 1, 8, 10, ticks, ticks - 20)
    return struct.pack("<IIII", int(time_s), int(time_s % 1 * 1e6), len(head), len(head) + size) + head


def records(connections: int) -> Iterator[bytes]:
    """SYNs and downloads in turn; fifty downloads go on at once."""
    pending: list[tuple[float, int, int]] = []
    for number in range(connections):
        now = 1.8e9 + number / CONNECTIONS_PER_S
        yield packet(number, DOWNLOAD[0], now)
        if number % 2:
            pending += [(now + 0.005 * step, number, step) for step in range(1, len(DOWNLOAD))]
        if number % 1000 == 999:
            pending.sort()
            due = [entry for entry in pending if entry[0] <= now]
            pending = pending[len(due) :]
            yield from (packet(which, DOWNLOAD[step], at) for at, which, step in due)
    yield from (packet(which, DOWNLOAD[step], at) for at, which, step in sorted(pending))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=1_000_000)
    wanted = parser.parse_args().connections
    with tempfile.TemporaryDirectory() as folder:
        capture, table = Path(folder, "many.pcap"), Path(folder, "many.parquet")
        with capture.open("wb") as handle:
            handle.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 101))
            handle.writelines(records(wanted))
        started = time.monotonic()
        subprocess.run([sys.executable, "-m", "upshift", "kpis", capture, "-o", table], check=True)
        took_s = time.monotonic() - started
        size_mb = capture.stat().st_size / 1e6
    peak_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e3
    print(f"{wanted} connections, {size_mb:.0f} MB: {peak_mb:.0f} MB at most, {took_s:.0f} s")
    if peak_mb > MOST_MB:
        sys.exit(f"more than {MOST_MB} MB")


if __name__ == "__main__":
    main()
