"""Campaign folders with journals and hand-made captures, of any size: what inspection reads."""

from __future__ import annotations

import functools
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import upshift
from analysis.evidence import inspect_campaign
from analysis.evidence.sources import inspect_capture
from core.domain import Comparison, Configuration, Download, Outcome, Target, Transport
from core.files import campaign_json, store
from core.files.campaign_json import DescribedConfiguration, Description
from downloader import clients
from downloader.campaign.plan import PlannedRun
from downloader.client import ClientResult
from downloader.execution.calls import Resolution
from downloader.execution.capture import SNAP_BYTES
from downloader.execution.journal import Journal
from downloader.execution.records import complete, record
from downloader.factors import ALL as FACTORS
from downloader.limits.captures import Settled
from tests.campaigns import Silent
from tests.unit.pcap_writer import Segment, download, ipv4, pcap

START = 1_700_000_000
"""Epoch of the first measurement run [s]; each takes a minute."""

OFF = {"ecn": "off", "sack": "off", "window_scaling": "off", "timestamps": "off"}

TCP = ("warmup", "BL", "BL2", "WS")
"""WS asks for window scaling and never gets it: its treatment is disproved."""
CONFIGURATIONS = (*TCP, "quiche")
LEVELS = {"WS": {**OFF, "window_scaling": "14"}}

PACKETS = 40


def plan(count: int) -> list[PlannedRun]:
    """Measurement runs on as many targets."""
    return [
        PlannedRun(
            number=number,
            iteration=1,
            target=Target(domain=f"d{number}.example", url=f"https://d{number}.example/f"),
            configurations=CONFIGURATIONS,
        )
        for number in range(count)
    ]


def make_campaign(
    folder: Path,
    *,
    runs: int = 4,
    vantages: Sequence[str] = ("MUC",),
    packets: int = PACKETS,
    recorded: int | None = None,
    alike: bool = False,
    clock_s: float = 0.0,
    looked_at: bool = False,
) -> Path:
    """A campaign folder; the same arguments give the same files, and more of them in a folder that is there.

    Args:
        packets: of the server, in each TCP download.
        recorded: how many of the runs are done; None for all.
        alike: all captures are one, linked, so that many of them take no room.
        clock_s: what the clients' clock is ahead of the captures'.
        looked_at: each capture was inspected right after its run, as a campaign does it.
    """
    for name in vantages:
        own = folder / "vantage" / name
        (own / "captures").mkdir(parents=True, exist_ok=True)
        planned = plan(runs)
        journal = Journal.open(own, planned, plan_hash="h")
        journal.set_meta("environment", json.dumps({"host": name}))
        waiting = set(journal.open_runs())
        first: Path | None = None
        for run in planned[:recorded]:
            if run.number in waiting:
                path = own / "captures" / f"1-{run.number:05d}-{run.target.domain}.pcap"
                ports = _ports("alike" if alike else f"{name}/{run.number}")
                if alike and first is not None:
                    path.hardlink_to(first)
                else:
                    path.write_bytes(pcap(_frames(run, ports, packets), snap=SNAP_BYTES))
                    first = path
                rows = _downloads(name, run, ports, packets, clock_s)
                journal.begin(run.number)
                capture = path.relative_to(folder).as_posix()
                done = complete(list(rows), capture=capture, dropped=None, verdict=None)
                journal.accept(run.number, done, capture=_settled(path, done) if looked_at else None)
        journal.close()
    return folder


TABLES = ("downloads.parquet", "superseded.parquet", "environment.json")
"""Files that inspection writes."""


def contents(folder: Path, names: Sequence[str] = TABLES) -> dict[str, bytes]:
    """Name -> bytes of these files."""
    return {name: (folder / name).read_bytes() for name in names}


def described_campaign(folder: Path, *, runs: int) -> Path:
    """A campaign with journals, hand-made captures and tables, and the comparison ALL vs BL."""
    tcp = ("warmup", "ALL", "BL", "WS")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys.modules[__name__], "TCP", tcp)
        patched.setattr(sys.modules[__name__], "CONFIGURATIONS", (*tcp, "quiche"))
        made = make_campaign(folder, runs=runs, looked_at=True)
    inspect_campaign(made, factors=FACTORS, progress=Silent())
    rows = {row["configuration"]: row for row in upshift.read(made).to_pylist()}
    configurations = [
        DescribedConfiguration(
            name=name, client=row["client"], transport=Transport(row["transport"]), levels={}, options={}
        )
        for name, row in rows.items()
    ]
    comparisons = (Comparison.of("ALL", "BL"),)
    described = Description(campaign="generated", configurations=tuple(configurations), comparisons=comparisons)
    campaign_json.write(made, described)
    return made


