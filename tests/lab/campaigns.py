"""Campaigns in labs of the tests' own, the way a user runs them, and what independent witnesses saw of them.

A `Bench` is a lab that is up. `measure` writes a campaign file, runs it by `upshift.campaign.run_file`, and reads
the folder back by `analysis.measures.dataset`; meanwhile the emulator writes down every packet. A second witness is
tcpdump, whose printed lines are read here without any of our own parsers.

A busy host is no reason to believe a wrong figure, and none to fail at random: `Measured.noise` says how busy it was,
and `Bench.judge` measures again where a check fails and the host was busy (`tests.lab.noise`).
"""

from __future__ import annotations

import csv
import json
import math
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

from analysis.measures import dataset
from analysis.measures.dataset import Dataset, Record
from core.domain import Download, Transport
from core.system import process
from downloader.execution.records import clock_offset_s
from tests.campaigns import Silent
from tests.journaled import superseded
from tests.lab.noise import MAX_ATTEMPTS, Noise, host_noise, measured
from tests.plain_captures import plain
from upshift.campaign import run_file
from vantage.lab.lab import Lab, open_lab

TOPOLOGIES = Path(__file__).parent / "topologies"

OFF = {"ecn": "off", "sack": "off", "window_scaling": "off"}
BL: Mapping[str, str] = OFF
ECN: Mapping[str, str] = {**OFF, "ecn": "on"}
WS: Mapping[str, str] = {**OFF, "window_scaling": "14"}
ALL: Mapping[str, str] = {"ecn": "on", "sack": "on", "window_scaling": "14"}

DELIVERED = ("delivered", "marked")
DROPPED = ("loss", "tail", "aqm")
SLACK_S = 0.02
"""By how much two clocks of one host may differ in what they say of a moment; runs are further apart."""

Key = tuple[str, str, int]
"""Transport, server address, local port: names the connections of a campaign that are open at one time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """What the emulator wrote down about one packet; times by its monotonic clock."""

    from_client: bool
    time_in_ns: int
    out_ns: int | None
    """None for a packet that was dropped."""
    ip_bytes: int
    verdict: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Printed:
    """One TCP packet as tcpdump prints it."""

    from_client: bool
    time_us: int
    ip_bytes: int
    payload: int
    flags: str
    ack: int
    """Relative, 0 where there is none."""
    tsval: int
    tsecr: int
    options: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A campaign that ran, with what the emulator saw of it."""

    out: Path
    data: Dataset
    noise: Noise
    log: Mapping[Key, Sequence[Passage]] = field(default_factory=dict)
    """What the emulator wrote down, if it did."""
    boot_s: float = 0.0
    """The Unix time at which its clock was 0."""

    @property
    def downloads(self) -> list[Download]:
        return [record.download for record in self.data.records]

    @property
    def disturbed(self) -> list[str]:
        """What the host did to downloads: analysis leaves these out."""
        downloads = [download for download in self.downloads if download.host_disturbance]
        return [f"{d.domain} {d.configuration} {d.iteration}: {d.host_disturbance_detail}" for d in downloads]

    @property
    def excuse(self) -> str | None:
        """Why the host may be to blame for a wrong figure; None where it is not."""
        return self.noise.excuse or ("; ".join(self.disturbed) or None)

    def of(self, configuration: str) -> list[Record]:
        """The records of one configuration, by iteration."""
        found = [record for record in self.data.records if record.download.configuration == configuration]
        return sorted(found, key=lambda record: record.download.iteration)

    def passages(self, download: Download) -> list[Passage]:
        """What the emulator wrote down about a download. Its port may be that of a download of another run, too."""
        run = (download.vantage, download.iteration, download.url)
        starts = [(d.started_at, (d.vantage, d.iteration, d.url)) for d in (*self.downloads, *superseded(self.out))]
        later = [at for at, other in starts if other != run and other[0] == run[0] and at > download.started_at]
        first, end = ((at - self.boot_s - SLACK_S) * 1e9 for at in (download.started_at, min(later, default=math.inf)))
        return [passage for passage in self.log[key_of(download)] if first <= passage.time_in_ns < end]

    def printed(self, download: Download) -> list[Printed]:
        """The packets of a download as tcpdump prints them."""
        assert download.capture is not None
        return print_capture(self.out / download.capture, download)


