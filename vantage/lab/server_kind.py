"""The type `ServerKind`: a server program that the lab can start, and the roles that it can fill.

A `[[server]]` of a topology has roles (TCP port 443, UDP port 443, and at an edge the cache and its origin), and each
role is filled by a kind; one kind may fill several with one program, as Caddy does. `roles` decides which fills which.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from core.errors import PlaceError, use_one_of
from core.system.process import require
from vantage.lab.addresses import Addresses
from vantage.lab.plan import ProgramPlan
from vantage.lab.sites.sites import Host
from vantage.lab.state import LabFolder
from vantage.lab.topology import Server, Topology

CACHE_PORT = 8080
"""Of an edge's cache, on the loopback of the edge's node."""

ORIGIN_PORT = 80


class Role(StrEnum):
    """A part of what a `[[server]]` does."""

    WEB = "web"
    """HTTP/1.1, and 2 where it has TLS, on TCP port 443 or 80."""
    QUIC = "quic"
    """HTTP/3 on UDP port 443."""
    CACHE = "cache"
    """The cache of an edge, on loopback."""
    ORIGIN = "origin"
    """The origin behind an edge, on its own node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramSetting:
    """A setting that a server program reads for each new connection: one of several words, or a whole number."""

    choices: tuple[str, ...] = ()
    least: int = 1
    most: int = 1

    def fault(self, value: str) -> str | None:
        """Why the value is not valid, as the end of a sentence; None if it is."""
        if self.choices:
            return None if value in self.choices else use_one_of(value, self.choices)
        good = value.isdecimal() and self.least <= int(value) <= self.most
        return None if good else f"use a whole number from {self.least} to {self.most}"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuicTraits:
    """Properties of a QUIC server: written to `lab.json`, where the truth check reads them."""

    congestion_control: tuple[str, ...]
    """The algorithms that it can use, the default first."""
    initial_window_packets: int
    packet_bytes: int
    """Size of its full packets on IPv4, with IP and UDP headers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSetup:
    """Everything that a kind needs to plan the programs of one `[[server]]`."""

    topology: Topology
    server: Server
    roles: frozenset[Role]
    """Those that the kind fills on this server."""
    advertises_quic: bool
    """Responses over TCP advertise HTTP/3 (Alt-Svc), which may be provided by another program."""
    congestion_control: str
    """Of QUIC."""
    addresses: Addresses
    origin: Addresses | None
    """Of an edge's origin."""
    hosts: Sequence[Host]
    """Hosts of sites that the server has."""
    folder: LabFolder
    ipv6: bool
    """Whether this machine has IPv6."""

    def data(self, program: str) -> Path:
        """The folder for the files of one program; created if missing."""
        path = self.folder.root / "servers" / program
        path.mkdir(parents=True, exist_ok=True)
        return path

    @property
    def content(self) -> Path:
        """Folder of the measured files."""
        return self.folder.content / self.server.name

    @property
    def certificate_names(self) -> list[str]:
        """What the server needs certificates for: its measured domains together, and each host of a site."""
        return ([self.server.name] if self.server.domains else []) + [host.name for host in self.hosts]

    @property
    def names(self) -> list[str]:
        """What the server is called: its measured domains, and those of its other windows."""
        return [*self.server.domains, *self.server.window_names]

    def certificate(self, name: str) -> tuple[Path, Path]:
        """Certificate chain and key of a server (its measured domains) or of a host of a site."""
        return self.folder.certificates / f"{name}.pem", self.folder.certificates / f"{name}.key"


def _nothing_missing() -> str | None:
    return None


def _never(topology: Topology, server: Server) -> bool:  # noqa: ARG001 - the type is `claims`'s
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerKind:
    """A kind of server program."""

    name: str
    help: str
    roles: frozenset[Role]
    """Those that it can fill."""
    programs: Callable[[ServerSetup], Sequence[ProgramPlan]]
    """Writes the files of the programs that fill `ServerSetup.roles`, and plans the programs."""
    missing: Callable[[], str | None] = _nothing_missing
    """A sentence if something that the programs need is not installed."""
    version: Callable[[], tuple[str, ...]] | None = None
    """The command line that prints the program's version; None if the program is part of Upshift."""
    claims: Callable[[Topology, Server], bool] = _never
    """Whether a server must be of this kind: then it fills the role WEB, and the server has no other roles."""
    can_be_chosen: bool = False
    """Whether a topology may name it as `web_server`."""
    tls: bool = True
    """Its WEB role has HTTPS on port 443; False: HTTP on port 80 only, and the server has no QUIC."""
    initial_window_bytes: int | None = None
    """Of a kind with a TCP of its own. It answers for the server's addresses itself, so the node's kernel does not get
    them. None: the kernel's TCP."""
    https_alpn: tuple[str, ...] = ()
    """ALPN IDs for TCP in the HTTPS record of its names; empty: no such record."""
    quic: QuicTraits | None = None
    """Needed for the role QUIC."""
    settings: Mapping[str, ProgramSetting] = field(default_factory=dict)
    """What its program reads from `ProgramPlan.settings_file` for each new connection."""

    @property
    def own_stack(self) -> bool:
        """Whether its TCP is not the kernel's."""
        return self.initial_window_bytes is not None


def program_missing(program: str, *, package: str) -> Callable[[], str | None]:
    """For `ServerKind.missing`: the sentence of `core.system.process.require`."""

    def missing() -> str | None:
        try:
            require(program, package=package)
        except PlaceError as error:
            return error.sentence()
        return None

    return missing
