"""A fleet on the hosts of a cloud: its inventory, its campaign, `upshift fleet` in `control`, and what came of it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.domain import Download, Target
from core.files import targets as target_files
from core.files.journal import JournalReader
from core.system import process
from core.system.process import Completed
from tests.fleet.cloud import Cloud
from tests.fleet.host import Host
from tests.fleet.roots import SYSTEMS

REPOSITORY = Path(__file__).resolve().parents[2]
NAME = "week"
BUNDLES_VARIABLE = "UPSHIFT_TEST_BUNDLES"
"""A folder of bundles to use instead of building them."""

CAMPAIGN = """
name = "{name}"
contact = "measure@upshift.test"
targets = "targets.csv"
ca_file = "ca.pem"
vantage_points = {points}
allowed_prefixes = ["198.18.0.0/15", "fd00:198:18::/48"]
isolation = "{isolation}"
iterations = {iterations}
budget = 2
slot_s = {slot_s}

[[configurations]]
name = "BL"
client = "requests"
levels = {{ sack = "off", window_scaling = "off" }}
[[configurations]]
name = "WS"
client = "requests"
levels = {{ window_scaling = 14 }}
"""
NOISE_FLOOR = """
[[configurations]]
name = "BL2"
client = "requests"
levels = { sack = "off", window_scaling = "off" }
"""
"""The same as BL, once more."""


def bundles(folder: Path, suites: Iterable[str]) -> Path:
    """Bundles of this checkout for the Pythons of these suites. Raises PlaceError if they cannot be built."""
    if given := os.environ.get(BUNDLES_VARIABLE):
        return Path(given)
    argv = [sys.executable, "-m", "upshift", "fleet", "bundle", "--out", str(folder)]
    for python in sorted({SYSTEMS[suite].python for suite in suites}):
        argv += ["--python", python]
    built = process.run(argv, timeout_s=3600, cwd=REPOSITORY)
    built.check(doing="building the bundles")
    return folder


@dataclass(frozen=True, slots=True)
class Span:
    """A measurement run by the journal: [start, end), Unix times."""

    host: str
    domain: str
    start: float
    end: float


class Fleet:
    """Hosts with an inventory and a campaign.

    Args:
        folder: for inventory, campaign and what is collected.
        built: folder of bundles.
        targets: what the campaign measures.
        name: of the campaign.
        hosts: all of the cloud if None.
        noise_floor: whether the campaign compares BL with itself, too.
        more: further variables of the group.
    """

    def __init__(
        self,
        cloud: Cloud,
        folder: Path,
        built: Path,
        *,
        targets: Sequence[Target],
        name: str = NAME,
        hosts: Sequence[str] | None = None,
        iterations: int = 1,
        slot_s: int = 45,
        isolation: str = "netns",
        noise_floor: bool = False,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        self.cloud, self.folder = cloud, folder
        self.hosts = {name: cloud.hosts[name] for name in hosts or cloud.hosts}
        self.name = name
        self.runs = len(targets) * iterations * len(self.hosts)
        self.planned = self.runs * (4 if noise_floor else 3)  # a warm-up and each configuration
        target_files.write_rows(folder / "targets.csv", targets)
        (folder / "opt-out.txt").touch()
        (folder / "ca.pem").write_bytes(cloud.lab.ca_file.read_bytes())
        points = json.dumps(list(self.hosts))
        text = CAMPAIGN.format(name=name, points=points, iterations=iterations, slot_s=slot_s, isolation=isolation)
        (folder / f"{name}.toml").write_text(text + (NOISE_FLOOR if noise_floor else ""))
        variables = {
            "vantage_bundles": str(built),
            "explain_operator": "Upshift's tests",
            "explain_contact": "measure@upshift.test",
            "campaign_file": str(folder / f"{name}.toml"),
            "campaign_targets": str(folder / "targets.csv"),
            "campaign_opt_out": str(folder / "opt-out.txt"),
            "collect_into": str(folder / "collected"),
        }
        self.inventory = cloud.inventory(folder / "hosts.yml", list(self.hosts), **variables, **(more or {}))

    def argv(self, command: str, *arguments: str) -> list[str]:
        """`upshift fleet COMMAND` in `control`."""
        own = [sys.executable, "-m", "upshift", "fleet", command, *arguments, "-i", str(self.inventory)]
        return [*self.cloud.prefix, *own]

    def try_(self, command: str, *arguments: str, timeout_s: float = 900.0) -> Completed:
        """Runs it to its end, however it ends."""
        return process.run(self.argv(command, *arguments), timeout_s=timeout_s)

    def do(self, command: str, *arguments: str, timeout_s: float = 900.0) -> dict[str, Any]:
        """Runs it with `--json`; host -> verdict. Raises AssertionError with what it said if it fails."""
        done = self.try_(command, *arguments, "--json", timeout_s=timeout_s)
        assert done.returncode == 0, (command, done.returncode, done.stdout[-3000:], done.stderr[-3000:])
        return verdicts(done)

    def start(self, command: str, *arguments: str) -> subprocess.Popen[str]:
        """Starts it in a session of its own, to be killed."""
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(self.argv(command, *arguments), text=True, start_new_session=True, **pipes)

    def status(self) -> dict[str, Any]:
        """Host -> its status document, None where it failed."""
        answers = verdicts(self.try_("status", "--json"))
        return {host: verdict["result"] if verdict["ok"] else None for host, verdict in answers.items()}

    def recorded(self) -> dict[str, int]:
        """Host -> downloads recorded, -1 where it does not answer."""
        return {host: document["progress"]["recorded"] if document else -1 for host, document in self.status().items()}

    def states(self) -> dict[str, str]:
        """Host -> state of its campaign, empty where it does not answer."""
        return {host: document["activity"]["state"] if document else "" for host, document in self.status().items()}

    def wait(self, condition: Callable[[], bool], *, seconds: float, what: str, pause_s: float = 3.0) -> None:
        """Waits, looking every few seconds: most looks are a run of Ansible."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"{what}: {json.dumps(self.status())[-3000:]}"
            time.sleep(pause_s)

    def written_state(self, host: Host) -> str:
        """State of the campaign by the file that it writes on a host, empty without one."""
        path = host.root / "var/lib/upshift" / self.name / "results/status.json"
        with contextlib.suppress(OSError, ValueError):
            return str(json.loads(path.read_text())["activity"]["state"])
        return ""

    def wait_state(self, state: str, *, seconds: float) -> None:
        """Waits until all hosts are in a state, by the files that they write; then the command must say so."""

        def is_there() -> bool:
            return {self.written_state(host) for host in self.hosts.values()} == {state}

        self.wait(is_there, seconds=seconds, what=f"not {state}", pause_s=0.5)
        self.wait(lambda: set(self.states().values()) == {state}, seconds=60, what="the command says something else")

    @property
    def collected(self) -> Path:
        """The campaign folder of all hosts on this machine."""
        return self.folder / "collected" / self.name

    def downloads(self, host: str) -> list[Download]:
        """What the collected journal of a host has."""
        path = self.collected / "vantage" / host / "journal.sqlite"
        with contextlib.closing(JournalReader(path)) as journal:
            return list(journal.downloads())

    def spans(self) -> list[Span]:
        """When each vantage point measured which target, in order."""
        spans = []
        for host in self.hosts:
            runs: dict[tuple[int, str], list[Download]] = {}
            for download in self.downloads(host):
                runs.setdefault((download.iteration, download.domain), []).append(download)
            for (_, domain), several in runs.items():
                starts = [download.started_at - (download.setup_s or 0.0) for download in several]
                ends = [download.started_at + (download.last_byte_s or 0.0) for download in several]
                spans.append(Span(host, domain, min(starts), max(ends)))
        return sorted(spans, key=lambda span: span.start)


def verdicts(done: Completed) -> dict[str, Any]:
    """Host -> verdict, of a command with `--json`: its last line."""
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"hosts"')]
    assert lines, (done.returncode, done.stdout[-3000:], done.stderr[-3000:])
    hosts: dict[str, Any] = json.loads(lines[-1])["hosts"]
    return hosts


def overlaps(spans: Sequence[Span]) -> list[tuple[Span, Span]]:
    """Pairs of runs of two hosts on one target at the same time."""
    return [
        (first, second)
        for number, first in enumerate(spans)
        for second in spans[number + 1 :]
        if first.domain == second.domain and first.host != second.host and second.start < first.end
    ]