@dataclass(kw_only=True)
class Bench:
    """A lab that is up for a module of tests."""

    lab: Lab
    folder: Path
    """For campaigns; each gets a folder of its own."""
    known: dict[str, Measured] = field(default_factory=dict)
    """Campaigns that several tests look at, by name."""

    def measure(
        self,
        name: str,
        configurations: Mapping[str, Mapping[str, str] | str],
        *,
        domain: str | None = None,
        times: int = 1,
    ) -> Measured:
        """Runs a campaign, again where runs of it stayed void.

        Args:
            configurations: name -> levels, of `requests` where they name no `client`; or the name of a client.
            domain: the only target; None for all of the lab.
            times: iterations.
        """

        def void(found: Measured) -> list[str]:
            return sorted({f"a run stayed void: {d.void_detail}" for d in found.downloads if is_void(d)})

        found = measured(
            lambda: self._measure(name, configurations, domain, times), void, excuse=lambda found: str(found.noise)
        )
        self.known[name] = found
        return found

    def judge(self, measure: Callable[[], Measured], check: Callable[[Measured], list[str]]) -> Measured:
        """Fails the test with what `check` finds wrong; where the host disturbed it, only after it has tried again."""

        def afresh(found: Measured) -> list[str]:
            wrong = check(found)
            print(f"measured on {found.noise}")
            if wrong:
                self.known = {name: other for name, other in self.known.items() if other is not found}
            return wrong

        return measured(measure, afresh, excuse=lambda found: found.excuse)

    def _measure(
        self, name: str, configurations: Mapping[str, Mapping[str, str] | str], domain: str | None, times: int
    ) -> Measured:
        folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.folder))
        path, log, out = folder / "campaign.toml", folder / "packets.csv", folder / "out"
        path.write_text(self._campaign(folder, configurations, domain, times), encoding="utf-8")
        emulator = self.lab.emulator()
        try:
            emulator.ask("packet_log", enable=True, path=str(log))
            with host_noise() as noise:
                summary, _ = run_file(path, out, progress=Silent())
            stopped = emulator.ask("packet_log", enable=False)["stopped"]
        finally:
            emulator.close()
        assert summary.complete and not stopped["truncated"] and not stopped["error"], (summary, stopped)
        data = dataset.load([out])
        return Measured(out=out, data=data, noise=noise[0], log=read_log(log), boot_s=clock_offset_s())

    def _campaign(
        self, folder: Path, configurations: Mapping[str, Mapping[str, str] | str], domain: str | None, times: int
    ) -> str:
        """The text of a campaign file; the list of targets stands beside it where they are not all of the lab."""
        targets = "lab"
        if domain is not None:
            targets = "targets.csv"
            with (folder / targets).open("w", newline="", encoding="utf-8") as handle:
                rows = csv.writer(handle)
                rows.writerow(["domain", "url", "provider", "size_bytes"])
                wanted = [target for target in self.lab.targets() if target.domain == domain]
                rows.writerows([t.domain, t.url, t.provider, t.size_bytes] for t in wanted)
        fields = {"name": "truth", "lab": str(self.lab.folder.topology), "targets": targets, "iterations": times}
        fields |= {"max_attempts": MAX_ATTEMPTS}
        lines = [f"{key} = {json.dumps(value)}" for key, value in fields.items()]
        for name, levels in configurations.items():
            chosen = {"client": levels} if isinstance(levels, str) else {"client": "requests", **levels}
            lines += ["[[configurations]]", f'name = "{name}"', f'client = "{chosen.pop("client")}"']
            if chosen:
                lines.append("levels = { " + ", ".join(f'{k} = "{v}"' for k, v in chosen.items()) + " }")
        return "\n".join(lines) + "\n"


@contextmanager
def state_folder() -> Iterator[Path]:
    """A state folder of one's own; its path is short, as sockets need."""
    folder = Path(tempfile.mkdtemp(prefix="ut-", dir="/tmp"))
    try:
        with mock.patch.dict(os.environ, UPSHIFT_STATE_DIR=str(folder)):
            yield folder
    finally:
        shutil.rmtree(folder)


@contextmanager
def open_bench(topology: str | Path, folder: Path) -> Iterator[Bench]:
    """A topology file, or one of tests/lab/topologies by name, up."""
    path = topology if isinstance(topology, Path) else TOPOLOGIES / f"{topology}.toml"
    with state_folder(), open_lab(path) as lab:
        yield Bench(lab=lab, folder=folder)


def is_void(download: Download) -> bool:
    """The lab itself says that this download cannot be believed."""
    return download.void_reason is not None


def key_of(download: Download) -> Key:
    assert download.server_ip is not None and download.local_port is not None
    return download.transport, download.server_ip, download.local_port


def read_log(path: Path) -> dict[Key, list[Passage]]:
    """The emulator's log of packets, by connection; each direction in the order in which packets came."""
    found: dict[Key, list[Passage]] = {}
    with path.open(encoding="ascii", newline="") as handle:
        for row in csv.DictReader(handle):
            from_client = row["dport"] == "443"
            transport = {"6": Transport.TCP, "17": Transport.QUIC}.get(row["protocol"])
            if transport is None or (not from_client and row["sport"] != "443"):
                continue  # DNS
            server, port = (row["dst"], row["sport"]) if from_client else (row["src"], row["dport"])
            passage = Passage(
                from_client=from_client,
                time_in_ns=int(row["time_in_ns"]),
                out_ns=int(row["out_ns"]) if row["out_ns"] else None,
                ip_bytes=int(row["len"]),
                verdict=row["verdict"],
            )
            found.setdefault((transport.value, server, int(port)), []).append(passage)
    for passages in found.values():
        passages.sort(key=lambda passage: passage.time_in_ns)
    return found


_HEAD = re.compile(r"(\d+)\.(\d{6}) IP \(.* length (\d+)\)")
_BODY = re.compile(r"\s+(\S+)\.(\d+) > (\S+)\.(\d+): Flags \[([^\]]*)\],.* length (\d+)")
_ACK = re.compile(r" ack (\d+)")
_STAMPS = re.compile(r"TS val (\d+) ecr (\d+)")


def print_capture(path: Path, download: Download) -> list[Printed]:
    """What tcpdump prints about one TCP download."""
    only = f"host {download.server_ip} and tcp port {download.local_port}"
    lines = process.run(["tcpdump", "-nn", "-tt", "-v", "-r", str(plain(path)), only]).stdout.splitlines()
    found = []
    for first, second in zip(lines[::2], lines[1::2], strict=True):
        head, body, stamps, ack = _HEAD.match(first), _BODY.match(second), _STAMPS.search(second), _ACK.search(second)
        assert head and body, (first, second)
        found.append(
            Printed(
                from_client=int(body[2]) == download.local_port,
                time_us=int(head[1]) * 1_000_000 + int(head[2]),
                ip_bytes=int(head[3]),
                payload=int(body[6]),
                flags=body[5],
                ack=int(ack[1]) if ack else 0,
                tsval=int(stamps[1]) if stamps else 0,
                tsecr=int(stamps[2]) if stamps else 0,
                options=second[second.find("options [") :],
            )
        )
    return found
