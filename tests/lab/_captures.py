"""Downloads in a lab, captured at both ends, and what `upshift kpis` and tcpdump say about the captures."""

from __future__ import annotations

import csv
import functools
import io
import json
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from core.errors import PlaceError
from core.system import process
from core.system.place import Suitability
from downloader.execution.capture import Capture
from tests.lab.noise import measured
from vantage.lab.lab import Lab
from vantage.lab.place import LabPlace

UPSHIFT = str(Path(sys.executable).with_name("upshift"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """One download: what was captured at both ends, and what the client said."""

    client: Path
    server: Path
    said: str
    server_ip: str
    rtt_ms: float
    rate_mbit: float

    @property
    def tolerance_ms(self) -> float:
        return max(1.0, 0.02 * self.rtt_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Printed:
    """One packet as tcpdump prints it."""

    time_us: int
    source: str
    destination: str
    from_client: bool
    ip_id: int
    """0 in IPv6, which has none."""
    ip_bytes: int
    text: str
    """Of the TCP segment or the UDP datagram."""

    @property
    def payload(self) -> int:
        tcp = re.search(r" length (\d+)$", self.text) if "Flags" in self.text else None
        return int(tcp[1]) if tcp else self.ip_bytes - (48 if ":" in self.source else 28)

    @property
    def first(self) -> int:
        """Absolute sequence number of the first byte of a packet with payload."""
        found = re.search(r" seq (\d+)", self.text)
        assert found, self.text
        return int(found[1])


_LINE = re.compile(
    r"(?P<s>\d+)\.(?P<us>\d{6}) IP6? \((?:.*?, id (?P<id>\d+),)?.*?(?P<v6>payload )?length:? (?P<bytes>\d+)\)\s+"
    r"(?P<source>\S+)\.(?P<sport>\d+) > (?P<destination>\S+)\.\d+: (?P<text>.*)"
)


def printed(capture: Path) -> list[Printed]:
    """A capture as tcpdump prints it; the server's port is 443."""
    said = process.run(["tcpdump", "-nn", "-tt", "-S", "-v", "-r", str(capture)]).check(doing="reading").stdout
    found = []
    for line in re.sub(r"\n\s+", " ", said).splitlines():
        match = _LINE.fullmatch(line)
        assert match, line
        found.append(
            Printed(
                time_us=int(match["s"]) * 1_000_000 + int(match["us"]),
                source=match["source"],
                destination=match["destination"],
                from_client=match["sport"] != "443",
                ip_id=int(match["id"] or 0),
                ip_bytes=int(match["bytes"]) + (40 if match["v6"] else 0),
                text=match["text"],
            )
        )
    return found


@functools.cache
def kpis(capture: Path) -> dict[str, Any]:
    """The one JSON document of a capture."""
    done = process.run([UPSHIFT, "kpis", str(capture), "--json"])
    assert (done.returncode, done.stderr) == (0, "")
    (line,) = done.stdout.splitlines()
    document: dict[str, Any] = json.loads(line)
    return document


@functools.cache
def packets(capture: Path) -> list[dict[str, str]]:
    """The rows of `--packets`."""
    done = process.run([UPSHIFT, "kpis", "--packets", str(capture)])
    assert (done.returncode, done.stderr) == (0, "")
    return list(csv.DictReader(io.StringIO(done.stdout)))


def fetch(
    lab: Lab, server: str, family: str, command: Sequence[str], name: str, folder: Path, *, port: int = 443
) -> Taken:
    """A download from MUC, captured at both ends; again where the host disturbed the lab."""
    address = getattr(lab.plan.addresses[server], family)
    path = next(entry for entry in lab.truth()["paths"] if entry["server"] == server)
    ends = [(lab.place("MUC"), folder / f"{name}.pcap"), (lab.place(server), folder / f"{name}.server.pcap")]

    def once() -> tuple[str, Suitability]:
        watch = ends[0][0].watch(address)
        running = [Capture.start(place, file, address=address, port=port) for place, file in ends]
        said = ends[0][0].run(command)
        watch.settle()
        assert [capture.finish() for capture in running] == [0, 0]
        for capture in running:
            capture.close()
        return said.check(doing=f"fetching {name}").stdout, watch.finish()

    def disturbed(found: tuple[str, Suitability]) -> list[str]:
        return [] if found[1].disturbed is None else [found[1].disturbed.detail]

    try:
        said, _ = measured(once, disturbed, excuse=lambda found: f"the lab was disturbed while fetching {name}")
    finally:
        for place, _ in ends:
            place.close()
    return Taken(
        client=ends[0][1],
        server=ends[1][1],
        said=said,
        server_ip=address,
        rtt_ms=path["rtt_ms"],
        rate_mbit=path["rate_mbit"],
    )


def curl(lab: Lab, domain: str, family: str) -> list[str]:
    """Prints how many bytes the body had."""
    (target,) = [target for target in lab.targets() if target.domain == domain]
    command = ["curl", f"-{family[-1]}", "-sS", "--http1.1", "--cacert", str(lab.ca_file), "-o", "/dev/null"]
    return [*command, "-w", "%{size_download}", target.url]


def quic(lab: Lab, program: Sequence[str], domain: str, server: str, family: str) -> list[str]:
    """Prints the document of our clients."""
    (target,) = [target for target in lab.targets() if target.domain == domain]
    address = getattr(lab.plan.addresses[server], family)
    return [*program, "--url", target.url, "--address", address, "--ca", str(lab.ca_file)]


OVERTAKING = """
table inet overtaking {
  chain out {
    type filter hook postrouting priority 0;
    tcp sport 443 meta length > 200 meta priority set 0x10020
    tcp sport 443 meta length > 200 numgen inc mod 5 0 meta priority set 0x10010
  }
}
"""
"""Every fifth data packet goes into the class that the shaper serves first."""

SHAPER = (
    "qdisc add dev tun0 root handle 1: htb default 10",
    "class add dev tun0 parent 1: classid 1:1 htb rate 12mbit burst 3k cburst 3k quantum 1514",
    *(
        f"class add dev tun0 parent 1:1 classid 1:{10 * (prio + 1)} htb rate 100kbit ceil 12mbit burst 3k cburst 3k"
        f" quantum 1514 prio {prio}"
        for prio in (0, 1)
    ),
)

LOSSES = [40, 41, 42, 90, 200, 201, 203, 205, 400, 401, 402, 403, 500, 501, 600]
"""Numbers of the packets from the server that get lost, what it sends again counted too."""


@contextmanager
def overtaking(server: LabPlace) -> Iterator[None]:
    """Some packets of a server overtake others on their way out."""
    try:
        for words in SHAPER:
            server.run(["tc", *words.split()]).check(doing="shaping")
        server.run(["nft", "-f", "-"], stdin=OVERTAKING).check(doing="setting priorities")
    except PlaceError as error:
        pytest.skip(f"this kernel does not reorder: {error.sentence()}")
    try:
        yield
    finally:
        server.run(["nft", "delete", "table", "inet", "overtaking"])
        server.run(["tc", "qdisc", "del", "dev", "tun0", "root"])


@contextmanager
def losses(lab: Lab, server: str) -> Iterator[None]:
    """The emulator drops these packets of a server to MUC."""
    pairs = json.loads((lab.folder.root / "pathem.json").read_text(encoding="utf-8"))["pairs"]
    pair = next(pair for pair in pairs if (pair["from"], pair["to"]) == (server, "MUC"))
    emulator = lab.emulator()
    emulator.ask("set_pair", **{**pair, "loss": {"pattern": LOSSES}})
    try:
        yield
    finally:
        emulator.ask("set_pair", **pair)
        emulator.close()
