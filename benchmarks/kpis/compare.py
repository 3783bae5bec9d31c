"""The engine beside tcptrace, tshark, dpkt and a plain record loop, in one run on one machine: CPU seconds and memory;
then many captures of 1 MB downloads through Python: engine, KPIs and Parquet.

    python benchmarks/kpis/compare.py BIG.pcap       3 million packets, see make_capture.py

tshark is asked for the fields of the published pipeline (tumi8/active-tcp-and-quic-measurements); it takes minutes, and
runs once (`--no-tshark` leaves it out), as does dpkt. A tool that is missing is left out with a sentence. Rounds
alternate between the tools, so that a disturbance of the machine meets all of them; medians are printed, memory is the
largest resident set. The small captures are cut out of BIG.pcap.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
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
LOOP, ENGINE, TCPTRACE = "plain record loop", "engine", "tcptrace -l -r"
DPKT_SUM, TSHARK = "dpkt, sum of lengths", "tshark, fields of the published pipeline"
SLOW = {DPKT_SUM, TSHARK}
"""They run once."""
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


def dpkt_python() -> list[str]:
    """A Python that has dpkt, which is not one of our dependencies; empty if there is none."""
    for command in ([sys.executable], ["uv", "run", "--quiet", "--no-project", "--with", "dpkt", "python"]):
        if shutil.which(command[0]):
            probe = subprocess.run([*command, "-c", "import dpkt"], capture_output=True, check=False)
            if probe.returncode == 0:
                return command
    return []


def tools(capture: Path, with_tshark: bool) -> dict[str, list[str]]:
    examples = TARGET / "release" / "examples"
    found = {
        LOOP: [str(examples / "records"), str(capture)],
        ENGINE: [str(examples / "scan"), str(capture)],
        "engine, one CSV row per packet": [str(examples / "scan"), "--csv", str(capture)],
    }
    if shutil.which("tcptrace"):
        found[TCPTRACE] = ["tcptrace", "-l", "-r", str(capture)]
    if python := dpkt_python():
        found[DPKT_SUM] = [*python, "-c", DPKT, str(capture)]
    if with_tshark and shutil.which("tshark"):
        command = ["tshark", "-r", str(capture), "-T", "fields", "-E", "separator=;", "-E", "header=y"]
        found[TSHARK] = [*command, *(part for field in FIELDS for part in ("-e", field))]
    for missing in [name for name in (TCPTRACE, DPKT_SUM, TSHARK) if name not in found]:
        print(f"left out: {missing}", file=sys.stderr)
    return found


def big(capture: Path, rounds: int, with_tshark: bool) -> None:
    build = ["cargo", "build", "--quiet", "--release", "-p", "pcapscan", "--examples"]
    subprocess.run(build, check=True, cwd=REPOSITORY, env=os.environ | {"CARGO_TARGET_DIR": str(TARGET)})
    with capture.open("rb") as stream:
        while stream.read(1 << 20):  # warms the page cache
            pass
    results: dict[str, list[tuple[float, float]]] = {}
    commands = tools(capture, with_tshark)
    for number in range(rounds):
        for name, command in commands.items():
            if number == 0 or name not in SLOW:
                results.setdefault(name, []).append(measure(command))
    middle = {name: statistics.median(cpu for cpu, _ in values) for name, values in results.items()}
    seen = packets(commands[ENGINE])
    print(f"| {capture.name}, {seen} | CPU | range | memory | CPU / engine |\n|---|---|---|---|---|")
    for name, values in results.items():
        cpus = [cpu for cpu, _ in values]
        spread = f"{min(cpus):.3f}-{max(cpus):.3f} s"
        memory = max(memory for _, memory in values)
        print(f"| {name} | {middle[name]:.3f} s | {spread} | {memory:.1f} MiB | {middle[name] / middle[ENGINE]:.2f} |")
    print(f"\nengine / plain loop: {middle[ENGINE] / middle[LOOP]:.2f}, aim at most 2.5")
    for name, aim in ((TCPTRACE, 6), (TSHARK, 400)):
        if name in middle:
            print(f"{name} / engine: {middle[name] / middle[ENGINE]:.2f}, aim at least {aim}")


def packets(engine: list[str]) -> str:
    """The packets of a capture, in words, by the engine's own count."""
    return subprocess.run(engine, capture_output=True, text=True, check=True).stdout.split(",")[0]


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


def small(source: Path, count: int, rounds: int) -> None:
    """Many small captures through Python: engine, KPIs and Parquet; start-up of Python aside."""
    sys.path.insert(0, str(REPOSITORY))
    from analysis.captures.export import row, table_writer
    from analysis.captures.scan import CaptureReader, find_captures, read_many

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cut_out(source, folder, count)
        paths = find_captures(folder)

        def once(out: Path) -> tuple[float, float, int]:
            before, started = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
            rows = 0
            with table_writer(out) as writer:
                for capture in read_many(paths, jobs=2):
                    assert isinstance(capture, CaptureReader)
                    for connection in capture:
                        writer.add(row(capture.path, connection))
                        rows += 1
            elapsed = time.perf_counter() - started
            after = resource.getrusage(resource.RUSAGE_SELF)
            return elapsed, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, rows

        once(folder / "warm.parquet")  # imports, page cache
        results = [once(folder / f"{number}.parquet") for number in range(rounds)]
    elapsed = [result[0] for result in results]
    cpu = statistics.median(result[1] for result in results)
    print(f"\n{count} captures, {results[0][2]} connections, 2 threads; {os.cpu_count()} cores, ", end="")
    print(f"load {os.getloadavg()[0]:.1f}; medians of {rounds} rounds:")
    print(f"{cpu:.2f} s CPU, so {count / cpu:.0f} captures per CPU second, aim 1,000 a second on 2 cores")
    print(f"{count / statistics.median(elapsed):.0f} captures/s by the clock, at best {count / min(elapsed):.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("capture", type=Path)
    parser.add_argument("--count", type=int, default=1000, help="small captures; 0 for none")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-tshark", action="store_true")
    options = parser.parse_args()
    big(options.capture, options.rounds, not options.no_tshark)
    if options.count:
        small(options.capture, options.count, options.rounds)


if __name__ == "__main__":
    main()
