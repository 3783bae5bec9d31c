"""What a topology tells of its lab before it is up: the targets, and the document `lab.json` (docs/design/house.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from core.domain import Target
from vantage.lab.addresses import Addresses, address_plan, populations, prober_addresses, window_addresses
from vantage.lab.roles import (
    quic_congestion_control,
    quic_server,
    quic_stream_buffer,
    quic_traits,
    roles,
)
from vantage.lab.topology import MTU, Server, Topology
from vantage.server_kind import ServerRole

SCHEMA = 1


def document(
    topology: Topology,
    addresses: Mapping[str, Addresses],
    *,
    timing: Mapping[str, object],
    versions: Mapping[str, str | None] | None = None,
) -> dict[str, Any]:
    """The document.

    Args:
        addresses: node -> its addresses.
        timing: how the lab keeps time.
        versions: server kind -> the version of its program, if it is known.
    """
    windows = window_addresses(topology)
    paths = []
    for vantage in topology.vantage:
        for server in topology.server:
            for domain in server.domains:
                paths.append(_path(topology, vantage.name, server, domain, addresses[server.name]))
            for domain, window in server.window_names.items():
                own = windows[server.name][window]
                paths.append(_path(topology, vantage.name, server, domain, own, initcwnd=window))
    return {
        "schema": SCHEMA,
        "topology": topology.name,
        "timing": timing,
        "probers": {name: asdict(own) for name, own in prober_addresses(topology).items()},
        "populations": [asdict(population) for population in populations(topology)],
        "paths": [path | _version(path, versions or {}) for path in paths],
    }


def _path(
    topology: Topology, vantage: str, server: Server, domain: str, own: Addresses, *, initcwnd: int | None = None
) -> dict[str, Any]:
    """One path; `initcwnd` is that of an address for another window."""
    path = server.paths[vantage]
    packets = initcwnd or path.initcwnd or server.initcwnd
    kinds = roles(topology, server)
    web = kinds[ServerRole.WEB]
    flight = _first_flight(server, server.files[0].send.first or path.first or web.initial_window_bytes, packets)
    is_route = flight["initial_window_unit"] == "segments" and not web.own_stack
    return {
        "vantage": vantage,
        "domain": domain,
        "server": server.name,
        "addresses": asdict(own),
        "provider": topology.organisation_of(server).provider,
        "rtt_ms": path.rtt_ms,
        "rate_mbit": path.rate_mbit,
        "queue_bytes": path.queue_bytes,
        "loss": path.loss_percent / 100,
        "drop": list(path.drop),
        "packets_per_rtt": path.packets_per_rtt,
        "ecn_threshold_bytes": path.ecn_threshold_bytes,
        "rewrites": list(path.rewrites),
        "initcwnd": packets if is_route else None,
        "congestion_control": None if web.own_stack else server.files[0].send.cc or server.congestion_control,
        **flight,
        "mtu": MTU,
        "edge": server.edge is not None,
        "clean": path.clean and server.fault is None and server.body is None,
        **(_quic(topology, server) if ServerRole.QUIC in kinds and initcwnd is None else {"quic": False}),
        "note": server.note,
    }


def _version(path: Mapping[str, Any], versions: Mapping[str, str | None]) -> dict[str, Any]:
    return {"quic_server_version": versions.get(path["quic_server"])} if path["quic"] else {}


def _first_flight(server: Server, first: int | str | None, packets: int) -> dict[str, Any]:
    """What the server sends of its first file before the first ACK (`first`: bytes, or `rfc3390`), and whether it
    paces."""
    send = server.files[0].send
    unit = "segments" if first is None else "rfc3390" if first == "rfc3390" else "bytes"
    return {
        "initial_window": packets if unit == "segments" else None if unit == "rfc3390" else first,
        "initial_window_unit": unit,
        "pacing": "burst" if send.pace is None else "paced",
        "spread_rtt": send.pace if isinstance(send.pace, float | int) else None,
    }


def _quic(topology: Topology, server: Server) -> dict[str, Any]:
    traits = quic_traits(topology, server)
    return {
        "quic": True,
        "quic_server": quic_server(topology, server),
        "quic_congestion_control": quic_congestion_control(topology, server),
        "quic_initial_window_packets": traits.initial_window_packets,
        "quic_packet_bytes": traits.packet_bytes,
        "quic_stream_buffer_bytes": quic_stream_buffer(topology, server),
    }


def targets_of(topology: Topology, *, faults: bool = False) -> list[Target]:
    """The first file of each domain, with its true size; of servers with a fault only with `faults`.

    The names of a server's other windows are targets, too; they have no QUIC.
    """
    addresses, windows = address_plan(topology), window_addresses(topology)
    targets: list[Target] = []
    for server in topology.server:
        if server.fault is not None and not faults:
            continue
        kinds = roles(topology, server)
        scheme, speaks_quic = "https" if kinds[ServerRole.WEB].tls else "http", ServerRole.QUIC in kinds
        named = [(domain, addresses[server.name], speaks_quic) for domain in server.domains]
        named += [(name, windows[server.name][window], False) for name, window in server.window_names.items()]
        for domain, own, quic in named:
            organisation, file = topology.organisation_of(server), server.files[0]
            targets.append(
                Target(
                    domain=domain,
                    url=f"{scheme}://{domain}{file.target}",
                    provider=organisation.provider,
                    rank=len(targets) + 1,
                    size_bytes=file.size_bytes,
                    server_ip=own.ipv4,
                    asn=organisation.asn,
                    organisation=organisation.title,
                    quic=quic,
                )
            )
    return targets
