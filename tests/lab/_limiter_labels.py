"""Downloads whose limiter is known, because the lab was made so: one label each, over TCP and QUIC.

Two sets of paths: thresholds of `analysis.captures.limiter` were tuned on `TUNING` alone, and are judged on `JUDGING`,
which has other rates and round-trip times.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from analysis.captures.limiter import Limiter
from analysis.measures import dataset
from analysis.measures.dataset import Record
from core.domain import Download
from tests.campaigns import Silent
from tests.topologies import server, topology
from upshift.campaign import run_file
from vantage.lab.lab import Lab

TCP = "tcp"
HOGS_PER_CPU = 6
"""With three a quiet host leaves the client enough of its CPUs in one download of three."""
CLIENTS = (TCP, "quiche", "aioquic")


@dataclass(frozen=True, slots=True, kw_only=True)
class LabPath:
    """A path without a label."""

    rtt_ms: float
    rate_mbit: float

    @property
    def bdp_bytes(self) -> float:
        return self.rtt_ms * self.rate_mbit * 125


TUNING = (
    LabPath(rtt_ms=20, rate_mbit=40),
    LabPath(rtt_ms=50, rate_mbit=25),
    LabPath(rtt_ms=80, rate_mbit=30),
    LabPath(rtt_ms=35, rate_mbit=60),
)
JUDGING = (
    LabPath(rtt_ms=28, rate_mbit=50),
    LabPath(rtt_ms=60, rate_mbit=20),
    LabPath(rtt_ms=100, rate_mbit=22),
    LabPath(rtt_ms=42, rate_mbit=35),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """What is done to a download, and what limits it then."""

    name: str
    limiter: Limiter
    size: str
    path: str = ""
    """More fields of the path; `{x}` are attributes of `LabPath`."""
    more: str = ""
    """More fields of the server."""
    rate: float = 1.0
    """Factor of the path's rate."""
    clients: Sequence[str] = CLIENTS
    options: Mapping[str, int] = field(default_factory=dict)
    """Of the QUIC clients."""
    window_scaling: str = "14"
    hogs: bool = False
    quick: str = TCP
    """The client of its quick cell."""

    @property
    def domain(self) -> str:
        return f"www.{self.name}.example"

    def took(self, download: Download) -> bool:
        """Whether the lab did to this download what the label says."""
        if self.limiter is Limiter.CONGESTION:
            return bool((download.lab_dropped or 0) + (download.lab_marked or 0))
        if self.limiter is Limiter.CLIENT_SOCKET:
            return bool(download.socket_drops)
        return not download.lab_dropped


LABELS = (
    # 64 kB per round trip: less than a third of these paths' products.
    Label(
        name="small-window",
        limiter=Limiter.RECEIVE_WINDOW,
        size="1500 kB",
        rate=3,
        window_scaling="off",
        quick="quiche",
        clients=(TCP, "quiche"),  # aioquic, whose windows are held by us, was not tried
        options={"max_data": 65536, "max_stream_data": 65536},
    ),
    Label(name="loss", limiter=Limiter.CONGESTION, size="1500 kB", path=", loss_percent = 1.5", quick="quiche"),
    Label(name="aqm", limiter=Limiter.CONGESTION, size="3 MB", path=", ecn_threshold_bytes = {third}"),
    Label(name="drop-tail", limiter=Limiter.CONGESTION, size="3 MB", path=", queue = {fifth}"),
    Label(
        name="paced",
        limiter=Limiter.SENDER,
        size="1500 kB",
        more='body = {{ rate_mbit = {slow}, chunk = "16 kB" }}',
        quick="quiche",
    ),
    Label(
        name="idle",
        limiter=Limiter.SENDER,
        size="1500 kB",
        more='body = {{ rate_mbit = {slow}, chunk = "300 kB" }}',
    ),
    # The queue holds the whole file.
    Label(name="deep-queue", limiter=Limiter.PATH_RATE, size="3 MB", path=", queue = 4000000", rate=0.5),
    Label(name="short-file", limiter=Limiter.SLOW_START, size="100 kB", rate=3),
    # Only aioquic needs enough of a CPU to be slowed down.
    Label(
        name="cpu-hog",
        limiter=Limiter.CLIENT_CPU,
        size="6 MB",
        rate=6,
        clients=("aioquic",),
        hogs=True,
        quick="aioquic",
    ),
    Label(
        name="udp-buffer",
        limiter=Limiter.CLIENT_SOCKET,
        size="20 MB",
        rate=8,
        clients=("quiche",),
        quick="quiche",
        options={"receive_buffer": 32768},
    ),
)
BY_NAME = {label.name: label for label in LABELS}


