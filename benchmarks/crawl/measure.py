"""CPU, memory and rate of the crawl on loopback, beside the published design (one Scrapy process per domain).

    python benchmarks/crawl/measure.py --domains 500 3000 --single 8
    python benchmarks/crawl/measure.py --long 100000

`--long` is one crawl of a long list, three requests per domain, with its resident memory along the way.

The servers run in a process of their own; what is printed is the crawl's own CPU time and peak memory. No rate limit is
set, which only a benchmark against oneself may do.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(REPOSITORY), "UPSHIFT_ALLOWED_PREFIXES": "127.0.0.0/8"}
LAUNCH = """
import json, resource, sys, time
from upshift.cli import main
start = time.perf_counter()
try:
    main()
finally:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    facts = {"cpu_s": usage.ru_utime + usage.ru_stime, "rss_mb": usage.ru_maxrss / 1e3}
    print(json.dumps(facts | {"wall_s": time.perf_counter() - start}), file=sys.stderr)
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def world(*options: str) -> Iterator[list[str]]:
    """The servers, for the time of the block; yields what the crawl must be told of them."""
    port, dns_port = free_port(), free_port()
    argv = [sys.executable, str(HERE / "world.py"), str(port), str(dns_port), *options]
    server = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        yield ["--nameserver", "127.0.0.1", "--nameserver-port", str(dns_port), "--start", f"http://{{domain}}:{port}/"]
    finally:
        server.terminate()
        server.wait(10)


def start(folder: Path, count: int, options: list[str], workers: int) -> subprocess.Popen[str]:
    """Starts the crawl of `count` domains into `folder`, which is emptied first."""
    for old in folder.iterdir():
        old.unlink()
    (folder / "list").write_text("".join(f"{n}.bench.example\n" for n in range(count)))
    argv = [sys.executable, "-c", LAUNCH, "crawl", str(folder / "list"), "-o", str(folder / "out.parquet"), "--json"]
    argv += ["--contact", "mailto:bench@localhost", "--rate", "100000", "--per-address", "8"]
    argv += ["--workers", str(workers), *options]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)


def finish(child: subprocess.Popen[str], folder: Path, count: int) -> dict[str, float]:
    """Waits for the crawl; what it used, and what it asked for."""
    said, errors = child.communicate()
    assert child.returncode == 0, errors
    facts: dict[str, float] = json.loads(errors.strip().splitlines()[-1])
    summary = json.loads(said.strip().splitlines()[-1])
    (requests, received) = ask_ledger(folder, "sum(document ->> 'requests'), sum(document ->> 'received_bytes')")
    assert summary["found"] >= 0.99 * count, summary  # a loaded machine lets some time out
    return facts | {"requests": requests, "received_mb": received / 1e6}


def ask_ledger(folder: Path, what: str) -> tuple[int, ...]:
    with closing(sqlite3.connect(folder / "out.parquet.ledger.sqlite")) as ledger:
        return tuple(ledger.execute(f"SELECT {what} FROM domains").fetchone())


def watch(child: subprocess.Popen[str], folder: Path, count: int) -> None:
    """Prints the resident memory at each tenth of the list."""
    tenth = 1
    while child.poll() is None and tenth <= 10:
        time.sleep(0.2)
        try:
            (done,) = ask_ledger(folder, "count(outcome)")
            status = Path(f"/proc/{child.pid}/status").read_text()
        except (sqlite3.OperationalError, FileNotFoundError):  # no table yet
            continue
        if done >= tenth * count // 10 and "VmRSS:" in status:
            resident_mb = int(status.partition("VmRSS:")[2].split()[0]) * 1024 / 1e6
            print(f"  {done:>9,} domains done: resident {resident_mb:.0f} MB", flush=True)
            tenth += 1


def report(kind: str, count: int, facts: dict[str, float]) -> None:
    print(
        f"{kind:<18} {count:>6} domains: {facts['requests'] / facts['cpu_s']:6.1f} requests per CPU s, "
        f"{1e3 * facts['cpu_s'] / count:6.1f} CPU ms per domain, "
        f"{facts['requests'] / facts['wall_s']:6.1f} requests/s, "
        f"peak {facts['rss_mb']:.0f} MB, {facts['received_mb']:.0f} MB received",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--domains", type=int, nargs="+", default=[500, 3000])
    parser.add_argument("--long", type=int, metavar="DOMAINS", help="one crawl of a long list instead")
    parser.add_argument("--workers", type=int, default=100)
    parser.add_argument("--single", type=int, default=5, help="domains for one process each")
    arguments = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    with tempfile.TemporaryDirectory() as name:
        if arguments.long:
            long_crawl(Path(name), arguments.long, arguments.workers)
        else:
            short_crawls(Path(name), arguments.domains, arguments.workers, arguments.single)


def long_crawl(folder: Path, count: int, workers: int) -> None:
    with world("--one-file") as options:
        child = start(folder, count, options, workers)
        watch(child, folder, count)
        report("one file each", count, finish(child, folder, count))


def short_crawls(folder: Path, counts: list[int], workers: int, single: int) -> None:
    with world() as options:
        for count in counts:
            report("HEAD only", count, finish(start(folder, count, options, workers), folder, count))
        if single:
            begin, cpu_s = time.perf_counter(), 0.0
            for _ in range(single):
                cpu_s += finish(start(folder, 1, options, 1), folder, 1)["cpu_s"]
            print(
                f"one process each   {single:>6} domains: {1e3 * cpu_s / single:6.1f} CPU ms per domain, "
                f"{(time.perf_counter() - begin) / single:.1f} s each"
            )
    with world("--unsized") as options:
        for count in counts:
            report("GET stopped early", count, finish(start(folder, count, options, workers), folder, count))


if __name__ == "__main__":
    main()