def _settled(path: Path, downloads: Sequence[Download]) -> Settled:
    findings = inspect_capture(path, downloads, factors=FACTORS)
    return Settled(
        path=str(downloads[0].capture),
        size_bytes=path.stat().st_size,
        clean=findings.clean,
        dropped=False,
        findings=findings.text,
    )


def _ports(seed: str) -> list[int]:
    """A local port for each download of a run."""
    return random.Random(seed).sample(range(32768, 61000), len(CONFIGURATIONS))


def _starts_ns(run: PlannedRun) -> list[int]:
    """When each download of a run starts, by the captures' clock."""
    return [(START + 60 * run.number + 5 * position) * 10**9 for position in range(len(run.configurations))]


@functools.cache
def _segments(position: int, packets: int) -> tuple[Segment, ...]:
    return tuple(download(base=position, packets=packets))


def _frames(run: PlannedRun, ports: Sequence[int], packets: int) -> Iterator[tuple[int, bytes]]:
    """The packets of a run's downloads by TCP."""
    for position, (at_ns, port) in enumerate(zip(_starts_ns(run), ports, strict=True)):
        if run.configurations[position] in TCP:
            for segment in _segments(position, packets):
                yield at_ns + segment.time_ns, ipv4(replace(segment, client_port=port, window=65535))


def _downloads(vantage: str, run: PlannedRun, ports: Sequence[int], packets: int, clock_s: float) -> Iterator[Download]:
    """The downloads of a run as their clients tell them."""
    for position, (at_ns, port) in enumerate(zip(_starts_ns(run), ports, strict=True)):
        last_ns = max(s.time_ns for s in _segments(position, packets) if s.length and not s.from_client)
        yield _row(
            vantage,
            run,
            position,
            started_at=at_ns / 1e9 + clock_s,
            port=port,
            body=packets * 1000 - 300,
            last_s=last_ns / 1e9 + 0.0002,
        )


def _row(
    vantage: str, run: PlannedRun, position: int, *, started_at: float, port: int, body: int, last_s: float
) -> Download:
    name = run.configurations[position]
    quic = name not in TCP
    client = clients.ALL["quiche" if quic else "requests"]
    result = ClientResult(
        outcome=Outcome.OK,
        failure=None,
        failure_detail=None,
        started_at=started_at,
        http_status=200,
        body_bytes=body,
        body_sha256="a" * 64,
        server_ip="198.18.0.2",
        server_port=443,
        local_ip="198.18.0.1",
        local_port=port,
        connect_s=0.01,
        first_byte_s=last_s / 2,
        last_byte_s=last_s,
        alpn="h3" if quic else "http/1.1",
        quic={"version": "0x00000001"} if quic else None,
    )
    return record(
        result,
        campaign="generated",
        vantage=vantage,
        run=run,
        index=position,
        configuration=Configuration(name=name, client=client.name, levels={} if quic else LEVELS.get(name, OFF)),
        client=client,
        attempt=1,
        budget_s=9.0,
        looked_up=Resolution(addresses=("198.18.0.1",), cnames=(), dns_s=0.001, error=None),
    )


def captures(folder: Path) -> list[Path]:
    """The captures of a folder in order of name."""
    return sorted(folder.glob("vantage/*/captures/*.pcap*"))


def inspect_elsewhere(folder: Path) -> subprocess.CompletedProcess[str]:
    """`upshift inspect` as an ordinary user, where only the extra `analysis` is installed (tests/analysis_only.py)."""
    # The interpreter may be readable by root only, so root stays its user and loses every capability.
    plain = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"] if os.geteuid() == 0 else []
    program = Path(__file__).parent / "analysis_only.py"
    command = [*plain, sys.executable, str(program), "inspect", str(folder)]
    return subprocess.run(command, cwd=program.parents[1], capture_output=True, text=True, check=False)


def kpi_rows(folder: Path) -> int:
    """Downloads with KPIs, so with a connection in their capture."""
    engines = store.read_table(folder / "downloads.parquet", "downloads")["kpi_engine"]
    return len(engines) - int(engines.null_count)
