"""`make fleet-demo`: three cloud hosts in the lab, from nothing to a report, and back.

    python -m tests.fleet.demo OUT

Ends with exit code 1 at the first thing that is not as it should be.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from core import terminal
from core.errors import UpshiftError
from core.system import process
from core.system.process import Completed
from tests.fleet.cloud import Cloud, open_cloud
from tests.fleet.fleet import NAME, REPOSITORY, Fleet, bundles, overlaps
from tests.fleet.host import differences

SUITES = {"MUC": "bookworm", "SFO": "bookworm", "SGP": "trixie"}
PROVISION_S = 180.0
PLAN_S = 1500.0


@contextmanager
def step(what: str) -> Iterator[None]:
    """Says what is done and how long it took."""
    began = time.monotonic()
    print(f"== {what}", flush=True)
    yield
    print(f"   {time.monotonic() - began:.0f} s", flush=True)


def demo(cloud: Cloud, out: Path, built: Path) -> None:
    """All of it, on hosts that have booted. Raises AssertionError."""
    fleet = Fleet(cloud, out, built, targets=cloud.lab.targets(), noise_floor=True)
    before = {name: host.fingerprint() for name, host in cloud.hosts.items()}
    with step("provision three fresh hosts"):
        began = time.monotonic()
        fleet.do("provision")
        took = time.monotonic() - began
        if took > PROVISION_S:
            print(f"   slower than {PROVISION_S:.0f} s", flush=True)
    with step("provision them again: nothing changes"):
        again = {name: verdict["changed"] for name, verdict in fleet.do("provision").items()}
        assert set(again.values()) == {0}, again
    with step("provision with --check: nothing would change"):
        check_mode(fleet)
    with step("doctor --calibrate"):
        fleet.do("doctor", "--calibrate")
    with step("run"):
        fleet.do("run")
    with step(f"{fleet.runs} runs in turns, and status"):
        fleet.wait_state("done", seconds=PLAN_S)
        print(fleet.try_("status").stdout)
    with step("collect"):
        fleet.do("collect")
        check_collected(fleet)
    with step("one report over three vantage points"):
        show_report(fleet.collected)
    with step("teardown: hosts are as before, and keep their results"):
        fleet.do("teardown")
        for name, host in cloud.hosts.items():
            changed = differences(before[name], host.fingerprint())
            left = {row: values for row, values in changed.items() if not row.startswith("files: var/lib/upshift")}
            assert not left, (name, left)


def show_report(collected: Path) -> None:
    """Prints the report's first screen with rows for each vantage point, and its path."""

    def upshift(*argv: str) -> Completed:
        done = process.run([sys.executable, "-m", "upshift", *argv], timeout_s=600)
        return done.check(doing=f"running upshift {argv[0]}")

    print(upshift("inspect", str(collected)).stdout)  # what is collected has journals and captures, no tables
    report = upshift("report", str(collected))
    tables = json.loads(upshift("tables", str(collected), "--table", "2", "--by", "vantage", "--json").stdout)
    rows = [["vantage point", "comparison", "verdict", "median", "n"], *map(_row, tables["table2"])]
    print(report.stderr)
    terminal.print_table(terminal.console(sys.stdout), [rows], title="By vantage point", words=set(rows[0][:3]))
    print(report.stdout)
    names = {row[0] for row in rows[1:]}
    wanted = {path.name for path in (collected / "vantage").iterdir()}
    assert names == wanted and report.stdout.strip().endswith("index.html"), (names, wanted, report.stdout)


def _row(row: dict[str, Any]) -> list[str]:
    median = "–" if row["median"] is None else f"{row['median']:.2f}"
    return [row["vantage"], row["comparison"], row["verdict"] or "", median, str(row["n"])]


def check_mode(fleet: Fleet) -> None:
    """`--check` of Ansible over hosts that are ready."""
    playbooks = REPOSITORY / "ansible"
    argv = ["ansible-playbook", "--check", "-i", str(fleet.inventory), str(playbooks / "playbooks/provision.yml")]
    done = fleet.cloud.control(argv, ANSIBLE_CONFIG=str(playbooks / "ansible.cfg"))
    counts = re.findall(r"(\S+)\s+: ok=\d+\s+changed=(\d+)\s+unreachable=(\d+)\s+failed=(\d+)", done.stdout)
    wanted = {(name, "0", "0", "0") for name in fleet.hosts}
    assert done.returncode == 0 and set(counts) == wanted, done.stdout[-3000:]


def check_collected(fleet: Fleet) -> None:
    """Every planned download once; no two runs on one target overlap."""
    names = [(host, d.iteration, d.domain, d.configuration) for host in fleet.hosts for d in fleet.downloads(host)]
    assert len(names) == len(set(names)) == fleet.planned, (len(names), len(set(names)), fleet.planned)
    both = overlaps(fleet.spans())
    assert not both, both


def main() -> None:
    """Exit code 0 if all is as it should be."""
    if os.geteuid() != 0:
        sys.exit("make fleet-demo: hosts are containers, which need root; run it as root")
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "demo").absolute() / "fleet"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    try:
        with step("bundles for Python 3.11 and 3.13"):
            built = bundles(out / "bundles", SUITES.values())
        with open_cloud(SUITES) as cloud:
            with step("boot"):
                cloud.start()
            demo(cloud, out, built)
    except UpshiftError as error:
        sys.exit(f"upshift: {error.sentence()}")
    print(f"all is as it should be; inventory, campaign, results of {NAME} and report are in {out}")


if __name__ == "__main__":
    main()
