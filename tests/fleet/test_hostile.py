"""Hosts that lie to `upshift fleet collect`: nothing of the control machine changes but their own results.

All lies in `make soak`; a few of them in tests/fleet/test_cloud.py, where hosts are up already.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import stat
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from core.files import targets as target_files
from core.untrusted import file_name
from downloader.campaign.plan import PlannedRun
from downloader.execution import snapshot
from downloader.execution.journal import Journal
from downloader.limits.captures import Settled
from tests.fleet.cloud import Cloud
from tests.fleet.fleet import CAMPAIGN, NAME, verdicts
from tests.fleet.hostile import HARMLESS, LIES, OTHER, VICTIM, Results
from tests.unit.test_downloader_journal import download
from upshift.fleet_plan import needs, planned, write_own
from vantage.fleet.collecting import Job, collect
from vantage.fleet.inventory import open_fleet

pytestmark = [pytest.mark.fleet, pytest.mark.soak, pytest.mark.timeout(900)]

LIAR = "MUC"
FIRST = 100
"""The last part of the first liar's address."""

DISPATCH = """#!/bin/sh
# The rsync of the vantage point whose results are asked for.
for last; do :; done
home=$(echo "$last" | cut -d/ -f1-3)
[ -x "$home/rsync" ] && exec "$home/rsync" "$@"
exec /usr/bin/rsync.real "$@"
"""


def prepare(cloud: Cloud) -> None:
    """Gives the hosts rsync; on that of the liars each vantage point may have an rsync of its own."""
    for host in cloud.hosts.values():
        host.sh("apt-get update && apt-get install --yes rsync", timeout_s=120)
    liar = cloud.hosts[LIAR]
    liar.sh("mv /usr/bin/rsync /usr/bin/rsync.real")
    # All liars log in at once on one host, where sshd drops some of more than 10 that have not logged in yet. A reload
    # would return before sshd listens again (SIGHUP makes it execute itself); a restart waits for its word.
    liar.sh("echo MaxStartups 500 >> /etc/ssh/sshd_config; systemctl restart ssh")
    (liar.root / "usr/bin/rsync").write_text(DISPATCH)
    (liar.root / "usr/bin/rsync").chmod(0o755)


class Campaign:
    """A campaign of which liars and an honest host have results, and the control machine's folders."""

    def __init__(self, cloud: Cloud, folder: Path, lies: Sequence[str]) -> None:
        self.cloud, self.folder, self.into = cloud, folder, folder / "in" / "collected"
        self.liars = {f"L-{lie}": lie for lie in lies}
        names = [OTHER, *self.liars]
        target_files.write_rows(folder / "targets.csv", cloud.lab.targets()[:3])
        text = CAMPAIGN.format(name=NAME, points=json.dumps(names), iterations=1, slot_s=0, isolation="netns")
        limit = '\n[disk]\nlimit = "2 MB"\n'
        (folder / f"{NAME}.toml").write_text(f"max_bytes = 10000\n{text}{limit}")
        variables = {
            "campaign_file": str(folder / f"{NAME}.toml"),
            "campaign_targets": str(folder / "targets.csv"),
            "collect_into": str(self.into),
            "collect_upshift": "/bin/true",  # snapshots are made by the test
        }
        self.inventory = cloud.inventory(folder / "hosts.yml", [OTHER], **variables)
        document = json.loads(self.inventory.read_text())
        hosts = document["vantage"]["hosts"]
        hosts[OTHER]["collect_results"] = f"/srv/{OTHER}"
        known = self._add_addresses()
        for name, address in known.items():
            hosts[name] = {"ansible_host": address, "collect_results": f"/srv/{name}"}
        self.inventory.write_text(json.dumps(document))
        self.plan = planned(open_fleet(self.inventory, None))
        (folder / VICTIM).mkdir()
        (folder / VICTIM / "kept").write_text("of the user")

    def _add_addresses(self) -> dict[str, str]:
        """An address for each liar, as no two vantage points may have one."""
        host = self.cloud.hosts[LIAR]
        known = self.cloud.login.known_hosts
        keys = dict(line.split(" ", 1) for line in known.read_text().splitlines())
        addresses = {name: f"198.18.254.{FIRST + number}" for number, name in enumerate(self.liars)}
        for address in addresses.values():
            host.node("ip", "address", "replace", f"{address}/24", "dev", "mgmt0")
        with known.open("a") as handle:
            handle.writelines(f"{address} {keys[host.address]}\n" for address in addresses.values())
        return addresses

    def results(self, name: str) -> Results:
        host = self.cloud.hosts[OTHER if name == OTHER else LIAR]
        return Results(host.root / "srv" / name, name)

    def record(self, name: str, numbers: Sequence[int]) -> None:
        """Runs with captures on a host, and an honest snapshot of them."""
        folder = self.results(name).folder
        plan = self.plan.runs(name)
        with closing(Journal.open(folder / "vantage" / name, plan, plan_hash=self.plan.digest)) as journal:
            for number in numbers:
                work(folder, journal, plan[number], name)
        (folder / "status.json").write_text(json.dumps({"of": name, "runs": list(numbers)}))
        snapshot.take(folder)

    def collect_here(self) -> None:
        """Collects all of them, without the network."""
        write_own(self.collected, self.plan)
        for name in (OTHER, *self.liars):
            job = Job(host=name, folder=str(self.collected), source=str(self.results(name).folder))
            assert collect(job, needs(self.plan)).changed == 3

    @property
    def collected(self) -> Path:
        return self.into / NAME

    def collect(self) -> tuple[int, dict[str, str | None], str]:
        """By the command. Exit code, host -> its fault, standard error."""
        argv = [sys.executable, "-m", "upshift", "fleet", "collect", "--json", "-i", str(self.inventory)]
        done = self.cloud.control(argv, timeout_s=600)
        return done.returncode, {host: verdict["fault"] for host, verdict in verdicts(done).items()}, done.stderr


