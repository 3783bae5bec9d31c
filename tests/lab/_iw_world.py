"""Two namespaces, a veth between them: the prober's, and a server's with one address for each initial window."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import trustme

from core.system import process
from core.system.process import PARENT_DEATH, Child
from survey.iw.probers import Attachment, prober
from survey.iw.wire import ProbeReply, ProbeRequest
from survey.programs import ProberPool

PROBER_ADDRESSES = ("198.18.77.250", "fd00:198:18:77::fa")
"""The prober's own, which its namespace's kernel does not have."""

HOLD = "import sys; sys.stdin.read()"
DEVICE = "veth0"


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (command, done.stderr)
    return done.stdout


def server_address(window: int) -> str:
    """The address whose segments are sent with this initial window."""
    return f"198.18.77.{100 + window}"


def server_address6(window: int) -> str:
    return f"fd00:198:18:77::{window:x}"


class Node:
    """A network namespace, held by a process."""

    def __init__(self) -> None:
        self.holder = subprocess.Popen(
            ["unshare", "--net", *PARENT_DEATH, sys.executable, "-c", HOLD], stdin=subprocess.PIPE
        )
        while Path(f"/proc/{self.holder.pid}/ns/net").readlink() == Path("/proc/self/ns/net").readlink():
            time.sleep(0.002)
        self.run("sysctl", "-qw", "net.ipv6.conf.default.accept_dad=0")
        self.run("ip", "link", "set", "lo", "up")

    @property
    def enter(self) -> tuple[str, ...]:
        """As in a lab, it goes before what else the host does: a late server is another one to the prober."""
        return "nice", "-n", "-10", "nsenter", f"--net=/proc/{self.holder.pid}/ns/net"

    def run(self, *command: str) -> str:
        return run(*self.enter, *command)

    def start(self, argv: Iterable[str]) -> Child:
        return process.start((*self.enter, *argv), stdin=True, stdout=True, binary=True)

    def close(self) -> None:
        self.holder.kill()
        self.holder.wait()
        assert self.holder.stdin is not None
        self.holder.stdin.close()


class IwWorld:
    """Caddy with files of 1 MB and of chosen sizes, over HTTP and TLS, at one address per window."""

    def __init__(self, folder: Path, windows: Iterable[int]) -> None:
        self.folder = folder
        self.client, self.server = Node(), Node()
        self._caddy: subprocess.Popen[bytes] | None = None
        try:
            self._connect()
            for window in windows:
                self._add(window)
            self._serve()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._caddy is not None:
            self._caddy.kill()
            self._caddy.wait()
        self.client.close()
        self.server.close()

    @property
    def attachment(self) -> Attachment:
        return Attachment(device=DEVICE, addresses=PROBER_ADDRESSES, next_hop=self._macs[1])

    @property
    def client_mac(self) -> str:
        return self._macs[0]

    def _connect(self) -> None:
        client, server = self.client, self.server
        client.run("ip", "link", "add", DEVICE, "type", "veth", "peer", DEVICE, "netns", str(server.holder.pid))
        self._macs = []
        for node, ipv4, ipv6 in ((client, "198.18.77.1", "1:1"), (server, "198.18.77.2", "1:2")):
            node.run("ip", "addr", "add", f"{ipv4}/24", "dev", DEVICE)
            node.run("ip", "addr", "add", f"fd00:198:18:77::{ipv6}/64", "dev", DEVICE, "nodad")
            node.run("ethtool", "-K", DEVICE, "tso", "off", "gso", "off", "gro", "off", "tx", "off")
            node.run("ip", "link", "set", DEVICE, "up")
            self._macs.append(node.run("ip", "-o", "link", "show", DEVICE).split("link/ether ")[1].split()[0])
        for address in PROBER_ADDRESSES:
            server.run("ip", "neigh", "replace", address, "lladdr", self._macs[0], "dev", DEVICE, "nud", "permanent")

    def _add(self, window: int) -> None:
        """An address whose route to the prober has this window."""
        table = str(1_000 + window)
        for family, address, to in (
            ("-4", server_address(window), "198.18.77.0/24"),
            ("-6", server_address6(window), "fd00:198:18:77::/64"),
        ):
            length = "32" if family == "-4" else "128"
            nodad = ("nodad",) if family == "-6" else ()
            self.server.run("ip", family, "addr", "add", f"{address}/{length}", "dev", DEVICE, *nodad)
            self.server.run(
                "ip",
                family,
                "route",
                "add",
                to,
                "dev",
                DEVICE,
                "table",
                table,
                "initcwnd",
                str(window),
                "congctl",
                "cubic",
            )
            self.server.run("ip", family, "rule", "add", "from", address, "table", table)

    def _serve(self) -> None:
        site = self.folder / "site"
        site.mkdir(parents=True)
        (site / "big").write_bytes(b"x" * 1_000_000)
        (site / "small").write_bytes(b"x" * 100)
        authority = trustme.CA()
        certificate = authority.issue_cert("iw.test")
        pem, key = self.folder / "cert.pem", self.folder / "key.pem"
        certificate.private_key_pem.write_to_path(key)
        for blob in certificate.cert_chain_pems:
            blob.write_to_path(pem, append=True)
        files = (
            f"root * {site}\n file_server\n redir /away http://iw.test/here\n"
            ' header /away {\n  +Set-Cookie "a=1; Path=/"\n  +Set-Cookie "b=2"\n }'
        )
        (self.folder / "Caddyfile").write_text(
            f"{{\n admin off\n auto_https off\n}}\n:80 {{\n {files}\n}}\n:443 {{\n tls {pem} {key}\n {files}\n}}\n"
        )
        self._caddy = subprocess.Popen(
            [*self.server.enter, "caddy", "run", "--adapter", "caddyfile", "--config", str(self.folder / "Caddyfile")],
            stderr=subprocess.DEVNULL,
            env={"HOME": str(self.folder), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        )
        for _ in range(500):
            listening = self.server.run("ss", "-Hltn")
            if all(f"*:{port} " in listening for port in (80, 443)):
                return
            time.sleep(0.02)
        raise AssertionError("caddy does not listen")


def asked(world: IwWorld, requests: Sequence[ProbeRequest], *, arrivals: int = 0) -> list[ProbeReply]:
    """The prober's replies to requests, side by side."""

    async def work() -> list[ProbeReply]:
        async with ProberPool(prober(world.attachment, arrivals=arrivals), world.client.start) as probers:
            return list(await asyncio.gather(*map(probers.ask, requests)))

    return asyncio.run(work())
