"""Protocol Place: where a program runs. Stages get a Place from `upshift`; `vantage` implements it.

A place runs programs, applies kernel settings in its own network namespace, and says where to capture and which
prefixes may be contacted from it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Unpack

from core.domain import Disturbance, Setting, Transport
from core.reach import IPNetwork
from core.system.process import Child, Completed, Pipes


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowCount:
    """The path emulator's packet counts for one connection, both directions together."""

    sent: int
    received: int
    dropped: int
    """Programmed drops only: seeded loss, full queue, AQM."""
    marked: int
    server_end: Mapping[str, Any] | None = None
    """Data of a TCP connection from the server's end of the path; None if unknown. Keys: `syn` and `synack`
    (None if there was none), each with `ecn`, `sack`, `window_scale`, `timestamps`, `mss` [B] and `window` [B];
    `ecn_sent`: packets that left the server with ECT or CE; `ce_set`: packets that the path marked CE."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suitability:
    """Whether the place was suitable for measuring during one measurement run."""

    disturbed: Disturbance | None
    """Why the run is void, or None if it is valid."""
    lateness_p99_ms: float | None
    flows: Mapping[tuple[str, int], FlowCount]
    """(transport `tcp` or `quic`, local port) -> counts; empty if the place has no counters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prober:
    """What a raw-socket prober sends from. The place's kernel does not answer for it."""

    ipv4: str
    ipv6: str | None
    """None: the place has no IPv6."""
    device: str
    neighbour: str | None
    """MAC address of the next hop; None if the device has no link-layer header (TUN)."""
    ports: tuple[int, int] | None = None
    """First and last source port to use; None: all ports, as the addresses are the prober's alone."""


class Program(Protocol):
    """A download program, as used by `upshift doctor`; it follows the clients' contract (docs/design/house.md)."""

    @property
    def name(self) -> str:
        """The client's name, e.g. quiche."""

    @property
    def transport(self) -> Transport:
        """What it downloads over."""

    @property
    def http(self) -> str | None:
        """The HTTP version that it is for: 1.1, 2 or 3; None: any of its transport."""

    @property
    def family(self) -> str:
        """What it shares program and libraries with."""

    def missing(self) -> str | None:
        """Why it cannot run here, as one sentence; None if it can."""

    def versions(self) -> Mapping[str, str | None]:
        """Packages that it is made of -> installed version; None for one that is missing."""

    def command(self) -> tuple[str, ...]:
        """How to start it, without its arguments. Raises PlaceError if it is missing."""


class Watch(Protocol):
    """Watches a place during one measurement run."""

    def settle(self) -> None:
        """Returns when no packet of the watched path is in flight any more, or after a bounded time."""

    def finish(self) -> Suitability:
        """Ends the watch and returns the verdict. Call `settle` first."""


class Place(Protocol):
    """Where downloads run. Each is its own, whatever it has in common with others."""

    def __hash__(self) -> int: ...

    @property
    def name(self) -> str:
        """The vantage point's name, e.g. MUC."""

    @property
    def allowed_prefixes(self) -> tuple[IPNetwork, ...]:
        """Addresses that programs of this place may contact."""

    @property
    def nameservers(self) -> tuple[str, ...]:
        """Addresses of the DNS servers to use (port 53); empty for the system's own."""

    @property
    def ca_file(self) -> Path | None:
        """Certificates to trust where a campaign names none; None for the system's own."""

    @property
    def interface(self) -> str:
        """Network interface on which captures are taken (`any` if unknown)."""

    def run(self, argv: Sequence[str], *, timeout_s: float = 60.0, stdin: str | None = None) -> Completed:
        """Runs a program in the place to its end (see `core.system.process.run`)."""

    def start(self, argv: Sequence[str], **pipes: Unpack[Pipes]) -> Child:
        """Starts a program in the place in the background (see `core.system.process.start`)."""

    def apply(self, settings: Sequence[Setting]) -> None:
        """Makes the kernel of this place have these settings, and forgets cached TCP metrics.

        Raises PlaceError if the kernel refuses one.
        """

    def limit_settings(self, names: Collection[str]) -> None:
        """From now on `apply` takes kernel settings of these names only, and is fast; call it from the thread that
        applies them. Attributes of routes are not limited."""

    def measuring(self) -> AbstractContextManager[object]:
        """Surrounds a measurement run: keeps CPUs awake meanwhile, for accurate time stamps."""

    def watch(self, server_ip: str) -> Watch:
        """Starts to watch the path to this server."""

    def prober(self) -> Prober:
        """Addresses for a raw-socket prober; the same at each call. Raises PlaceError if the place cannot have any."""

    def check(self) -> None:
        """Raises PlaceError if the place no longer exists or is broken, so that results from it are not valid."""

    def environment(self) -> Mapping[str, object]:
        """Kernel, CPU, offloads, sysctls, program versions: what has to be stored with the data."""

    def close(self) -> None:
        """Closes the place: restores settings, and removes what was made for it. May be called twice."""
