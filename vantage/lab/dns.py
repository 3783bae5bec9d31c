"""The lab's DNS: Knot with a single zone, the root, so that all other names are NXDOMAIN."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path

from vantage.lab import sites
from vantage.lab.addresses import Addresses, window_addresses
from vantage.lab.roles import roles
from vantage.lab.topology import DNS_NODE, Server, Topology
from vantage.server_kind import ServerRole

TTL_S = 30


def zone(topology: Topology, addresses: Mapping[str, Addresses]) -> str:
    """The zone file."""
    own, windows = addresses[DNS_NODE], window_addresses(topology)
    lines = [
        f"$TTL {TTL_S}",
        ". IN SOA ns.lab. hostmaster.lab. 1 3600 600 86400 30",
        ". IN NS ns.lab.",
        f"ns.lab. IN A {own.ipv4}",
        f"ns.lab. IN AAAA {own.ipv6}",
    ]
    for server in topology.server:
        alpn = https_alpn(topology, server)
        lines += _aliases(server)
        for name in server.cnames[-1:] or server.domains:
            lines += _records(name, server, addresses[server.name], alpn)
        for name, window in server.window_names.items():
            lines += _records(name, server, windows[server.name][window], "")
        for host in sites.hosts_of(topology, server):
            lines += _records(host.name, server, addresses[server.name], alpn)
    private = [host.name for host in sites.hosts(topology) if host.server is None]
    lines += [f"{name}. IN A {sites.PRIVATE_ADDRESS}" for name in private]
    return "\n".join(lines) + "\n"


def https_alpn(topology: Topology, server: Server) -> str:
    """ALPN IDs in the HTTPS record of the server's names; empty: no such record."""
    filled = roles(topology, server)
    listed = filled[ServerRole.WEB].https_alpn
    quic = ServerRole.QUIC in filled or server.pretends_quic
    return ",".join(("h3", *listed) if quic and listed else listed)


def _aliases(server: Server) -> list[str]:
    """The chain from each domain to the name with the addresses."""
    aliases = server.cnames
    lines = [f"{domain}. IN CNAME {aliases[0]}." for domain in server.domains if aliases]
    return lines + [f"{name}. IN CNAME {after}." for name, after in itertools.pairwise(aliases)]


def _records(name: str, server: Server, addresses: Addresses, alpn: str) -> list[str]:
    lines = [f"{name}. IN A {addresses.ipv4}"]
    hints = f"ipv4hint={addresses.ipv4}"
    if server.ipv6:
        lines.append(f"{name}. IN AAAA {addresses.ipv6}")
        hints += f" ipv6hint={addresses.ipv6}"
    if alpn:
        lines.append(f"{name}. IN HTTPS 1 . alpn={alpn} {hints}")
    return lines


def knot_configuration(folder: Path, addresses: Addresses, *, ipv6: bool) -> str:
    """knotd's configuration; `folder` holds the zone file `root.zone` and everything that knotd writes."""
    listen = [addresses.ipv4, *([addresses.ipv6] if ipv6 else [])]
    return f"""server:
    rundir: "{folder}"
    listen: [{", ".join(f'"{address}@53"' for address in listen)}]
    udp-workers: 1
    tcp-workers: 1
    background-workers: 1
    version: ""
    identity: ""
database:
    storage: "{folder}"
    journal-db-max-size: 1M
log:
  - target: stderr
    any: warning
template:
  - id: default
    storage: "{folder}"
    zonefile-sync: -1
    journal-content: none
    semantic-checks: off
zone:
  - domain: "."
    file: "{folder}/root.zone"
"""


def resolv_conf(addresses: Addresses) -> str:
    """/etc/resolv.conf of programs in the lab."""
    return f"nameserver {addresses.ipv4}\noptions timeout:2 attempts:3\n"
