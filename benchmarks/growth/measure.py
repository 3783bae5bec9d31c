"""How CPU time and memory of the commands that read or ask much grow: three sizes each, as a table and as a drawing.

    python benchmarks/growth/measure.py [--scale 0.1] [--out FOLDER]

Inputs are those of the other benchmarks: generated campaigns, linked captures, a capture of SYNs and short downloads,
servers on loopback, a listener in a namespace of its own (that part needs root, and is left out without). CPU time is
that of the command with its children; memory is the largest resident set of one process.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.crawl import measure as crawling
from benchmarks.kpis.many_connections import records
from benchmarks.survey import measure as surveying
from benchmarks.tables.make_campaign import make
from benchmarks.usage import used_alone
from core.pictures import COLOURS, GRID, canvas
from core.system.process import PARENT_DEATH
from tests.inspected import make_campaign

UPSHIFT = str(Path(sys.executable).with_name("upshift"))
STYLE = {"axes.grid": True, "grid.color": GRID, "grid.linewidth": 0.5}


@dataclass(frozen=True)
class Measured:
    """One command at one size."""

    name: str
    size: int
    unit: str
    per: int
    wall_s: float
    cpu_s: float
    peak_mb: float


Commands = dict[str, list[str]]
"""Name -> command line."""


@contextmanager
def campaign(folder: Path, rows: int) -> Iterator[Commands]:
    make(folder / "c", rows=rows)
    yield {name: [UPSHIFT, name, str(folder / "c")] for name in ("tables", "report")}


@contextmanager
def captures(folder: Path, count: int) -> Iterator[Commands]:
    make_campaign(folder / "c", runs=count, packets=1_100, alike=True)
    yield {"inspect": [UPSHIFT, "inspect", str(folder / "c")]}


@contextmanager
def connections(folder: Path, count: int) -> Iterator[Commands]:
    capture = folder / "many.pcap"
    with capture.open("wb") as handle:
        handle.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 101))
        handle.writelines(records(count))
    yield {"kpis": [UPSHIFT, "kpis", str(capture), "-o", str(folder / "many.parquet")]}


@contextmanager
def sites(folder: Path, count: int) -> Iterator[Commands]:
    (folder / "list").write_text("".join(f"{n}.bench.example\n" for n in range(count)))
    os.environ["UPSHIFT_ALLOWED_PREFIXES"] = "127.0.0.0/8"
    with crawling.world() as options:
        argv = [UPSHIFT, "crawl", str(folder / "list"), "-o", str(folder / "out.parquet"), "--rate", "100000"]
        argv += ["--contact", "mailto:bench@localhost", "--per-address", "8", "--workers", "100", *options]
        yield {"crawl": argv}


@contextmanager
def hosts(folder: Path, count: int) -> Iterator[Commands]:
    os.environ["UPSHIFT_ALLOWED_PREFIXES"] = surveying.PREFIXES
    world = surveying.World(folder, count)
    try:
        argv = ["/usr/bin/env", *world.client, *PARENT_DEATH, UPSHIFT, "survey", "options", str(world.list)]
        argv += ["-o", str(folder / "out.parquet"), "--isolation", "here", "--nameserver", surveying.SERVER]
        yield {"survey": [*argv, "--rate", "200000", "--probers", "1"]}
    finally:
        world.close()


@dataclass(frozen=True)
class Input:
    """What some commands read or ask, of any size."""

    make: Callable[[Path, int], AbstractContextManager[Commands]]
    per: int
    """What costs are printed for."""
    unit: str
    sizes: tuple[int, int, int]


INPUTS = (
    Input(campaign, 1_000_000, "downloads", (180_000, 1_080_000, 5_040_000)),
    Input(captures, 1_000, "captures", (250, 1_000, 4_000)),
    Input(connections, 100_000, "connections", (20_000, 100_000, 500_000)),
    Input(sites, 1_000, "domains", (200, 800, 3_200)),
    Input(hosts, 10_000, "hosts", (2_500, 10_000, 40_000)),
)


def each_further(members: Sequence[Measured]) -> str:
    """CPU time and memory for each further `per`: the slope between the two largest."""
    small, large = members[-2:]
    more = (large.size - small.size) / large.per
    cpu_s, peak_mb = (large.cpu_s - small.cpu_s) / more, (large.peak_mb - small.peak_mb) / more
    return f"{large.name}: {cpu_s:.2f} s of CPU and {peak_mb:.0f} MB for each further {large.per:,} {large.unit}"


def draw(lines: Mapping[str, Sequence[Measured]], path: Path) -> None:
    """CPU time and memory against size, as shares of the largest: straight where growth is linear."""
    kind = path.suffix.removeprefix(".")
    with canvas(kind, size=(10, 4.4), style=STYLE) as (drawn, pictures):
        axes = drawn.subplots(1, 2)
        for colour, (name, members) in zip(COLOURS, lines.items(), strict=False):
            sizes, largest = [one.size / members[-1].size for one in members], members[-1]
            label = f"{name}: {largest.size:,} {largest.unit}, {largest.cpu_s:.0f} s"
            axes[0].plot(sizes, [one.cpu_s / largest.cpu_s for one in members], "o-", color=colour, label=label)
            axes[1].plot(sizes, [one.peak_mb / 1e3 for one in members], "o-", color=colour)
        axes[0].set(ylabel="CPU time, as a share of the largest's", ylim=(0, None))
        axes[1].set(ylabel="peak memory [GB]", ylim=(0, None))
        for axis in axes:
            axis.set(xlabel="size, as a share of the largest", xlim=(0, None))
        drawn.legend(loc="outside lower center", ncols=3)
    path.write_bytes(pictures[kind])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="times all sizes")
    parser.add_argument("--out", type=Path, default=Path("growth"), help="folder of growth.json and growth.svg")
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    options.out.mkdir(parents=True, exist_ok=True)
    found: list[Measured] = []
    for kind in INPUTS:
        if kind.make is hosts and os.geteuid() != 0:
            print("survey: left out, as its namespaces need root")
            continue
        for size in (max(round(size * options.scale), 1) for size in kind.sizes):
            with tempfile.TemporaryDirectory(prefix="upshift-growth-") as folder, kind.make(Path(folder), size) as argv:
                for name, command in argv.items():
                    one = used_alone(*command)
                    found.append(Measured(name, size, kind.unit, kind.per, one.wall_s, one.cpu_s, one.peak_mb))
                    print(f"{name:8} {size:>9,} {kind.unit}: {one}, load {os.getloadavg()[0]:.1f}", flush=True)
    lines = {name: [one for one in found if one.name == name] for name in dict.fromkeys(one.name for one in found)}
    for members in lines.values():
        print(each_further(members))
    (options.out / "growth.json").write_text(json.dumps([asdict(one) for one in found], indent=1) + "\n")
    for kind_of_file in ("svg", "png"):
        draw(lines, options.out / f"growth.{kind_of_file}")


if __name__ == "__main__":
    main()
