"""The targets of a lab, which its topology tells before it is up."""

from __future__ import annotations

from upshift.domain import Target
from vantage.lab.addresses import address_plan
from vantage.lab.roles import speaks_quic
from vantage.lab.topology import Topology


def targets_of(topology: Topology, *, faults: bool = False) -> list[Target]:
    """The first file of each domain, with its true size; of servers with a fault only with `faults`."""
    addresses = address_plan(topology)
    found: list[Target] = []
    for server in topology.server:
        if server.fault is not None and not faults:
            continue
        organisation, file = topology.organisation_of(server), server.files[0]
        for domain in server.domains:
            found.append(
                Target(
                    domain=domain,
                    url=f"https://{domain}{file.path}",
                    provider=organisation.provider,
                    rank=len(found) + 1,
                    size_bytes=file.size_bytes,
                    server_ip=addresses[server.name].ipv4,
                    asn=organisation.asn,
                    organisation=organisation.title,
                    quic=speaks_quic(topology, server),
                )
            )
    return found
