"""CPU, memory and rate of the crawl on loopback, beside the published design (one Scrapy process per domain).

    python benchmarks/crawl/measure.py --domains 500 3000 --single 8

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


def crawl(folder: Path, domains: list[str], port: int, dns_port: int, workers: int) -> dict[str, float]:
    source, out = folder / "list", folder / "out.parquet"
    for old in folder.iterdir():
        old.unlink()
    source.write_text("\n".join(domains))
    argv = [sys.executable, "-c", LAUNCH, "crawl", str(source), "-o", str(out), "--contact", "mailto:bench@localhost"]
    argv += ["--nameserver", "127.0.0.1", "--nameserver-port", str(dns_port), "--start", f"http://{{domain}}:{port}/"]
    argv += ["--rate", "100000", "--per-address", "8", "--workers", str(workers), "--json"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, env=ENVIRONMENT)
    facts: dict[str, float] = json.loads(done.stderr.strip().splitlines()[-1])
    summary = json.loads(done.stdout.strip().splitlines()[-1])
    with sqlite3.connect(folder / "out.parquet.ledger.sqlite") as ledger:
        (requests, received) = ledger.execute("SELECT sum(requests), sum(received_bytes) FROM domains").fetchone()
    assert summary["found"] >= 0.99 * len(domains), summary  # a loaded machine lets some time out
    return facts | {"requests": requests, "received_mb": received / 1e6}


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
    parser.add_argument("--workers", type=int, default=100)
    parser.add_argument("--single", type=int, default=5, help="domains for one process each")
    arguments = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    with tempfile.TemporaryDirectory() as name:
        for unsized in (False, True):
            port, dns_port = free_port(), free_port()
            server = subprocess.Popen(
                [sys.executable, HERE / "world.py", str(port), str(dns_port), *(["--unsized"] if unsized else [])],
                stdout=subprocess.PIPE,
                text=True,
            )
            try:
                assert server.stdout is not None and server.stdout.readline() == "ready\n"
                kind = "GET stopped early" if unsized else "HEAD only"
                for count in arguments.domains:
                    facts = crawl(Path(name), [f"{n}.bench.example" for n in range(count)], port, dns_port,
                                  arguments.workers)  # fmt: skip
                    report(kind, count, facts)
                if not unsized and arguments.single:
                    start, cpu = time.perf_counter(), 0.0
                    for n in range(arguments.single):
                        cpu += crawl(Path(name), [f"{n}.bench.example"], port, dns_port, 1)["cpu_s"]
                    print(f"one process each   {arguments.single:>6} domains: "
                          f"{1e3 * cpu / arguments.single:6.1f} CPU ms per domain, "
                          f"{(time.perf_counter() - start) / arguments.single:.1f} s each")  # fmt: skip
            finally:
                server.terminate()
                server.wait(10)


if __name__ == "__main__":
    main()
