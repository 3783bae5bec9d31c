"""The engine beside tcptrace, tshark, dpkt and a bare record walk, in one run on one machine: CPU seconds and memory.

    python benchmarks/kpis/compare.py BIG.pcap                      3 million packets, see make_capture.py
    python benchmarks/kpis/compare.py --small BIG.pcap --count 1000  captures of 1 MB downloads, cut out of BIG.pcap

tshark is asked for the fields of the published pipeline (tumi8/active-tcp-and-quic-measurements); it takes minutes, and
runs once (`--no-tshark` leaves it out). dpkt runs where Python has it. Rounds alternate between the tools, so that a
disturbance of the machine meets all of them; medians are printed, memory is the largest resident set.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", Path.home() / ".cache/upshift/cargo-target"))
FIELDS = [
    "_ws.col.No.",
    "frame.time_epoch",
    "_ws.col.Protocol",
    "ip.src",
    "ip.dst",
    "ipv6.src",
    "ipv6.dst",
    "ip.len",
    "ipv6.plen",
    "tcp.stream",
    "tcp.srcport",
    "tcp.dstport",
    "tcp.seq",
    "tcp.len",
    "tcp.flags.syn",
    "tcp.flags.cwr",
    "tcp.flags.ece",
    "tcp.flags.ack",
    "tcp.flags.reset",
    "tcp.flags.fin",
    "tcp.flags",
    "tcp.analysis.acks_frame",
    "tcp.analysis.initial_rtt",
    "tcp.analysis.ack_rtt",
    "tcp.options.wscale.shift",
    "tcp.options.tfo.cookie",
    "tcp.options.tfo.request",
    "tcp.options.sack",
    "tcp.options.sack.count",
    "tcp.options.sack_perm",
    "tcp.options.sack_le",
    "tcp.options.sack_re",
    "tcp.options.timestamp.tsecr",
    "tcp.options.timestamp.tsval",
    "tcp.analysis.retransmission",
    "tcp.analysis.spurious_retransmission",
    "tcp.analysis.fast_retransmission",
    "tcp.analysis.rto",
    "tcp.analysis.rto_frame",
]
DPKT = """
import sys, dpkt
total = 0
for _, data in dpkt.pcap.Reader(open(sys.argv[1], "rb")):
    ip = dpkt.ethernet.Ethernet(data).data
    if isinstance(ip, dpkt.ip.IP):
        total += ip.len
print(total)
"""


def measure(command: list[str]) -> tuple[float, float]:
    """CPU seconds and the largest resident set in MiB of a command; this Python's own, some 15 MiB, is its floor."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        raise SystemExit(f"{command[0]} failed")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def tools(capture: Path) -> dict[str, list[str]]:
    examples = TARGET / "release" / "examples"
    found = {
        "bare record walk": [str(examples / "walk"), str(capture)],
        "engine": [str(examples / "scan"), str(capture)],
        "engine, one CSV row per packet": [str(examples / "scan"), "--csv", str(capture)],
        "tcptrace -l -r": ["tcptrace", "-l", "-r", str(capture)],
    }
    probe = subprocess.run([sys.executable, "-c", "import dpkt"], capture_output=True, check=False)
    if probe.returncode == 0:
        found["dpkt, sum of lengths"] = [sys.executable, "-c", DPKT, str(capture)]
    return found


def big(capture: Path, rounds: int, with_tshark: bool) -> None:
    build = ["cargo", "build", "--quiet", "--release", "-p", "pcapscan", "--examples"]
    subprocess.run(build, check=True, cwd=REPOSITORY, env=os.environ | {"CARGO_TARGET_DIR": str(TARGET)})
    with capture.open("rb") as stream:
        while stream.read(1 << 20):  # warms the page cache
            pass
    results: dict[str, list[tuple[float, float]]] = {}
    for number in range(rounds):
        for name, command in tools(capture).items():
            if not (name.startswith("dpkt") and number):
                results.setdefault(name, []).append(measure(command))
    if with_tshark:
        command = ["tshark", "-r", str(capture), "-T", "fields", "-E", "separator=;", "-E", "header=y"]
        command += [part for field in FIELDS for part in ("-e", field)]
        results["tshark, fields of the published pipeline"] = [measure(command)]
    ours = statistics.median(cpu for cpu, _ in results["engine"])
    print(f"| {capture.name} | CPU | range | memory | CPU / engine |\n|---|---|---|---|---|")
    for name, values in results.items():
        cpus = [cpu for cpu, _ in values]
        middle, memory = statistics.median(cpus), max(memory for _, memory in values)
        spread = f"{min(cpus):.3f}-{max(cpus):.3f} s"
        print(f"| {name} | {middle:.3f} s | {spread} | {memory:.1f} MiB | {middle / ours:.2f} |")
    walk = statistics.median(cpu for cpu, _ in results["bare record walk"])
    print(f"\nengine / bare walk: {ours / walk:.2f}")


def cut_out(source: Path, folder: Path, count: int) -> None:
    """Captures of about 1 MB downloads (1,100 packets): pieces of a big capture, each with its own file header."""
    with source.open("rb") as stream:
        header = stream.read(24)
        for number in range(count):
            parts = [header]
            for _ in range(1100):
                record = stream.read(16)
                if len(record) < 16:
                    raise SystemExit(f"{source} is too short for {count} captures")
                parts.append(record + stream.read(struct.unpack("<I", record[8:12])[0]))
            (folder / f"{number:05}.pcap").write_bytes(b"".join(parts))


def small(source: Path, count: int) -> None:
    """Many small captures through Python: engine, KPIs and Parquet; start-up of Python aside."""
    sys.path.insert(0, str(REPOSITORY))
    from analysis.captures import find_captures, row, scan_many, table_writer

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cut_out(source, folder, count)
        paths = find_captures(folder)
        list(scan_many(paths[:20]))  # imports
        with table_writer(folder / "warm.parquet"):
            pass
        before, started = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        with table_writer(folder / "kpis.parquet") as writer:
            for capture in scan_many(paths, jobs=2):
                assert not isinstance(capture, Exception)
                writer.add([row(capture.path, connection) for connection in capture.connections])
        elapsed = time.perf_counter() - started
        after = resource.getrusage(resource.RUSAGE_SELF)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        print(f"{count} captures, {writer.rows} connections: {elapsed:.2f} s wall, {cpu:.2f} s CPU")
        print(f"{count / elapsed:.0f} captures/s by the clock, {2 * count / cpu:.0f} captures/s by CPU of 2 cores")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("capture", type=Path)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-tshark", action="store_true")
    options = parser.parse_args()
    if options.small:
        small(options.capture, options.count)
    else:
        big(options.capture, options.rounds, not options.no_tshark)


if __name__ == "__main__":
    main()
