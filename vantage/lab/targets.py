"""The targets of a lab, which its topology tells before it is up."""

from __future__ import annotations

from core.domain import Target
from vantage.lab.addresses import address_plan, window_addresses
from vantage.lab.roles import roles, speaks_quic
from vantage.lab.server_kind import Role
from vantage.lab.topology import Server, Topology


def targets_of(topology: Topology, *, faults: bool = False) -> list[Target]:
    """The first file of each domain, with its true size; of servers with a fault only with `faults`.

    The names of a server's other windows are targets, too; they have no QUIC.
    """
    addresses, windows = address_plan(topology), window_addresses(topology)
    found: list[Target] = []
    for server in topology.server:
        if server.fault is not None and not faults:
            continue
        named = [(domain, addresses[server.name], speaks_quic(topology, server)) for domain in server.domains]
        named += [(name, windows[server.name][window], False) for name, window in server.window_names.items()]
        for domain, own, quic in named:
            found.append(_target(topology, server, domain, own.ipv4, rank=len(found) + 1, quic=quic))
    return found


def _target(topology: Topology, server: Server, domain: str, address: str, *, rank: int, quic: bool) -> Target:
    organisation, file = topology.organisation_of(server), server.files[0]
    scheme = "https" if roles(topology, server)[Role.WEB].tls else "http"
    return Target(
        domain=domain,
        url=f"{scheme}://{domain}{file.target}",
        provider=organisation.provider,
        rank=rank,
        size_bytes=file.size_bytes,
        server_ip=address,
        asn=organisation.asn,
        organisation=organisation.title,
        quic=quic,
    )
