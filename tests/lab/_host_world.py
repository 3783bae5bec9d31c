"""A pretend host and its neighbours: namespaces without a way out, joined by veth.

lan 198.18.2.2 -- eth1 [ host 198.18.0.2 ] eth0 -- server 198.18.0.1, 198.18.1.1, 198.19.0.1
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]

OF_THE_KERNEL = ("conntrack_count", "tcp_available_congestion_control", "tcp_allowed_congestion_control")
"""Settings that tell what is counted, or which modules are loaded."""

COMMON = """
import ipaddress, json, os, signal, socket, subprocess, sys, time
from pathlib import Path
from core.domain import RouteAttribute, Sysctl
from core.errors import UpshiftError
from core.reach import LAB_PREFIXES
from vantage.host.place import HostPlace

WANTED = [Sysctl(name="net.ipv4.tcp_sack", value="0"), Sysctl(name="net.ipv4.tcp_ecn", value="1"),
          Sysctl(name="net.ipv4.tcp_rmem", value="536870912", field=2), RouteAttribute(name="window", value="131072")]
STATE = Path(sys.argv[1])
os.environ["UPSHIFT_STATE_DIR"] = str(STATE)
GET = "import sys, urllib.request as u; print(len(u.urlopen(sys.argv[1], timeout=10).read()))"
TEXT = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=10).read().decode())"

def place(**more):
    more.setdefault("allowed_prefixes", LAB_PREFIXES)
    more.setdefault("nameservers", ["198.18.1.1"])
    return HostPlace("MUC", uplink="eth0", **more)

def python(where, code, *arguments):
    return where.run([sys.executable, "-c", code, *arguments])
"""
"""Begins each body that runs on the pretend host."""


class World:
    """The pretend host and its neighbours; each namespace is held by a program of ours."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self._holders: list[subprocess.Popen[str]] = []
        self._entries: dict[str, list[str]] = {}

    def add(self, name: str) -> None:
        start = ["unshare", "--net", "cat"]
        holder = subprocess.Popen(start, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._holders.append(holder)
        assert holder.stdin and holder.stdout
        holder.stdin.write("\n")
        holder.stdin.flush()
        if not holder.stdout.readline():
            pytest.fail("this host does not let us make network namespaces")
        self._entries[name] = ["nsenter", "--net", f"--target={holder.pid}", "--"]
        self.sh(name, "ip link set lo up")

    def sh(self, name: str, command: str) -> str:
        done = subprocess.run([*self._entries[name], "sh", "-ec", command], capture_output=True, text=True)
        assert done.returncode == 0, (command, done.stderr)
        return done.stdout

    def start(self, name: str, code: str, *arguments: str) -> subprocess.Popen[str]:
        """Starts Python code in a namespace, with our code importable and no other address allowed than ours."""
        env = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        argv = [*self._entries[name], sys.executable, "-c", code, *arguments]
        return subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, cwd="/"
        )

    def upshift(self, *arguments: str | Path, **more: str) -> subprocess.Popen[str]:
        """`upshift ARGUMENTS` on the pretend host, in a session of its own; `more` is its environment."""
        return subprocess.Popen(
            self.command(*arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**self.environment, **more},
            cwd="/",
            start_new_session=True,
        )

    def command(self, *arguments: str | Path) -> list[str]:
        """`upshift ARGUMENTS` on the pretend host; it needs `environment`."""
        code = "from upshift.cli import main; main()"
        return [*self._entries["host"], sys.executable, "-c", code, *map(str, arguments)]

    @property
    def environment(self) -> dict[str, str]:
        """What our programs need on the pretend host."""
        return {**os.environ, "PYTHONPATH": str(REPOSITORY), "UPSHIFT_STATE_DIR": str(self.state)}

    def host(self, body: str, *, timeout_s: float = 90) -> str:
        """Runs a body on the pretend host to its end; returns what it printed."""
        running = self.start("host", COMMON + textwrap.dedent(body), str(self.state))
        printed, complaint = running.communicate(timeout=timeout_s)
        assert running.returncode == 0, complaint
        return printed

    def fingerprint(self) -> dict[str, str]:
        """Everything of the pretend host that a campaign could change."""
        found = dict(
            line.split(" = ", 1)
            for line in self.sh("host", "sysctl -a 2>/dev/null").splitlines()
            if line.startswith("net.") and " = " in line and not any(name in line for name in OF_THE_KERNEL)
        )
        links = json.loads(self.sh("host", "ip -json link show"))
        found["links"] = " ".join(f"{link['ifname']} {link['mtu']}" for link in links)
        found["rules"] = self.sh("host", "nft list ruleset")
        found["routes"] = self.sh("host", "ip route show; ip -6 route show")
        found["state"] = " ".join(sorted(path.name for path in self.state.glob("host/*")))
        return found

    def changes(self, before: dict[str, str]) -> dict[str, tuple[str | None, str | None]]:
        """What is not as it was: name -> (then, now)."""
        now = self.fingerprint()
        names = sorted({*before, *now})
        return {name: (before.get(name), now.get(name)) for name in names if before.get(name) != now.get(name)}

    def guardians(self) -> list[int]:
        """Guardians of this state folder that run."""
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if b"vantage.host.guardian" in words and str(self.state).encode() in words:
                    found.append(int(entry.name))
        return found

    def wait_for_guardians(self) -> None:
        deadline = time.monotonic() + 30
        while self.guardians():
            assert time.monotonic() < deadline, "a guardian did not end"
            time.sleep(0.1)  # a look takes some 10 ms itself

    def close(self) -> None:
        for holder in self._holders:
            holder.kill()
            holder.communicate()


