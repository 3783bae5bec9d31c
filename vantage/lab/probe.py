"""Small measuring programs for nodes of the lab. Standard library only; each prints one JSON document.

    probe.py ping ADDRESS --count N --interval-ms N --wait-s S
                                                          round-trip times by ICMP echo [ms]
    probe.py blast ADDRESS PORT --rate-mbit R --seconds S --burst N [--count N]
                                                          numbered UDP packets of 1500 bytes (with IP header)
    probe.py count PORT --windows N --device DEV          bytes received per one-second window, and steal
    probe.py collect PORT --idle-s S                      sequence numbers received

Only addresses of the lab (or loopback) are accepted; all loops are bounded.
"""

from __future__ import annotations

import argparse
import contextlib
import ipaddress
import json
import os
import select
import socket
import struct
import sys
import time
from pathlib import Path

ALLOWED = [ipaddress.ip_network(text) for text in ("198.18.0.0/15", "fd00:198:18::/48", "127.0.0.0/8", "::1/128")]
PACKET_BYTES = 1500
HEADER_BYTES = 28
SO_TIMESTAMPING = 37
TIMESTAMPS = 1 << 1 | 1 << 3 | 1 << 4 | 1 << 11
"""linux/net_tstamp.h: TX_SOFTWARE, RX_SOFTWARE, SOFTWARE, OPT_TSONLY (no copy of the packet with the time stamp)."""

UDP_SEGMENT = 103
LONGEST_S = 120.0
FIRST_PORT = 40000
READY = "ready\n"


def check(address: str) -> str:
    """Returns the address; ends the program if it is not in the lab."""
    ip = ipaddress.ip_address(address)
    if not any(ip.version == network.version and ip in network for network in ALLOWED):
        raise SystemExit(f"{address} is not an address of the lab")
    return address


def ping(address: str, count: int, interval_s: float, wait_s: float) -> dict[str, object]:
    """Round-trip times between the kernel's own time stamps, so that system calls and wake-ups do not count."""
    times: list[float] = []
    answered = 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP) as echo:
        echo.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPING, TIMESTAMPS)
        echo.settimeout(wait_s)
        echo.connect((check(address), 0))
        for number in range(count):
            packet = struct.pack("!BBHHH", 8, 0, 0, 0, number) + bytes(24)  # the kernel fills in sum and identifier
            echo.send(packet)
            with contextlib.suppress(TimeoutError):
                _, left = receive(echo, socket.MSG_ERRQUEUE)
                answer, came = receive(echo)
                if struct.unpack("!BBHHH", answer[:8])[4] == number:
                    answered += 1
                    # The kernel begins to stamp in the background: the first packets may have none.
                    if left is not None and came is not None:
                        times.append((came - left) / 1e6)
            time.sleep(interval_s)
    return {"rtt_ms": times, "sent": count, "answered": answered}


def receive(echo: socket.socket, flags: int = 0) -> tuple[bytes, int | None]:
    """A received packet, or with MSG_ERRQUEUE a report of a sent one, and the kernel's time stamp [ns], if any."""
    data, ancillary, _, _ = echo.recvmsg(2048, 512, flags)
    stamps = [value for level, kind, value in ancillary if (level, kind) == (socket.SOL_SOCKET, SO_TIMESTAMPING)]
    if not stamps:
        return data, None
    seconds, nanoseconds = struct.unpack("@ll", stamps[0][:16])
    return data, seconds * 10**9 + nanoseconds


def blast(address: str, port: int, rate_mbit: float, seconds: float, burst: int, count: int) -> dict[str, object]:
    """Sends at this rate of IP bytes, in bursts of some packets, until the time or the number is reached."""
    size = PACKET_BYTES - HEADER_BYTES
    gap_ns = burst * PACKET_BYTES * 8 * 1000 / rate_mbit
    sent = 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
        out.bind(("", FIRST_PORT))
        out.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_000_000)
        out.connect((check(address), port))
        whole = can_segment(out, size)
        start = time.monotonic_ns()
        end = start + int(min(seconds, LONGEST_S) * 1e9)
        due = float(start)
        while sent < count and (now := time.monotonic_ns()) < end:
            if now < due:
                time.sleep((due - now) / 1e9)
                continue
            # After a pause of the host, do not send the whole backlog at once.
            due = max(due, now - 20e6) + gap_ns
            numbers = range(sent, sent + min(burst, count - sent))
            packets = [struct.pack("!I", number).ljust(size, b"\0") for number in numbers]
            try:
                for payload in [b"".join(packets)] if whole else packets:
                    out.send(payload)
            except ConnectionRefusedError:
                continue  # the receiver has closed; the remaining time is short
            except OSError:
                if not whole:
                    raise
                # Some kernels segment only for devices that compute checksums (EIO otherwise).
                out.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, 0)
                whole = False
                continue
            sent += len(numbers)
        took = (time.monotonic_ns() - start) / 1e9
    return {"sent": sent, "seconds": took, "rate_mbit": sent * PACKET_BYTES * 8 / took / 1e6}


