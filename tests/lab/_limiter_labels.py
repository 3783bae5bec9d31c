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

from analysis.measures import dataset
from analysis.measures.dataset import Record
from tests.lab.campaigns import Silent
from tests.topologies import server, topology
from upshift.compose.run import run_file
from upshift.domain import Limiter
from vantage.lab.lab import Lab

TCP = "tcp"
CLIENTS = (TCP, "quiche", "aioquic")


@dataclass(frozen=True, slots=True, kw_only=True)
class Path4:
    """A path and what the labels make of it."""

    rtt_ms: float
    rate_mbit: float

    @property
    def bdp_bytes(self) -> float:
        return self.rtt_ms * self.rate_mbit * 125


TUNING = (
    Path4(rtt_ms=20, rate_mbit=40),
    Path4(rtt_ms=50, rate_mbit=25),
    Path4(rtt_ms=80, rate_mbit=30),
    Path4(rtt_ms=35, rate_mbit=60),
)
JUDGING = (
    Path4(rtt_ms=28, rate_mbit=50),
    Path4(rtt_ms=60, rate_mbit=20),
    Path4(rtt_ms=100, rate_mbit=22),
    Path4(rtt_ms=42, rate_mbit=35),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """What is done to a download, and what limits it then."""

    name: str
    limiter: Limiter
    size: str
    path: str = ""
    """More fields of the path; `{x}` are attributes of `Path4`."""
    more: str = ""
    """More fields of the server."""
    rate: float = 1.0
    """Factor of the path's rate."""
    clients: Sequence[str] = CLIENTS
    options: Mapping[str, int] = field(default_factory=dict)
    """Of the QUIC clients."""
    window_scaling: str = "14"
    hogs: bool = False


LABELS = (
    # 64 kB per round trip: less than a third of these paths' products.
    Label(
        name="small-window",
        limiter=Limiter.RECEIVE_WINDOW,
        size="1500 kB",
        rate=3,
        window_scaling="off",
        options={"max_data": 65536, "max_stream_data": 65536},
    ),
    Label(name="loss", limiter=Limiter.CONGESTION, size="1500 kB", path=", loss_percent = 1.5"),
    Label(name="aqm", limiter=Limiter.CONGESTION, size="3 MB", path=", ecn_threshold_bytes = {third}"),
    Label(name="drop-tail", limiter=Limiter.CONGESTION, size="3 MB", path=", queue = {fifth}"),
    Label(
        name="paced",
        limiter=Limiter.SENDER,
        size="1500 kB",
        more='body = {{ rate_mbit = {slow}, chunk = "16 kB" }}',
    ),
    Label(
        name="idle",
        limiter=Limiter.SENDER,
        size="1500 kB",
        more='body = {{ rate_mbit = {slow}, chunk = "300 kB" }}',
    ),
    Label(name="deep-queue", limiter=Limiter.PATH_RATE, size="3 MB", rate=0.5),
    Label(name="short-file", limiter=Limiter.SLOW_START, size="100 kB", rate=3),
    Label(name="cpu-hog", limiter=Limiter.CLIENT_CPU, size="1500 kB", hogs=True),
    Label(
        name="udp-buffer",
        limiter=Limiter.CLIENT_SOCKET,
        size="12 MB",
        rate=8,
        clients=("quiche",),
        options={"receive_buffer": 32768},
    ),
)
BY_NAME = {label.name: label for label in LABELS}


def topology_text(name: str, path: Path4, seed: int) -> str:
    """A lab with one server per label, all on this path."""
    servers = []
    for label in LABELS:
        rate = path.rate_mbit * label.rate
        bdp = path.bdp_bytes * label.rate
        words = {"third": max(round(bdp / 3), 12_000), "fifth": max(round(bdp / 5), 12_000), "slow": rate / 5}
        servers.append(
            server(
                label.name,
                f"www.{label.name}.example",
                size=label.size,
                path=f"rtt_ms = {path.rtt_ms}, rate_mbit = {rate:g}" + label.path.format(**words),
                more=label.more.format(**words),
            )
        )
    text = topology(name, *servers, seed=seed)
    return text.replace('name = "V"\n', 'name = "V"\nuplink_mbit = 1000\n')


def download(lab: Lab, label: Label, folder: Path, *, iterations: int = 1) -> list[Record]:
    """Downloads with each client that the label is for."""
    folder.mkdir(parents=True)
    with (folder / "targets.csv").open("w", newline="", encoding="utf-8") as handle:
        rows = csv.writer(handle)
        rows.writerow(["domain", "url", "provider", "size_bytes"])
        rows.writerows(
            [t.domain, t.url, t.provider, t.size_bytes]
            for t in lab.targets()
            if t.domain == f"www.{label.name}.example"
        )
    (folder / "campaign.toml").write_text(_campaign(lab, label, iterations), encoding="utf-8")
    with _hogs(lab) if label.hogs else ExitStack():
        run_file(folder / "campaign.toml", folder / "out", progress=Silent())
    return [record for record in dataset.load([folder / "out"]).records if not record.is_warmup]


def _campaign(lab: Lab, label: Label, iterations: int) -> str:
    fields = {"name": label.name, "lab": str(lab.folder.topology), "targets": "targets.csv", "iterations": iterations}
    lines = [f"{key} = {json.dumps(value)}" for key, value in (fields | {"budget": 60, "max_attempts": 2}).items()]
    for client in label.clients:
        lines += ["[[configurations]]", f'name = "{client}"', f'client = "{"requests" if client == TCP else client}"']
        if client == TCP:
            levels = {"ecn": "on", "sack": "on", "window_scaling": label.window_scaling}
            lines.append("levels = { " + ", ".join(f'{k} = "{v}"' for k, v in levels.items()) + " }")
        elif label.options:
            lines.append("options = { " + ", ".join(f"{k} = {v}" for k, v in label.options.items()) + " }")
    return "\n".join(lines) + "\n"


@contextmanager
def _hogs(lab: Lab) -> Iterator[None]:
    """Two programs per CPU that never rest, with the priority of the lab and its clients."""
    with ExitStack() as stack:
        place = stack.enter_context(closing(lab.place("V")))
        for _ in range(2 * len(os.sched_getaffinity(0))):
            loop = place.start(["sh", "-c", "while :; do :; done"])
            stack.callback(loop.stop)
        yield