@contextlib.contextmanager
def open_world(state: Path) -> Iterator[World]:
    """The namespaces and the links between them.

    Args:
        state: folder for what the pretend host's campaigns record.
    """
    world = World(state)
    try:
        for name in ("host", "server", "lan"):
            world.add(name)
        server, lan = (world._holders[i].pid for i in (1, 2))
        world.sh("host", f"ip link add eth0 type veth peer name eth0 netns {server}")
        world.sh("host", f"ip link add eth1 type veth peer name eth0 netns {lan}")
        world.sh(
            "server",
            "sysctl -qw net.ipv6.conf.all.accept_dad=0;"
            "ip address add 198.18.0.1/24 dev eth0; ip address add fd00:198:18::1/64 dev eth0 nodad;"
            "ip address add 198.18.1.1/32 dev lo; ip address add 198.19.0.1/32 dev lo; ip link set eth0 up;"
            "ip route add 198.18.2.0/24 via 198.18.0.2;"
            "nft add table inet t; nft add chain inet t in '{ type filter hook input priority 0; }';"
            "nft add rule inet t in ip daddr 198.19.0.1 counter",
        )
        world.sh(
            "lan",
            "ip address add 198.18.2.2/24 dev eth0; ip link set eth0 up; ip route add default via 198.18.2.1;"
            "nft add table inet t; nft add chain inet t in '{ type filter hook input priority 0; }';"
            "nft add rule inet t in udp dport 9 counter",
        )
        world.sh(
            "host",
            "ip address add 198.18.0.2/24 dev eth0; ip address add fd00:198:18::2/64 dev eth0 nodad;"
            "ip address add 198.18.2.1/24 dev eth1; ip link set eth0 up; ip link set eth1 up;"
            "ip route add default via 198.18.0.1; ip -6 route add default via fd00:198:18::1;"
            "sysctl -qw net.ipv4.tcp_keepalive_time=1234 net.ipv4.ip_local_reserved_ports=7777",
        )
        # The kernel may load the module of `ct` now, which gives settings to all namespaces.
        world.sh(
            "host",
            "nft add table inet t; nft add chain inet t c; nft add rule inet t c ct state new; nft flush ruleset",
        )
        yield world
    finally:
        world.close()
