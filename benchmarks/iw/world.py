"""Two namespaces joined by veth: nginx at every address of 198.19.0.0/16, HTTP and TLS, and room for a prober.

Servers in 198.19.100.0/24 have an initial window of 100 segments, the others the kernel's 10. Those in 198.19.101.0/24
answer any request over HTTP with `EXACT_BYTES`, head included, and close.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import trustme

from survey.iw.probers import Attachment
from tests.lab._iw_world import DEVICE, PROBER_ADDRESSES, Node

FILE = "/file"
"""Of 20,000 bytes; `/` is the same."""

EXACT_BYTES = 640
"""Ten segments at an MSS of 64; of three digits without the head, as the first body."""

NGINX = r"""
daemon off; pid {folder}/pid; error_log /dev/null crit; worker_processes 1; worker_rlimit_nofile 65536;
events {{ worker_connections 30000; multi_accept on; }}
http {{ access_log off; client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
 uwsgi_temp_path {folder}; scgi_temp_path {folder};
 server {{ listen 80 backlog=20000; listen 443 ssl backlog=20000; root {folder}; index file;
  ssl_certificate {folder}/certificate; ssl_certificate_key {folder}/key; }}
 server {{ listen 80; server_name ~^198\.19\.101\.; keepalive_timeout 0; location / {{ return 200 {body}; }} }} }}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The prober's namespace, and how it is attached."""

    client: Node
    attachment: Attachment
    client_mac: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What a tool says about a server."""

    segments: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What a tool says about several servers."""

    windows: Mapping[str, Window]
    """Of the addresses for which it gives one, without saying that it is not sure."""
    replies: int
    took_s: float

    def right(self, hosts: Sequence[str], segments: int | None) -> int:
        """How many of these servers have this window by the tool; None: no window is right."""
        return sum((self.windows[host].segments if host in self.windows else None) == segments for host in hosts)


@contextmanager
def open_world() -> Iterator[World]:
    """Builds it; needs root."""
    os.environ.setdefault("UPSHIFT_ALLOWED_PREFIXES", "198.18.0.0/15")
    client, server = Node(), Node()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / FILE[1:]).write_bytes(b"x" * 20_000)
        certificate = trustme.CA().issue_cert("iw.test", key_type=trustme.KeyType.RSA)
        certificate.private_key_pem.write_to_path(folder / "key")
        certificate.cert_chain_pems[0].write_to_path(folder / "certificate")
        conf = folder / "conf"
        conf.write_text(NGINX.format(folder=folder, body="x" * 300))
        try:
            world = _connected(client, server)
            nginx = subprocess.Popen([*server.enter, "nginx", "-c", str(conf)])
            try:
                while ":443 " not in server.run("ss", "-Hltn"):
                    time.sleep(0.05)
                spare = EXACT_BYTES - _exact_bytes(server)
                conf.write_text(NGINX.format(folder=folder, body="x" * (300 + spare)))
                nginx.send_signal(signal.SIGHUP)
                while _exact_bytes(server) != EXACT_BYTES:
                    time.sleep(0.05)
                yield world
            finally:
                nginx.terminate()
                nginx.wait()
        finally:
            client.close()
            server.close()


def _exact_bytes(server: Node) -> int:
    """Length of the answer from 198.19.101.0/24."""
    return int(server.run("sh", "-c", "curl -s -i -H 'Host: 198.19.101.1' http://127.0.0.1/ | wc -c"))


def _connected(client: Node, server: Node) -> World:
    client.run("ip", "link", "add", DEVICE, "type", "veth", "peer", DEVICE, "netns", str(server.holder.pid))
    macs = []
    for node, address in ((client, "198.18.77.1"), (server, "198.18.77.2")):
        node.run("ip", "addr", "add", f"{address}/24", "dev", DEVICE)
        node.run("ethtool", "-K", DEVICE, "tso", "off", "gso", "off", "gro", "off", "tx", "off")
        node.run("ip", "link", "set", DEVICE, "up", "txqueuelen", "20000")
        macs.append(node.run("ip", "-o", "link", "show", DEVICE).split("link/ether ")[1].split()[0])
    server.run("ip", "neigh", "replace", PROBER_ADDRESSES[0], "lladdr", macs[0], "dev", DEVICE, "nud", "permanent")
    server.run("ip", "route", "add", "local", "198.19.0.0/16", "dev", "lo")
    server.run("ip", "route", "add", "198.18.77.0/24", "dev", DEVICE, "table", "100", "initcwnd", "100")
    server.run("ip", "rule", "add", "from", "198.19.100.0/24", "table", "100")
    server.run("sysctl", "-qw", "net.ipv4.tcp_max_syn_backlog=20000", "net.core.somaxconn=20000")
    attachment = Attachment(device=DEVICE, addresses=PROBER_ADDRESSES[:1], next_hop=macs[1])
    return World(client=client, attachment=attachment, client_mac=macs[0])
