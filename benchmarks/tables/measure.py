"""`upshift tables` on a generated campaign: wall clock, CPU and peak memory, beside bare reading and pairing.

    python benchmarks/tables/measure.py --rows 10000000 [--folder DIR]

Aims: 10 million downloads to Table 2 in 15 s and 2 GB on two cores, measured on a campaign without the columns of
limiters; with them, the table of limiters is made as well, which is printed beside. The bare way is `pairing.py`:
pyarrow reads six columns, numpy pairs each comparison, and nothing is checked, tested or written.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.usage import used

AIM_S, AIM_MB = 15.0, 2_000.0


def without_limiters(folder: Path, to: Path) -> Path:
    """A copy of the campaign without the columns of limiters."""
    to.mkdir()
    (to / "campaign.json").symlink_to((folder / "campaign.json").resolve())
    with pq.ParquetFile(folder / "downloads.parquet") as file:
        names = [name for name in file.schema_arrow.names if not name.startswith("limiter")]
        schema = pa.schema([file.schema_arrow.field(name) for name in names], metadata=file.schema_arrow.metadata)
        with pq.ParquetWriter(to / "downloads.parquet", schema, compression="zstd") as writer:
            for group in range(file.num_row_groups):
                writer.write_table(file.read_row_group(group, columns=names))
    return to


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--folder", type=Path, help="an existing campaign folder instead of a generated one")
    options = parser.parse_args()
    here = Path(__file__).resolve().parent
    upshift = str(Path(sys.executable).with_name("upshift"))
    with tempfile.TemporaryDirectory(prefix="upshift-tables-") as name:
        folder = options.folder or Path(name) / "campaign"
        if options.folder is None:
            made = used(sys.executable, str(here / "make_campaign.py"), str(folder), "--rows", str(options.rows))
            print(f"generated: {made}", flush=True)
        idle = used(upshift, "--version")
        print(f"upshift --version: {idle}", flush=True)
        bare = used(sys.executable, str(here / "pairing.py"), str(folder))
        print(f"bare reading and pairing: {bare}", flush=True)
        whole = used(upshift, "tables", str(folder), "--out", name)
        print(f"upshift tables, with the table of limiters: {whole}", flush=True)
        found = used(upshift, "tables", str(without_limiters(folder, Path(name) / "bare")), "--out", name)
    print(f"upshift tables, without it: {found}; {found.cpu_s / bare.cpu_s:.1f} times the CPU of the bare way")
    print(
        f"{found.wall_s / AIM_S:.2f} of the {AIM_S:.0f} s allowed, {found.peak_mb / AIM_MB:.2f} of the {AIM_MB:,.0f} MB"
    )
    if found.wall_s > AIM_S or found.peak_mb > AIM_MB:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
