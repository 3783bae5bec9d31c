"""The type `ServerKind`: a web server that can be started here, and the roles that it can fill.

A `[[server]]` of a lab's topology has roles (TCP port 443, UDP port 443, and at an edge the cache and its origin), and
each role is filled by a kind; one kind may fill several with one program, as Caddy does. `vantage.lab.roles` decides
which fills which. The doctor measures clients against the same kinds (`vantage.doctor.ceilings`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Literal

import vantage.programs
from core.errors import PlaceError
from core.files.config import Strict
from core.system.process import find_program, refuse_debug_build, require

CACHE_PORT = 8080
"""TCP port of an edge's cache, on the loopback of the edge's node."""

ORIGIN_PORT = 80
ORIGIN_SUFFIX = "-origin"
"""Ends the name of an origin's node, which begins with the name of its edge."""

MEDIA_TYPES = {
    "bin": "application/octet-stream",
    "html": "text/html; charset=utf-8",
    "iso": "application/x-iso9660-image",
    "jpg": "image/jpeg",
    "js": "text/javascript; charset=utf-8",
    "mp4": "video/mp4",
    "pdf": "application/pdf",
    "png": "image/png",
    "txt": "text/plain; charset=utf-8",
    "zip": "application/zip",
}
"""File extension -> Content-Type, for all servers: their own tables differ, even from host to host."""


class ServerRole(StrEnum):
    """A part of what a `[[server]]` does."""

    WEB = "web"
    """HTTP/1.1, and 2 where it has TLS, on TCP port 443 or 80."""
    QUIC = "quic"
    """HTTP/3 on UDP port 443."""
    CACHE = "cache"
    """The cache of an edge, on loopback."""
    ORIGIN = "origin"
    """The origin behind an edge, on its own node."""


class Need(StrEnum):
    """What a `[[server]]` may need that an ordinary web server cannot do."""

    FAULT = "fault"
    """Each download fails in a given way."""
    ANSWERS = "answers"
    """Some answers need our own program (`SiteAnswer.needs_site_server`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteAnswer(Strict):
    """What a server answers to GET and HEAD of one path."""

    status: int = 200
    text: str = ""
    """The body: a page, or robots.txt."""
    links: Sequence[str] = ()
    """Instead of a text: a page with these links (`vantage.lab.site_kinds.page`)."""
    size: int | None = None
    """Instead of a text: a file of this many zero bytes (sparse, no disk space)."""
    location: str | None = None
    """Where a redirect leads: absolute, or a path."""
    head: bool = True
    """False: HEAD is answered with 405."""
    length: bool = True
    """False: no Content-Length, the body is chunked."""
    delay_s: float = 0.0
    """Time until the answer begins [s]."""
    fault: Literal["reset", "nonsense", "hang"] | None = None
    """Instead of an answer: a TCP reset, bytes that are not HTTP, or no answer."""

    @property
    def needs_site_server(self) -> bool:
        """Whether Caddy cannot give this answer, so that our own program must (`vantage/programs/site_server.py`)."""
        return not self.length or self.delay_s > 0 or self.fault is not None

    @property
    def is_file(self) -> bool:
        """Whether Caddy serves it as a file, to which all answers below it would be files in a file."""
        return self.status == 200 and self.location is None


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteHost:
    """A name of a site."""

    name: str
    server: str | None
    """None: the name has a private address, and no server."""
    answers: Mapping[str, SiteAnswer]
    """Path -> answer; other paths do not exist."""
    certificate: bool = True
    """False: the certificate is for another name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramPlan:
    """A server program to start."""

    name: str
    node: str
    argv: tuple[str, ...]
    tcp: tuple[tuple[str, int], ...] = ()
    """Addresses and ports that answer once it is ready."""
    udp: tuple[int, ...] = ()
    """Ports that are bound once it is ready."""
    env: Mapping[str, str] = field(default_factory=dict)


