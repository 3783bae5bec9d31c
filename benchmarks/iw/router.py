"""Three namespaces: a prober's, a router that loses chosen segments, and a server's, the lab's `sender`.

Each pair of a window and a kind of loss is a /24 of servers. The router counts the packets of each connection by
conntrack, after the server's kernel has cut its super-packets into segments; what is sent again is not lost. For
clients of `BYTES` the sender's window is one in bytes.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import vantage.programs
from benchmarks.iw.world import FILE, World
from survey.iw.probers import Attachment
from tests.lab._iw_world import DEVICE, PROBER_ADDRESSES, Node

SENDER = Path(vantage.programs.__file__).with_name("sender.py")
FILE_BYTES = 400_000

WINDOWS = (10, 32, 100)

BYTES = {"198.18.77.251": 14_600, "198.18.77.252": 65_536}
"""Address of the client -> the sender's window for it [bytes]."""

LAST_OF_SOME = "last, of one connection in three"

HOLD_BACK = 2_000
"""Initial window under which the sender holds back by itself [segments]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Servers with one window, whose segments are lost in one way."""

    number: int
    window: int
    loss: str

    @property
    def prefix(self) -> str:
        return f"198.19.{self.number}.0/24"

    @property
    def lost(self) -> Sequence[int]:
        """Numbers of the payload segments that are lost, from 0."""
        window = self.window
        return {
            "none": (),
            "first": (0,),
            "second": (1,),
            "middle": (window // 2,),
            "last but one": (window - 2,),
            "first three": (0, 1, 2),
            "every third": range(2, window - 1, 3),
            "last": (window - 1,),
            LAST_OF_SOME: (window - 1,),
        }[self.loss]

    @property
    def seen(self) -> int:
        """Segments of the window that a single probe can know of: nobody sees a last one that is always lost."""
        return self.window - (self.loss == "last")

    def hosts(self, count: int) -> list[str]:
        return [f"198.19.{self.number}.{number + 1}" for number in range(count)]


LOSSES = (
    "none",
    "first",
    "second",
    "middle",
    "last but one",
    "first three",
    "every third",
    LAST_OF_SOME,
    "last",
)

CELLS = tuple(
    Cell(number=len(WINDOWS) * row + column, window=window, loss=loss)
    for row, loss in enumerate(LOSSES)
    for column, window in enumerate(WINDOWS)
)

BYTES_PREFIX = "198.19.200.0/24"


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed:
    """The prober's namespace, and what the router does."""

    world: World
    router: Node

    def as_client(self, address: str) -> World:
        """The prober's namespace with another address of its own."""
        return replace(self.world, attachment=replace(self.world.attachment, addresses=(address,)))

    def lost(self) -> Mapping[int, int]:
        """Segments that were lost since this was last asked, by the number of their cell."""
        found = json.loads(self.router.run("nft", "-j", "reset", "counters", "table", "ip", "lossy"))["nftables"]
        counters = [item["counter"] for item in found if "counter" in item]
        return {int(counter["name"].removeprefix("cell")): int(counter["packets"]) for counter in counters}

    @contextmanager
    def captured(self, arrived: dict[str, set[int]], mss: int) -> Iterator[None]:
        """Fills in the numbers of the segments that reach the prober before any is sent again, by server."""
        with tempfile.TemporaryDirectory() as folder:
            file = f"{folder}/capture"
            argv = ("tcpdump", "-i", DEVICE, "-s", "80", "-B", "16384", "--immediate-mode", "-w", file, "-Z", "root")
            with subprocess.Popen(
                [*self.world.client.enter, *argv, "tcp src port 80"], stderr=subprocess.PIPE, text=True
            ) as tcpdump:
                try:
                    assert tcpdump.stderr is not None and "listening" in tcpdump.stderr.readline()
                    yield
                    time.sleep(0.2)
                finally:
                    tcpdump.terminate()
            done = subprocess.run(["tcpdump", "-nn", "-r", file], capture_output=True, text=True, check=True)
        highest: dict[str, int] = {}
        for host, start, end in re.findall(r" IP ([0-9.]+)\.80 > .* seq (\d+):(\d+),", done.stdout):
            if int(start) < highest.get(host, 0):
                highest[host] = sys.maxsize  # sent again: the flight is over
            elif highest.get(host) != sys.maxsize:
                highest[host] = int(end)
                arrived.setdefault(host, set()).add(int(start) // mss)


@contextmanager
def open_router() -> Iterator[Routed]:
    """Builds it; needs root, nft and tcpdump."""
    os.environ.setdefault("UPSHIFT_ALLOWED_PREFIXES", "198.18.0.0/15")
    client, router, server = Node(), Node(), Node()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file in (FILE[1:], "index.html"):
            (folder / file).write_bytes(b"x" * FILE_BYTES)
        try:
            world = _connected(client, router, server)
            router.run("nft", _ruleset())
            argv = [sys.executable, "-I", str(SENDER), "--root", name]
            argv += [word for address, size in BYTES.items() for word in ("--first", f"{address}/32={size}")]
            sender = subprocess.Popen([*server.enter, *argv])
            try:
                _wait_for_port(server)
                yield Routed(world=world, router=router)
            finally:
                sender.kill()
                sender.wait()
        finally:
            for node in (client, router, server):
                node.close()


def _wait_for_port(server: Node, limit_s: float = 20.0) -> None:
    until = time.monotonic() + limit_s
    while ":80 " not in server.run("ss", "-Hltn"):
        if time.monotonic() > until:
            raise TimeoutError("the sender does not listen")
        time.sleep(0.05)


def _connected(client: Node, router: Node, server: Node) -> World:
    """Client and router in 198.18.77.0/24, router and server in 198.18.78.0/24."""
    own = (PROBER_ADDRESSES[0], *BYTES)
    macs = []
    for node, device, addresses in ((client, "prober", ("77.1", "77.2")), (server, "server", ("78.2", "78.1"))):
        node.run("ip", "link", "add", DEVICE, "type", "veth", "peer", device, "netns", str(router.holder.pid))
        for end, name, address in ((node, DEVICE, addresses[0]), (router, device, addresses[1])):
            end.run("ip", "addr", "add", f"198.18.{address}/24", "dev", name)
            end.run("ethtool", "-K", name, "tso", "off", "gso", "off", "gro", "off", "tx", "off")
            end.run("ip", "link", "set", name, "up", "txqueuelen", "20000")
            macs.append(end.run("ip", "-o", "link", "show", name).split("link/ether ")[1].split()[0])
    for address in own:
        router.run("ip", "neigh", "replace", address, "lladdr", macs[0], "dev", "prober", "nud", "permanent")
    router.run("ip", "route", "add", "198.19.0.0/16", "via", "198.18.78.2")
    router.run("sysctl", "-qw", "net.ipv4.ip_forward=1", "net.netfilter.nf_conntrack_acct=1")
    router.run("sysctl", "-qw", "net.netfilter.nf_conntrack_tcp_be_liberal=1")
    server.run("ip", "route", "add", "local", "198.19.0.0/16", "dev", "lo")
    server.run("ip", "route", "add", "198.18.77.0/24", "via", "198.18.78.1")
    server.run("sysctl", "-qw", "net.ipv4.tcp_no_metrics_save=1", "net.core.somaxconn=4096")
    for window in (*WINDOWS, HOLD_BACK):
        to = ("198.18.77.0/24", "via", "198.18.78.1", "table", str(1_000 + window))
        server.run("ip", "route", "add", *to, "initcwnd", str(window), "congctl", "cubic")
    for prefix, window in (*((cell.prefix, cell.window) for cell in CELLS), (BYTES_PREFIX, HOLD_BACK)):
        server.run("ip", "rule", "add", "from", prefix, "table", str(1_000 + window))
    return World(
        client=client,
        attachment=Attachment(device=DEVICE, addresses=own[:1], next_hop=macs[1]),
        client_mac=macs[0],
    )


def _ruleset() -> str:
    """For nft(8). Pure ACKs (40 bytes) are not counted, so the SYN-ACK is packet 1 and segment 0 packet 2."""
    lines = [
        "add table ip lossy",
        "add chain ip lossy raw { type filter hook prerouting priority raw; }",
        'add rule ip lossy raw iifname "server" ip length 40 tcp flags & syn == 0 notrack',
        "add chain ip lossy forward { type filter hook forward priority filter; }",
    ]
    for cell in CELLS:
        lines.append(f"add counter ip lossy cell{cell.number}")
        packets = ", ".join(str(number + 2) for number in cell.lost)
        if packets:
            some = "numgen inc mod 3 == 0" if cell.loss == LAST_OF_SOME else ""
            match = f"ip saddr {cell.prefix} ct direction reply ct reply packets {{ {packets} }} {some}"
            lines.append(f"add rule ip lossy forward {match} counter name cell{cell.number} drop")
    return "\n".join(lines)
