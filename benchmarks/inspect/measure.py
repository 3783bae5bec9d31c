"""`upshift inspect` on a generated campaign: captures per second, CPU and peak memory, first and again.

    python benchmarks/inspect/measure.py --captures 10000

All captures are one, linked: four TCP downloads of 1.1 MB, 6,600 packets, headers only. The journal has five downloads
per capture. Aim: 10,000 captures in 500 MB, and memory that does not grow with their number.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.usage import used
from tests.inspected import captures, make_campaign

PACKETS = 1_100
AIM_MB = 500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--captures", type=int, default=10_000)
    options = parser.parse_args()
    upshift = str(Path(sys.executable).with_name("upshift"))
    idle = used(sys.executable, "-c", "import analysis.captures.scan, pyarrow.parquet")
    print(f"imports alone: {idle.peak_mb:.0f} MB, {idle.cpu_s:.2f} s of CPU")
    worst = 0.0
    for count in (options.captures // 10, options.captures):
        with tempfile.TemporaryDirectory(prefix="upshift-inspect-") as name:
            folder = make_campaign(Path(name), runs=count, packets=PACKETS, alike=True)
            size_mb = captures(folder)[0].stat().st_size / 1e6
            for what in ("first", "again"):
                found = used(upshift, "inspect", str(folder))
                worst = max(worst, found.peak_mb)
                print(
                    f"{count} captures of {size_mb:.1f} MB, {what}: {found.wall_s:.1f} s, {count / found.wall_s:.0f} "
                    f"captures/s, {1e3 * found.cpu_s / count:.1f} ms of CPU each, peak {found.peak_mb:.0f} MB"
                )
    print(f"peak {worst:.0f} MB, {worst / AIM_MB:.2f} of the {AIM_MB} MB allowed")
    if worst > AIM_MB:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