def work(folder: Path, journal: Journal, run: PlannedRun, name: str) -> None:
    """One recorded run with a capture."""
    capture = f"vantage/{name}/captures/{run.iteration}-{run.number:03d}-{file_name(run.target.domain)}.pcap.zst"
    path = folder / capture
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(f"{name} {run.number}".encode() * 500)
    rows = [
        dataclasses.replace(download(run, position), vantage=name, capture=capture)
        for position in range(len(run.configurations))
    ]
    settled = Settled(path=capture, size_bytes=path.stat().st_size, clean=True, dropped=False, findings="{}")
    journal.begin(run.number)
    journal.accept(run.number, rows, capture=settled)


def tree(folder: Path) -> dict[str, str]:
    """Path -> kind and content of all that is there."""
    contents = {}
    for path in sorted(folder.rglob("*")):
        state = path.lstat()
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() and not path.is_symlink() else ""
        contents[str(path.relative_to(folder))] = f"{state.st_mode:o} {content}"
    return contents


def check_liars(cloud: Cloud, folder: Path, lies: Sequence[str]) -> None:
    """Collects from a liar for each of these lies and from an honest host. Once for a cloud: it changes its hosts."""
    prepare(cloud)
    fleet = Campaign(cloud, folder, lies)
    for name in (OTHER, *fleet.liars):
        fleet.record(name, [0])
    fleet.collect_here()
    for name in (OTHER, *fleet.liars):
        fleet.record(name, [1])
    for name, lie in fleet.liars.items():
        {**LIES, **HARMLESS}[lie](fleet.results(name))
    before = tree(folder)

    code, faults, errors = fleet.collect()

    wrong = {name for name, fault in faults.items() if fault is not None}
    expected = {name for name, lie in fleet.liars.items() if lie in LIES}
    assert wrong == expected, {name: faults[name] for name in wrong ^ expected}
    assert code == 1 and all(name in errors for name in wrong), errors
    for name in wrong:
        assert str(faults[name]).isprintable() and len(str(faults[name])) < 600, faults[name]
    own = [f"in/collected/{NAME}/.collect/{name}/" for name in (OTHER, *fleet.liars)]
    own += [f"in/collected/{NAME}/vantage/{name}/" for name in faults if name not in wrong]
    after = tree(folder)
    changed = {path for path in {*before, *after} if before.get(path) != after.get(path)}
    assert {path for path in changed if not path.startswith(tuple(own))} == set()
    assert all(stat.S_IFMT(int(kind.split()[0], 8)) in (stat.S_IFREG, stat.S_IFDIR) for kind in after.values())
    for name in set(faults) - wrong:
        there, here = fleet.results(name), fleet.collected / "vantage" / name
        assert (here / "journal.sqlite").read_bytes() == there.journal.read_bytes()
        captures = there.folder / "vantage" / name / "captures"
        assert tree(here / "captures") == tree(captures.resolve())


@pytest.mark.parametrize("cloud", [{LIAR: "bookworm", OTHER: "bookworm"}], indirect=True, ids=["bookworm"])
def test_a_host_that_lies_harms_only_its_own_results(cloud: Cloud, tmp_path: Path) -> None:
    check_liars(cloud, tmp_path, (*LIES, *HARMLESS))
