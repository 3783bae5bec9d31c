"""Which server kind fills which role of a server."""

from __future__ import annotations

from collections.abc import Mapping

from core.errors import UsageError, use_one_of
from core.files.disk import parse_size
from vantage.lab.sites import hosts_of, need_site_server
from vantage.lab.topology import Server, Topology
from vantage.server_kind import Need, QuicTraits, ServerKind, ServerRole
from vantage.servers import ALL

WEB = "caddy"
PACED = "paced"
"""Serves TCP where bodies are handed out slowly."""
CACHE = "nginx"
ORIGIN = "caddy"
DEFAULT_QUIC_SERVER = "quiche"
"""Provides QUIC if the topology names no `quic_server`. Its congestion control is that of the TCP servers (CUBIC), and
it answers a ClientHello in several datagrams at once, which Debian's Caddy does only after a probe timeout."""


def roles(topology: Topology, server: Server) -> Mapping[ServerRole, ServerKind]:
    """Role -> the kind that fills it, for every role of the server."""
    if claimant := _claimant(topology, server):
        return {ServerRole.WEB: claimant}
    web = ALL[web_server(server)]
    filled = {ServerRole.WEB: web}
    if server.quic and web.tls:
        filled[ServerRole.QUIC] = ALL[quic_server(topology, server)]
    if server.edge:
        filled |= {ServerRole.CACHE: ALL[CACHE], ServerRole.ORIGIN: ALL[ORIGIN]}
    return filled


def web_server(server: Server) -> str:
    """Name of the kind that provides TCP on a server that no kind claims."""
    return server.web_server or (PACED if server.body else WEB)


def _claimant(topology: Topology, server: Server) -> ServerKind | None:
    """The kind that the server must be of; None for an ordinary server."""
    needs = {Need.FAULT} if server.fault is not None else set()
    needs |= {Need.ANSWERS} if need_site_server(topology, server) else set()
    return next((kind for kind in ALL.values() if kind.meets & needs), None)


def speaks_quic(topology: Topology, server: Server) -> bool:
    """Whether the server provides HTTP/3."""
    return ServerRole.QUIC in roles(topology, server)


def quic_server(topology: Topology, server: Server) -> str:
    """Name of the kind that provides QUIC, by the fields of the server, else of the topology, else the default."""
    return server.quic_server or topology.quic_server or DEFAULT_QUIC_SERVER


def quic_traits(topology: Topology, server: Server) -> QuicTraits:
    """Properties of the server's QUIC. Raises LookupError if it has none."""
    traits = roles(topology, server)[ServerRole.QUIC].quic
    if traits is None:
        raise LookupError(f"{quic_server(topology, server)} fills the role QUIC but has no QuicTraits")
    return traits


def quic_congestion_control(topology: Topology, server: Server) -> str:
    """The congestion control of the server's QUIC; empty if it has no QUIC.

    The topology's algorithm goes with the topology's `quic_server`: a server that names its own has that kind's
    default.
    """
    if not speaks_quic(topology, server):
        return ""
    general = topology.quic_congestion_control if server.quic_server is None else None
    return server.quic_congestion_control or general or quic_traits(topology, server).congestion_control[0]


def quic_stream_buffer(topology: Topology, server: Server) -> int | None:
    """The most that the server's QUIC sends of an answer per round trip [bytes]; None: no limit of its own."""
    if server.quic_stream_buffer is not None:
        return parse_size(server.quic_stream_buffer)
    return quic_traits(topology, server).stream_buffer_bytes if speaks_quic(topology, server) else None


