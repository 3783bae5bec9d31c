"""Is a download through a campaign's own namespace (veth, translation) as fast as from the host itself?

A node of a lab stands for the host, at a path of 300 Mbit/s and 20 ms. Interleaved pairs: one download from the node,
one from a namespace that `HostPlace` made in it, in turns first. Prints medians of throughput and round-trip time; the
goal is that they are within 1 %. The handshake's is that of captures where the client is, as in a campaign's KPIs; how
much later the client says that it was connected is printed, too: it had to wait for a CPU.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.captures.kpis.rtt import handshake_rtt
from analysis.captures.scan import CaptureReader
from core.reach import LAB_PREFIXES, IPNetwork
from core.system import process
from core.system.process import Child
from downloader import clients
from downloader.client import DownloadRequest
from downloader.execution.calls import Caller
from vantage.host.place import HostPlace
from vantage.lab.lab import open_lab
from vantage.lab.pathem import DEVICE

FILE_BYTES = 30_000_000
TOPOLOGY = f"""
schema = 1
name = "place"
[[vantage]]
name = "V"
[[organisation]]
name = "o"
title = "O"
asn = 3000001
[[server]]
name = "s"
organisation = "o"
domains = ["www.one.example"]
files = [{{ path = "/a.bin", size = "{FILE_BYTES // 1_000_000} MB" }}]
paths = {{ V = {{ rtt_ms = 20, rate_mbit = 300 }} }}
"""


TITLES = ("throughput [Mbit/s]", "RTT of the handshake [ms]", "smallest RTT [ms]", "connected, says the client [ms]")


@dataclass
class Bare:
    """The host itself."""

    nameservers: tuple[str, ...] = ()
    allowed_prefixes: tuple[IPNetwork, ...] = LAB_PREFIXES

    def start(self, argv: Sequence[str], **pipes: Any) -> Child:
        return process.start(argv, **pipes)


def _handshakes(place: Any, device: str, path: Path) -> Child:
    """A tcpdump of the handshakes on a device of a place."""
    only = ("tcp[tcpflags] & tcp-syn != 0",)
    argv = ("tcpdump", "-Z", "root", "-n", "-U", "--immediate-mode", "-i", device, "-w", str(path), *only)
    child: Child = place.start(argv, stderr=True)
    assert child.stderr is not None
    while "listening on" not in child.stderr.readline():
        assert child.returncode is None, "tcpdump does not capture"
    return child


def inside(address: str, ca: str, nameserver: str, pairs: int) -> None:
    """Measures; runs in the node."""
    client = clients.ALL["curl-h1"]
    request = DownloadRequest(
        url="https://www.one.example/a.bin",
        address=address,
        port=443,
        ca_file=Path(ca),
        budget_s=20,
        max_bytes=None,
        expected_bytes=FILE_BYTES,
        user_agent="upshift-benchmark",
        allowed=tuple(map(str, LAB_PREFIXES)),
    )
    with ExitStack() as stack:
        state = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        os.environ["UPSHIFT_STATE_DIR"] = str(state)
        own = HostPlace("V", uplink=DEVICE, allowed_prefixes=LAB_PREFIXES, nameservers=[nameserver])
        places: dict[str, Any] = {"host": Bare(), "namespace": stack.enter_context(own)}
        callers = {name: stack.enter_context(Caller(place, [client], lambda: None)) for name, place in places.items()}
        taken: dict[str, list[tuple[Any, ...]]] = {name: [] for name in places}
        files = {name: state / f"{name}.pcap" for name in places}
        devices = {"host": DEVICE, "namespace": own.interface}
        dumps = [stack.enter_context(_handshakes(places[name], devices[name], files[name])) for name in places]
        for pair in range(-1, pairs):  # the first pair warms up
            for name in sorted(places, reverse=bool(pair % 2)):
                result = callers[name].download(client, request)
                assert result.last_byte_s and result.tcp and result.connect_s, result.failure_detail
                if pair >= 0:
                    rate = 8e-6 * result.body_bytes / result.last_byte_s
                    port, least_ms = result.local_port, result.tcp["min_rtt_us"] / 1e3
                    taken[name].append((rate, least_ms, 1e3 * result.connect_s, port))
        time.sleep(1.0)  # a packet is in the file at once; this is for a busy host
        for dump in dumps:
            dump.stop()
        for name, path in files.items():
            seen = {one.client_port: handshake_rtt.compute(one) for one in CaptureReader(path)}
            taken[name] = [(rate, seen[port], least_ms, said_ms) for rate, least_ms, said_ms, port in taken[name]]
    print(f"{pairs} pairs of {FILE_BYTES // 1_000_000} MB; load {os.getloadavg()[0]:.1f}")
    for place, title in enumerate(TITLES):
        medians = {name: statistics.median(values[place] for values in taken[name]) for name in taken}
        apart = medians["namespace"] / medians["host"] - 1
        print(f"{title}: host {medians['host']:.2f}, namespace {medians['namespace']:.2f} ({apart:+.2%})")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--inside", nargs=3, metavar="VALUE", help=argparse.SUPPRESS)
    wanted = parser.parse_args()
    if wanted.inside:
        address, ca, nameserver = wanted.inside
        inside(address, ca, nameserver, wanted.pairs)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        topology = Path(folder) / "place.toml"
        topology.write_text(TOPOLOGY)
        with open_lab(topology) as lab:
            place = lab.place("V")
            address, own = lab.plan.addresses["s"].ipv4, (str(lab.folder.ca), place.nameservers[0])
            command = [*place.prefix(), sys.executable, __file__, "--pairs", str(wanted.pairs)]
            return subprocess.run([*command, "--inside", address, *own], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
