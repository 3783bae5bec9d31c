#!/usr/bin/env python3
"""Measure a pathem binary between two namespaces: RTT error, throughput, lateness.

Usage: measure.py PATHEM [--seconds S] (as root; needs ip). Traffic stays between the two namespaces, inside
198.18.0.0/15. Prints one JSON document; times in ms, rates in Mbit/s of IP packets.
"""

import argparse
import contextlib
import ctypes
import json
import os
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

ADDRESSES = {"a": "198.18.1.1", "b": "198.18.2.2"}
CLONE_NEWNET = 0x40000000
LIBC = ctypes.CDLL(None, use_errno=True)
PATIENCE_S = 30
T = TypeVar("T")


def die_with_parent() -> None:
    """Have the kernel kill the child when this process ends."""
    LIBC.prctl(1, signal.SIGKILL)


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


def inside(netns: str, work: Callable[[], T]) -> T:
    """Run a function in a thread that has entered a namespace."""
    answers: list[T] = []

    def enter() -> None:
        with Path("/run/netns", netns).open() as file:
            if LIBC.setns(file.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")
        answers.append(work())

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    return answers[0]


class Peer:
    """The control connection."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(PATIENCE_S)
        self.socket.connect(str(path))
        self.file = self.socket.makefile("rw")

    def ask(self, **request: object) -> dict:
        self.file.write(json.dumps(request) + "\n")
        self.file.flush()
        return json.loads(self.file.readline())


@contextlib.contextmanager
def lab(pathem: list[str]) -> Iterator[tuple[dict[str, str], Peer]]:
    names = {end: f"upshift-measure-{os.getpid()}-{end}" for end in "ab"}
    made, process = [], None
    with tempfile.TemporaryDirectory() as folder:
        try:
            for name in names.values():
                ip("netns", "add", name)
                made.append(name)
            nodes = [
                {"name": end, "netns": f"/run/netns/{name}", "device": "tun0", "addresses": [ADDRESSES[end]]}
                for end, name in names.items()
            ]
            pairs = [{"from": x, "to": y, "delay_us": 0} for x, y in ("ab", "ba")]
            config, control = Path(folder, "net.json"), Path(folder, "control")
            config.write_text(json.dumps({"schema": 1, "nodes": nodes, "pairs": pairs}))
            command = [*pathem, "--config", str(config), "--control", str(control), "--ready-fd", "1"]
            # No thread exists yet, so preexec_fn is safe.
            process = subprocess.Popen(command, stdout=subprocess.PIPE, preexec_fn=die_with_parent)  # noqa: PLW1509
            if process.stdout is None or process.stdout.readline() != b"ready\n":
                raise SystemExit("pathem did not start")
            for end, name in names.items():
                ip("-n", name, "address", "add", f"{ADDRESSES[end]}/32", "dev", "tun0")
                ip("-n", name, "route", "add", "198.18.0.0/15", "dev", "tun0", "congctl", "cubic")
            yield names, Peer(control)
        finally:
            if process:
                process.terminate()
                process.wait()
            for name in made:
                ip("netns", "del", name)


def set_both(peer: Peer, **fields: object) -> None:
    for x, y in ("ab", "ba"):
        answer = peer.ask(op="set_pair", **{"from": x, "to": y, **fields})
        if "error" in answer:
            raise SystemExit(answer["error"])


def checksum(data: bytes) -> int:
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total & 0xFFFF) + (total >> 16)
    return ~(total + (total >> 16)) & 0xFFFF


def pings(count: int, gap_s: float) -> list[float]:
    """RTTs of ICMP echoes in ms. The other kernel answers, so no program of ours is in the way."""
    rtts = []
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as raw:
        raw.settimeout(2)
        for number in range(count):
            body = struct.pack("!HH", os.getpid() & 0xFFFF, number) + bytes(56)
            message = struct.pack("!BBH", 8, 0, checksum(b"\x08\x00\x00\x00" + body)) + body
            start = time.monotonic_ns()
            raw.sendto(message, (ADDRESSES["b"], 0))
            while raw.recv(2000)[24:28] != body[:4]:
                pass
            rtts.append((time.monotonic_ns() - start) / 1e6)
            time.sleep(gap_s)
    return rtts


def download(names: dict[str, str], seconds: float) -> None:
    """One TCP connection from b to a, for this long."""

    def serve() -> socket.socket:
        listener = socket.create_server((ADDRESSES["b"], 5001))
        listener.settimeout(PATIENCE_S)
        return listener

    listener = inside(names["b"], serve)
    client = inside(names["a"], lambda: socket.create_connection((ADDRESSES["b"], 5001), PATIENCE_S))
    connection, _ = listener.accept()
    end = time.monotonic() + seconds

    def send() -> None:
        block = bytes(1 << 18)
        connection.settimeout(PATIENCE_S)
        with contextlib.suppress(OSError), connection:
            while time.monotonic() < end:
                connection.sendall(block)

    sender = threading.Thread(target=send)
    sender.start()
    while client.recv(1 << 18):
        pass
    sender.join()
    client.close()
    listener.close()


def pair(snapshot: dict, start: str) -> dict:
    return next(entry for entry in snapshot["pairs"] if entry["from"] == start)


def lateness_ms(before: dict, after: dict, edges_us: list[int]) -> dict[str, float]:
    """Upper edges of the buckets that hold the median and the 99th percentile."""
    counts = [y - x for x, y in zip(before["lateness"]["buckets"], after["lateness"]["buckets"], strict=True)]
    uppers = [*edges_us[1:], float("inf")]
    answer, total = {}, sum(counts)
    for name, share in (("p50_below", 0.5), ("p99_below", 0.99)):
        running = 0
        for count, upper in zip(counts, uppers, strict=True):
            running += count
            if running >= share * total:
                answer[name] = upper / 1000
                break
    return answer


def throughput(names: dict[str, str], peer: Peer, rate: int, seconds: float) -> dict:
    set_both(peer, delay_us=10000, rate_bps=rate, queue_bytes=max(60_000, rate // 8 // 20))
    thread = threading.Thread(target=download, args=(names, seconds))
    thread.start()
    time.sleep(seconds * 0.4)
    before = peer.ask(op="snapshot")
    time.sleep(seconds * 0.5)
    after = peer.ask(op="snapshot")
    thread.join()
    old, new = pair(before, "b"), pair(after, "b")
    elapsed = (after["monotonic_ns"] - before["monotonic_ns"]) / 1e9
    return {
        "programmed": rate / 1e6,
        "measured": round((new["delivered_bytes"] - old["delivered_bytes"]) * 8 / elapsed / 1e6, 2),
        "tail_drops": new["tail"] - old["tail"],
        "unprogrammed_drops": sum(node["device_counters"]["tx_dropped"] for node in after["nodes"]),
        "cpu_percent": round((after["global"]["cpu_ns"] - before["global"]["cpu_ns"]) / elapsed / 1e7, 1),
        "lateness_ms": lateness_ms(old, new, after["lateness_edges_us"]),
    }


def steal_and_total() -> tuple[int, int]:
    ticks = [int(value) for value in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    return ticks[7], sum(ticks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pathem", help="the binary")
    parser.add_argument("--no-realtime", action="store_true", help="pass this option on to pathem")
    parser.add_argument("--seconds", type=float, default=4, help="length of each download, s (default 4)")
    arguments = parser.parse_args()
    result: dict = {"load_average": os.getloadavg()[0], "rtt": [], "throughput": []}
    steal, total = steal_and_total()
    options = ["--no-realtime"] if arguments.no_realtime else []
    with lab([arguments.pathem, *options]) as (names, peer):
        for delay_us in (500, 5_000, 25_000, 100_000):
            set_both(peer, delay_us=delay_us)
            before = peer.ask(op="snapshot")
            errors = sorted(rtt - delay_us / 500 for rtt in inside(names["a"], lambda: pings(200, 0.005)))
            after = peer.ask(op="snapshot")
            late = lateness_ms(pair(before, "a"), pair(after, "a"), after["lateness_edges_us"])
            result["rtt"].append(
                {
                    "one_way_ms": delay_us / 1000,
                    "error_p50": round(statistics.median(errors), 3),
                    "error_mean": round(statistics.mean(errors), 3),
                    "error_p99": round(errors[197], 3),
                    "error_min": round(errors[0], 3),
                    "lateness_ms": late,
                }
            )
        for rate in (4_000_000, 26_000_000, 100_000_000, 300_000_000, 1_000_000_000):
            result["throughput"].append(throughput(names, peer, rate, arguments.seconds))
        result["global"] = peer.ask(op="snapshot")["global"]
    now_steal, now_total = steal_and_total()
    result["steal_percent"] = round(100 * (now_steal - steal) / max(1, now_total - total), 1)
    json.dump(result, sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
