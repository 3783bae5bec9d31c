"""Two namespaces joined by veth: nginx at every address of 198.19.0.0/16, and room for a prober.

Servers in 198.19.100.0/24 have an initial window of 100 segments, the others the kernel's 10.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from survey.iw.program import Attachment
from tests.lab._iw_world import DEVICE, PROBER_ADDRESSES, Node

FILE = "/file"
"""Of 20,000 bytes."""

NGINX = """
daemon off; pid {folder}/pid; error_log /dev/null crit; worker_processes 1; worker_rlimit_nofile 65536;
events {{ worker_connections 30000; multi_accept on; }}
http {{ access_log off; client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
 uwsgi_temp_path {folder}; scgi_temp_path {folder};
 server {{ listen 80 backlog=20000; root {folder}; }} }}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The prober's namespace, and how it is attached."""

    client: Node
    attachment: Attachment
    client_mac: str


@contextmanager
def open_world() -> Iterator[World]:
    """Builds it; needs root."""
    os.environ.setdefault("UPSHIFT_ALLOWED_PREFIXES", "198.18.0.0/15")
    client, server = Node(), Node()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / FILE[1:]).write_bytes(b"x" * 20_000)
        (folder / "conf").write_text(NGINX.format(folder=folder))
        try:
            world = _connected(client, server)
            nginx = subprocess.Popen([*server.enter, "nginx", "-c", str(folder / "conf")])
            try:
                while ":80 " not in server.run("ss", "-Hltn"):
                    time.sleep(0.05)
                yield world
            finally:
                nginx.terminate()
                nginx.wait()
        finally:
            client.close()
            server.close()


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
