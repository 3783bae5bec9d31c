"""CPU time of `upshift inspect --again` by Dask's workers, as a multiple of that of threads; from disk and from S3.

    python benchmarks/inspect/cluster.py --captures 10000

Three workers with one thread each, on this machine: a cluster is not faster here, and shall not cost much more. Counted
are command, scheduler and workers, from their start to their end; not the S3 server, which is moto's, on loopback.
Tables have to be the same bytes. Ends with 1 where captures on disk take more than 2.5 times the CPU time of threads.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.usage import Used, used
from tests import cluster
from tests.inspected import make_campaign

PACKETS = 1_100
WORKERS = 3
MOST = 2.5


def by_workers(folder: Path, *options: str, **environ: str) -> tuple[Used, float]:
    """What the command took, and the CPU time of scheduler and workers [s]."""
    with tempfile.TemporaryDirectory() as scratch, cluster.dask(Path(scratch), **environ) as dask:
        for _ in range(WORKERS):
            dask.work()
        took = used(*command(folder), "--scheduler", dask.address, *options)
        for process in (*dask.workers, dask.scheduler):
            dask.end(process, signal.SIGTERM)
        return took, dask.cpu_s


def command(folder: Path) -> tuple[str, ...]:
    return str(Path(sys.executable).with_name("upshift")), "inspect", str(folder), "--again"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--captures", type=int, default=10_000)
    parser.add_argument("--s3", action="store_true", help="From S3, too: moto's server takes minutes for 10,000.")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="upshift-cluster-") as name:
        folder = make_campaign(Path(name) / "c", runs=options.captures, packets=PACKETS, alike=True)
        table = folder / "downloads.parquet"
        threads = used(*command(folder))
        expected = table.read_bytes()
        print(f"{options.captures} captures by threads: {threads}")

        def show(what: str, took: Used, beside_s: float) -> float:
            if table.read_bytes() != expected:
                raise SystemExit(f"{what}: other rows than by threads")
            ratio = (took.cpu_s + beside_s) / threads.cpu_s
            print(f"by {WORKERS} workers {what}: {took}, beside it {beside_s:.1f} s of CPU: {ratio:.2f} times threads")
            return ratio

        ratio = show("from disk", *by_workers(folder))
        if options.s3:
            with cluster.s3(Path(name)) as s3:
                os.environ.update(s3.environ)
                show("from S3", *by_workers(folder, "--captures", s3.upload(folder), **s3.environ))
        print(f"load average {os.getloadavg()[0]:.1f}")
        if ratio > MOST:
            raise SystemExit(f"more than {MOST} times the CPU time of threads")


if __name__ == "__main__":
    main()
