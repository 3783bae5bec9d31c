"""A campaign on the pretend host of `_host_world`: `upshift run` as a user or systemd starts it, and what it left."""

from __future__ import annotations

import contextlib
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import trustme

from core.files.journal import JournalReader
from tests.lab._host_world import World, open_world

SERVER = "198.18.1.1"

CAMPAIGN = """
name = "c"
contact = "measure@upshift.test"
targets = "t.csv"
ca_file = "ca.pem"
vantage_points = ["MUC"]
allowed_prefixes = ["198.18.0.0/15"]
nameservers = ["198.18.1.1"]
isolation = "ISOLATION"
iterations = ITERATIONS
budget = 10

[[configurations]]
name = "BL"
client = "requests"
levels = { sack = "off", window_scaling = "off" }
[[configurations]]
name = "WS"
client = "requests"
levels = { window_scaling = 14 }
"""


@dataclass
class Host:
    """The pretend host with a server that takes 0.6 s for a file, and the campaign's files."""

    world: World
    folder: Path

    @property
    def out(self) -> Path:
        return self.folder / "out"

    def campaign(self, isolation: str, *, iterations: int = 2) -> int:
        """Writes a campaign; the number of downloads in its plan."""
        text = CAMPAIGN.replace("ISOLATION", isolation).replace("ITERATIONS", str(iterations))
        (self.folder / "c.toml").write_text(text)
        return iterations * 3

    def run(self, *more: str, **environment: str) -> subprocess.Popen[str]:
        """Starts the campaign."""
        return self.world.upshift("run", self.folder / "c.toml", "--out", self.out, *more, **environment)

    def run_in_terminal(self) -> subprocess.Popen[str]:
        """Starts the campaign in a terminal, which closes when the process returned is killed."""
        command = shlex.join(self.world.command("run", self.folder / "c.toml", "--out", self.out))
        script = ["script", "--quiet", "--return", "--command", command, "/dev/null"]
        return subprocess.Popen(
            script, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=self.world.environment, cwd="/", text=True
        )

    def ask(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """Another command of upshift about this campaign, from another session outside the pretend host."""
        command = [sys.executable, "-m", "upshift", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd="/")

    def status(self) -> dict[str, object]:
        found: dict[str, object] = json.loads((self.out / "status.json").read_text())
        return found

    def activity(self) -> tuple[str, str]:
        """State and reason."""
        try:
            found = self.status()["activity"]
        except FileNotFoundError:
            return "", ""
        assert isinstance(found, dict)
        return found["state"], found["reason"]

    def journal(self) -> tuple[int, int, list[str]]:
        """Downloads recorded, runs interrupted, and the states of all runs."""
        journal = JournalReader(self.out / "vantage" / "MUC" / "journal.sqlite")
        try:
            counts = journal.counts()
            states = [str(row[0]) for row in journal._select("SELECT state FROM runs ORDER BY number")]
            return counts.recorded, counts.interrupted_runs, states
        finally:
            journal.close()

    def downloading(self, since: float = 0.0) -> bool:
        """Whether a client has received part of a file: its connection is in the capture.

        Args:
            since: Unix time of the command's start; captures that a killed one left are older.
        """
        parts = (self.out / "vantage" / "MUC" / "captures").glob(".*[0-9a-z].part.pcap")
        with contextlib.suppress(FileNotFoundError):
            return any(path.stat().st_size > 5_000 and path.stat().st_mtime >= since for path in parts)
        return False


@contextlib.contextmanager
def open_host(folder: Path, *, interval_s: float = 0.012) -> Iterator[Host]:
    """The host, with DNS and HTTPS servers behind its uplink. A file takes 50 times `interval_s`."""
    authority = trustme.CA()
    leaf = authority.issue_cert("www.one.example")
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    leaf.cert_chain_pems[0].write_to_path(str(folder / "cert.pem"))
    leaf.private_key_pem.write_to_path(str(folder / "key.pem"))
    (folder / "t.csv").write_text(
        "domain,url,provider,size_bytes\nwww.one.example,https://www.one.example/f.bin,other,1000000\n"
    )
    (folder / "state").mkdir()
    with open_world(folder / "state") as world, contextlib.ExitStack() as stack:
        steady = (SERVER, "443", str(folder / "cert.pem"), str(folder / "key.pem"), "1000000", "20000", str(interval_s))
        for name, arguments in (("_dns_server", (SERVER,)), ("_steady_server", steady)):
            code = f"import runpy; runpy.run_module('tests.lab.{name}', run_name='__main__')"
            running = stack.enter_context(world.start("server", code, *arguments))
            stack.callback(running.kill)
            assert running.stdout is not None and running.stdout.readline() == "ready\n"
        yield Host(world, folder)