def _nothing_missing() -> str | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuicTraits:
    """Properties of a QUIC server: written to `lab.json`, where the truth check reads them."""

    congestion_control: tuple[str, ...]
    """The algorithms that it can use, the default first."""
    initial_window_packets: int
    packet_bytes: int
    """Size of its full packets on IPv4, with IP and UDP headers."""
    stream_buffer_bytes: int | None = None
    """The most that it sends of an answer per round trip, if a topology can set that; the default."""
    has_sites: bool = True
    """Whether it serves the sites of its server, too."""
    missing: Callable[[], str | None] = _nothing_missing
    """A sentence if its kind can be started here, but not with QUIC."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """How an application that is slower than the path hands out a body."""

    chunk_bytes: int
    every_s: float
    """Time between two pieces [s]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSetup:
    """Everything that a kind needs to plan the programs of one server."""

    name: str
    """The server's name, which is also that of its node and of its certificate."""
    roles: frozenset[ServerRole]
    """Those that the kind fills on this server."""
    folder: Path
    """Folder for the files of its programs."""
    content: Path
    """Folder of the files that are served."""
    certificates: Path
    """Folder with NAME.pem and NAME.key, for the server and each host of a site."""
    domains: Sequence[str]
    """The names that are measured; none if the server has sites only."""
    ipv4: str
    ipv6: str | None = None
    """None if this machine has no IPv6."""
    device: str = ""
    """The network interface of the node, for a kind with a TCP of its own."""
    cnames: Sequence[str] = ()
    """Aliases of the domains."""
    window_names: Sequence[str] = ()
    """Names of its addresses with other initial windows, over TCP only."""
    plain_http: bool = False
    """Port 80 serves the files too, instead of leading to HTTPS."""
    advertises_quic: bool = False
    """Responses over TCP advertise HTTP/3 (Alt-Svc), which may be provided by another program."""
    congestion_control: str = ""
    """The algorithm of its QUIC."""
    stream_buffer_bytes: int | None = None
    """The most that its QUIC sends of an answer per round trip; None: no limit of its own."""
    origin: str | None = None
    """IPv4 address of the origin behind an edge; None for a server that is no edge."""
    hosts: Sequence[SiteHost] = ()
    """Hosts of sites that the server has."""
    sites: Path = Path()
    """Folder with the files of sites, a folder per host."""
    access_log: Path = Path()
    """File for one line per request to a site, in Caddy's format."""
    fault: str | None = None
    """How each download fails."""
    pieces: Pieces | None = None
    """How bodies are handed out; None: as fast as the transport takes them."""
    first_bytes: Mapping[str, int] = field(default_factory=dict)
    """Prefix of clients -> initial window towards them [bytes], for a kind that can set one."""

    def data(self, program: str) -> Path:
        """The folder for the files of one program; created if missing."""
        path = self.folder / program
        path.mkdir(parents=True, exist_ok=True)
        return path

    @property
    def certificate_names(self) -> list[str]:
        """What the server needs certificates for: its measured domains together, and each host of a site."""
        return ([self.name] if self.domains else []) + [host.name for host in self.hosts]

    def certificate(self, name: str) -> tuple[Path, Path]:
        """Certificate chain and key of a server (its measured domains) or of a host of a site."""
        return self.certificates / f"{name}.pem", self.certificates / f"{name}.key"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerKind:
    """A kind of server program."""

    name: str
    help: str
    roles: frozenset[ServerRole]
    """Those that it can fill."""
    programs: Callable[[ServerSetup], Sequence[ProgramPlan]]
    """Writes the files of the programs that fill `ServerSetup.roles`, and plans the programs."""
    missing: Callable[[], str | None] = _nothing_missing
    """A sentence if something that the programs need is not installed."""
    version: Callable[[], tuple[str, ...]] | None = None
    """The command line that prints the program's version; None if the program is part of Upshift."""
    meets: frozenset[Need] = frozenset()
    """A server with one of these needs is of this kind: it fills the role WEB, and the server has no other roles."""
    can_be_chosen: bool = False
    """Whether a topology may name it as `web_server`."""
    tls: bool = True
    """Its WEB role has HTTPS on port 443; False: HTTP on port 80 only, and the server has no QUIC."""
    initial_window_bytes: int | None = None
    """Initial window of a kind with a TCP of its own [bytes]; None: the kernel's TCP. Such a kind answers for the
    server's addresses itself, so the node's kernel does not get them."""
    https_alpn: tuple[str, ...] = ()
    """ALPN IDs for TCP in the HTTPS record of its names; empty: no such record."""
    quic: QuicTraits | None = None
    """Needed for the role QUIC."""

    @property
    def own_stack(self) -> bool:
        """Whether its TCP is not the kernel's."""
        return self.initial_window_bytes is not None


def program_missing(program: str, *, package: str) -> Callable[[], str | None]:
    """A `ServerKind.missing`: the sentence of `core.system.process.require`."""

    def missing() -> str | None:
        try:
            require(program, package=package)
        except PlaceError as error:
            return error.sentence()
        return None

    return missing


def binary_missing(program: str, *, title: str) -> Callable[[], str | None]:
    """A `ServerKind.missing` of one of our own binaries; `title` names it in a sentence."""

    def missing() -> str | None:
        path = find_program(program)
        if path is None:
            return f"{title} is not installed; run: make setup"
        return refuse_debug_build(title, path)

    return missing


def python_program(script: str, *arguments: object) -> tuple[str, ...]:
    """Command line of one of our own server programs in `vantage/programs`."""
    path = Path(vantage.programs.__file__ or "").with_name(script)
    return (sys.executable, "-I", str(path), *map(str, arguments))
