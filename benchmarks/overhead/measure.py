"""Prints where the time of a small campaign in the lab went, by part: ms per download and per measurement run."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections import Counter
from pathlib import Path

from core.files.journal import open_journals
from core.terminal import show_progress
from downloader.execution.attempt import Part
from downloader.quirks.pauses import PAUSES
from tests.topologies import server, topology
from upshift.campaign import run_file
from vantage.lab.place import LabPlace

CAMPAIGN = """
name = "overhead"
lab = "{lab}"
targets = "lab"
iterations = {iterations}
permute = ["ecn", "sack"]
[[configurations]]
name = "quiche"
client = "quiche"
"""

PER_DOWNLOAD = (Part.SETTINGS, Part.SET_UP, Part.CLIENT_END)
PER_RUN = tuple(part for part in Part if part not in (*PER_DOWNLOAD, Part.DOWNLOAD, Part.PAUSE))


def own_lab(folder: Path, path: str) -> Path:
    """A topology's file."""
    servers = [server(f"s{n}", f"www.{n}.example", size="1 MB", path=path) for n in ("one", "two")]
    (folder / "own.toml").write_text(topology("own", *servers, seed=1), encoding="utf-8")
    return folder / "own.toml"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--path", help='1 MB from two servers on this path, such as "rtt_ms = 50, rate_mbit = 50"')
    parser.add_argument("--programs", action="store_true", help="write kernel settings by programs, as before")
    arguments = parser.parse_args()
    if arguments.programs:
        setattr(LabPlace, "limit_settings", lambda _place, _names: None)  # noqa: B010 - no process then
    with tempfile.TemporaryDirectory(prefix="upshift-overhead-") as name:
        folder = Path(name)
        lab = "small" if arguments.path is None else str(own_lab(folder, arguments.path))
        campaign = CAMPAIGN.format(lab=lab, iterations=arguments.iterations)
        (folder / "campaign.toml").write_text(campaign, encoding="utf-8")
        with show_progress(as_json=False) as progress:
            summary, _ = run_file(folder / "campaign.toml", folder / "out", progress=progress)
        with open_journals(folder / "out") as journals:
            # The first one waits until its interpreters have imported their programs.
            attempts = [took for journal in journals.values() for took in list(journal.times())[1:]]
    seconds: Counter[str] = Counter()
    for took in attempts:
        seconds.update(took)
    runs = len(attempts)
    downloads = runs * summary.planned // summary.runs
    print(f"{downloads} downloads in {runs} runs; load {os.getloadavg()[0]:.1f}; {arguments}")
    for title, parts, count in (("per download", PER_DOWNLOAD, downloads), ("per run", PER_RUN, runs)):
        print(f"  {sum(seconds[part] for part in parts) / count * 1e3:8.1f} ms {title}:")
        for part in parts:
            print(f"    {seconds[part] / count * 1e3:8.1f} {part.replace('_', ' ')}")
    whole = sum(seconds.values())
    print(f"  {1 - seconds[Part.DOWNLOAD] / whole:.1%} of {whole:.1f} s is not download")
    pauses = "; ".join(f"{sum(each):g} s over {name}" for name, each in PAUSES.pauses_s.items())
    print(f"  the published pipeline sleeps per download: {pauses}")


if __name__ == "__main__":
    main()