def topology_text(name: str, path: LabPath, seed: int) -> str:
    """A lab with one server per label, all on this path."""
    servers = []
    for label in LABELS:
        rate = path.rate_mbit * label.rate
        bdp = path.bdp_bytes * label.rate
        words = {"third": max(round(bdp / 3), 12_000), "fifth": max(round(bdp / 5), 12_000), "slow": rate / 5}
        servers.append(
            server(
                label.name,
                label.domain,
                size=label.size,
                path=f"rtt_ms = {path.rtt_ms}, rate_mbit = {rate:g}" + label.path.format(**words),
                more=label.more.format(**words),
            )
        )
    text = topology(name, *servers, seed=seed)
    return text.replace('name = "V"\n', 'name = "V"\nuplink_mbit = 1000\n')


def download(
    lab: Lab, labels: Sequence[Label], folder: Path, *, iterations: int = 1, clients: Sequence[str] = CLIENTS
) -> list[tuple[Label, Record]]:
    """Downloads with each of these clients that a label is for; a campaign per group of labels that share settings."""
    found = []
    for number, group in enumerate(_groups(labels)):
        used = [client for client in clients if client in group[0].clients]
        if used:
            by_domain = {label.domain: label for label in group}
            records = _campaign_of(lab, group, folder / str(number), iterations, used)
            found += [(by_domain[record.download.domain], record) for record in records]
    return found


def _groups(labels: Sequence[Label]) -> list[list[Label]]:
    groups: dict[str, list[Label]] = {}
    for label in labels:
        groups.setdefault(repr((label.clients, label.options, label.window_scaling, label.hogs)), []).append(label)
    return list(groups.values())


def _campaign_of(
    lab: Lab, labels: Sequence[Label], folder: Path, iterations: int, clients: Sequence[str]
) -> list[Record]:
    folder.mkdir(parents=True)
    domains = {label.domain for label in labels}
    with (folder / "targets.csv").open("w", newline="", encoding="utf-8") as handle:
        rows = csv.writer(handle)
        rows.writerow(["domain", "url", "provider", "size_bytes"])
        rows.writerows([t.domain, t.url, t.provider, t.size_bytes] for t in lab.targets() if t.domain in domains)
    (folder / "campaign.toml").write_text(_campaign(lab, labels[0], iterations, clients), encoding="utf-8")
    with _hogs(lab) if labels[0].hogs else ExitStack():
        run_file(folder / "campaign.toml", folder / "out", progress=Silent())
    return [record for record in dataset.load([folder / "out"]).records if not record.is_warmup]


def _campaign(lab: Lab, label: Label, iterations: int, clients: Sequence[str]) -> str:
    fields = {"name": label.name, "lab": str(lab.folder.topology), "targets": "targets.csv", "iterations": iterations}
    lines = [f"{key} = {json.dumps(value)}" for key, value in (fields | {"budget": 60, "max_attempts": 2}).items()]
    for client in clients:
        lines += ["[[configurations]]", f'name = "{client}"', f'client = "{"requests" if client == TCP else client}"']
        if client == TCP:
            levels = {"ecn": "on", "sack": "on", "window_scaling": label.window_scaling}
            lines.append("levels = { " + ", ".join(f'{k} = "{v}"' for k, v in levels.items()) + " }")
        elif label.options:
            lines.append("options = { " + ", ".join(f"{k} = {v}" for k, v in label.options.items()) + " }")
    return "\n".join(lines) + "\n"


@contextmanager
def _hogs(lab: Lab) -> Iterator[None]:
    """Programs that never rest, with a priority above the client's. That of the servers is highest: only clients
    have to wait."""
    with ExitStack() as stack:
        place = stack.enter_context(closing(lab.place("V")))
        for pid in _children(lab.state["pid"]):
            stack.callback(os.setpriority, os.PRIO_PROCESS, pid, os.getpriority(os.PRIO_PROCESS, pid))
            os.setpriority(os.PRIO_PROCESS, pid, -20)
        for _ in range(HOGS_PER_CPU * len(os.sched_getaffinity(0))):
            loop = place.start(["nice", "-n", "-2", "sh", "-c", "while :; do :; done"])
            stack.callback(loop.stop)
        yield


def _children(pid: int) -> list[int]:
    """All processes below it, and their threads."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text(encoding="ascii").split():
            found += [int(thread.name) for thread in Path(f"/proc/{child}/task").iterdir()] + _children(int(child))
    return found