def check_web_servers(topology: Topology, *, where: str) -> None:
    """Raises UsageError for a web server that is unknown, or that the server cannot have."""
    known = [kind.name for kind in ALL.values() if ServerRole.WEB in kind.roles and kind.can_be_chosen]
    for server in topology.server:
        at = f"field server.{server.name}."
        if server.web_server is not None:
            if server.web_server not in known:
                what = f"{at}web_server: unknown web server {server.web_server!r}"
                raise UsageError(what, where=where, remedy=use_one_of(server.web_server, known))
            if server.body or server.edge or _claimant(topology, server):
                what = f"{at}web_server: the server is an edge, or has body, fault or such sites"
                raise UsageError(what, where=where, remedy="remove one of the two")
        kind = ALL[web_server(server)]
        if kind.name != WEB and _claimant(topology, server) is None and hosts_of(topology, server):
            field = "web_server" if server.web_server else "body"
            what = f"{at}{field}: {kind.name} has no sites, and {server.name} has"
            raise UsageError(what, where=where, remedy="put these sites on another server, or remove this field")
        if kind.own_stack and (ignored := _of_the_kernel(server)):
            what = f"{at}{ignored[0]}: {kind.name} has a TCP of its own, without this"
            raise UsageError(what, where=where, remedy="remove this field")


def _of_the_kernel(server: Server) -> list[str]:
    """The fields that the topology gives to the TCP of the node's kernel."""
    unset = Server(name=server.name, organisation=server.organisation, paths={})
    fields = ("initcwnd", "congestion_control", "without", "windows", "population")
    given = [field for field in fields if getattr(server, field) != getattr(unset, field)]
    return given + [f"paths.{name}.initcwnd" for name, path in server.paths.items() if path.initcwnd is not None]


def check_quic_servers(topology: Topology, *, where: str) -> None:
    """Raises UsageError for a QUIC server or algorithm that is unknown, or that the server cannot have."""
    _check_pair(topology.quic_server, topology.quic_congestion_control, at="", where=where)
    for server in topology.server:
        at = f"server.{server.name}."
        has_quic = server.quic and _claimant(topology, server) is None and ALL[web_server(server)].tls
        for field, given in (
            ("quic_server", server.quic_server),
            ("quic_congestion_control", server.quic_congestion_control),
            ("quic_stream_buffer", server.quic_stream_buffer),
        ):
            if given is not None and not has_quic:
                what = f"field {at}{field}: the server has no QUIC"
                raise UsageError(what, where=where, remedy="remove this field")
        name = quic_server(topology, server)
        _check_pair(server.quic_server, server.quic_congestion_control, at=at, where=where, default=name)
        if not has_quic:
            continue
        traits = quic_traits(topology, server)
        if server.quic_stream_buffer is not None and traits.stream_buffer_bytes is None:
            able = [k.name for k in ALL.values() if k.quic and k.quic.stream_buffer_bytes is not None]
            what = f"field {at}quic_stream_buffer: {name} has no such setting"
            raise UsageError(what, where=where, remedy=f"remove this field, or add quic_server = {able[0]!r}")
        if not traits.has_sites and hosts_of(topology, server):
            what = f"field {at if server.quic_server else ''}quic_server: {name} has no sites, and {server.name} has"
            raise UsageError(what, where=where, remedy="put these sites on another server, or choose another kind")


def check_quic_here(topology: Topology, *, where: str) -> None:
    """Raises UsageError for a QUIC server that this machine has only without QUIC."""
    for server in topology.server:
        if speaks_quic(topology, server) and (missing := quic_traits(topology, server).missing()):
            at = f"server.{server.name}." if server.quic_server else ""
            raise UsageError(f"field {at}quic_server: {missing}", where=where)


def _check_pair(
    name: str | None, algorithm: str | None, *, at: str, where: str, default: str = DEFAULT_QUIC_SERVER
) -> None:
    known = {kind.name: kind.quic for kind in ALL.values() if kind.quic is not None}
    if name is not None and name not in known:
        what = f"field {at}quic_server: unknown QUIC server {name!r}"
        raise UsageError(what, where=where, remedy=use_one_of(name, known))
    chosen = name or default
    if algorithm is not None and algorithm not in known[chosen].congestion_control:
        *others, last = known[chosen].congestion_control
        remedy = f"{chosen} has {', '.join(others)} and {last}" if others else f"{chosen} has {last} only"
        what = f"field {at}quic_congestion_control: {chosen} does not support {algorithm!r}"
        raise UsageError(what, where=where, remedy=remedy)
