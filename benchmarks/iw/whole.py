"""Rate of the whole command `upshift survey iw`: sample, policy, pace, votes, ledger and results; nginx in the lab.

    python benchmarks/iw/whole.py [--hosts 16384]

The lab's path emulator, the servers and the command share the cores. Each host is asked at one MSS, twice or more (the
first two estimates agree), so the estimates are more than the hosts.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from core.files import store
from tests.lab._iw_survey import planted
from tests.lab.test_survey_iw_population import HOSTS, NEAR
from tests.topologies import server, topology
from vantage.lab.lab import open_lab

UNLIMITED = "100000"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=16_384, help="At most 65,536; each window's share is kept.")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        os.environ["UPSHIFT_STATE_DIR"] = str(folder / "state")
        blocks = ", ".join(f"{{ hosts = {hosts}, initcwnd = {window} }}" for window, hosts in HOSTS.items())
        more = f'web_server = "nginx"\nplain_http = true\npopulation = [{blocks}]'
        lab_file = folder / "iwwhole.toml"
        servers = server("nginx", "www.whole.example", more=more, size="100 kB", path=NEAR)
        lab_file.write_text(topology("iwwhole", servers))
        with open_lab(lab_file) as lab:
            wanted = {window: hosts * given.hosts // 65_536 for window, hosts in HOSTS.items()}
            prefixes = (
                next(block.subnets(new_prefix=33 - wanted[w].bit_length())) for w, block in planted(lab).items()
            )
            source, out = folder / "prefixes", folder / "iw.parquet"
            source.write_text("".join(f"{prefix}\n" for prefix in prefixes))
            argv = [str(Path(sys.executable).with_name("upshift")), "survey", "iw", "-o", str(out), "--json"]
            argv += ["--contact", "bench@measurement.example.org", "--prefixes", str(source), "--path", "/a.bin"]
            argv += ["--mss", "64", "--rate", UNLIMITED, "--address-rate", "1000"]
            began = time.monotonic()
            child = lab.place("V").start(argv, stdout=folder / "said", stderr=folder / "errors")
            code = child.wait(900)
            took = time.monotonic() - began
            if code != 0:
                raise SystemExit((folder / "errors").read_text())
            probes = sum(int(row["probes"]) for row in store.each_row(out, "survey_iw"))
            print(
                f"{sum(wanted.values()):,} hosts, {probes:,} estimates in {took:.1f} s: {probes / took:,.0f} a second"
            )


if __name__ == "__main__":
    main()