def can_segment(out: socket.socket, size: int) -> bool:
    """Whether the kernel segments one send into packets of this size (udp(7), UDP_SEGMENT), which saves CPU time."""
    try:
        out.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, size)
    except OSError:
        with contextlib.suppress(OSError):
            out.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, 0)
        return False
    return True


def count_windows(port: int, windows: int, device: str) -> dict[str, object]:
    """Bytes that the device received in windows of one second, and the shares of CPU time that were stolen and idle.

    The socket only prevents ICMP port unreachable; it need not be read.
    """
    shares = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sink:
        sink.bind(("", port))
        announce()
        before = reading(device)
        for _ in range(windows):
            time.sleep(1.0)
            after = reading(device)
            ticks = after[3] - before[3]
            shares.append(
                {
                    "mbit": (after[1] - before[1]) * 8 / (after[0] - before[0]) * 1e3,
                    "steal": (after[2] - before[2]) / ticks if ticks else 0.0,
                    "idle": (after[4] - before[4]) / ticks if ticks else 1.0,
                }
            )
            before = after
    return {"windows": shares}


def reading(device: str) -> tuple[int, int, int, int, int]:
    """Time [ns], received bytes; stolen, all and idle CPU ticks (proc(5), /proc/stat)."""
    fields = [int(field) for field in Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]]
    table = Path("/proc/thread-self/net/dev").read_text(encoding="ascii")
    now = time.monotonic_ns()
    (line,) = [line for line in table.splitlines() if line.strip().startswith(f"{device}:")]
    return now, int(line.partition(":")[2].split()[0]), fields[7], sum(fields), fields[3] + fields[4]


def collect(port: int, idle_s: float) -> dict[str, object]:
    """Sequence numbers of the packets received until none arrives for `idle_s`."""
    numbers: list[int] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sink:
        sink.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_000_000)
        sink.bind(("", port))
        announce()
        deadline = time.monotonic() + LONGEST_S
        while time.monotonic() < deadline and select.select([sink], [], [], idle_s if numbers else 10.0)[0]:
            numbers.append(struct.unpack_from("!I", sink.recv(2048))[0])
    return {"numbers": numbers}


def announce() -> None:
    """Reports that packets can be received now."""
    sys.stdout.write(READY)
    sys.stdout.flush()


def main() -> None:
    """Runs one of the programs."""
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("ping")
    one.add_argument("address")
    one.add_argument("--count", type=int, default=20)
    one.add_argument("--interval-ms", type=float, default=20.0)
    one.add_argument("--wait-s", type=float, default=2.0)
    one = commands.add_parser("blast")
    one.add_argument("address")
    one.add_argument("port", type=int)
    one.add_argument("--rate-mbit", type=float, required=True)
    one.add_argument("--seconds", type=float, default=10.0)
    one.add_argument("--burst", type=int, default=1)
    one.add_argument("--count", type=int, default=10**9)
    one = commands.add_parser("count")
    one.add_argument("port", type=int)
    one.add_argument("--windows", type=int, default=5)
    one.add_argument("--device", default="tun0")
    one = commands.add_parser("collect")
    one.add_argument("port", type=int)
    one.add_argument("--idle-s", type=float, default=1.0)
    options = parser.parse_args()
    if options.command == "ping":
        answer = ping(options.address, min(options.count, 10_000), options.interval_ms / 1000, options.wait_s)
    elif options.command == "blast":
        answer = blast(options.address, options.port, options.rate_mbit, options.seconds, options.burst, options.count)
    elif options.command == "count":
        answer = count_windows(options.port, min(options.windows, 60), options.device)
    else:
        answer = collect(options.port, options.idle_s)
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
