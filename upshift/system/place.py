"""Protocol Place: where a program runs. Stages get a Place from `upshift.compose`; `vantage` implements it.

A place can run programs, apply kernel settings in its own network namespace, tell where captures are taken, and says
which prefixes may be reached from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from upshift.domain import Disturbance, Setting
from upshift.reach import IPNetwork
from upshift.system.process import Child, Completed


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowCount:
    """What the path emulator did with the packets of one connection, both directions together, in packets."""

    sent: int
    received: int
    dropped: int
    """Programmed drops only: seeded loss, full queue, AQM."""
    marked: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether the place was fit for measuring during one measurement run."""

    disturbed: Disturbance | None
    """Why the run is void, or None if it can be believed."""
    lateness_p99_ms: float | None
    flows: Mapping[tuple[str, int], FlowCount]
    """(transport `tcp` or `quic`, local port) -> counts; empty if nobody can count."""


class Program(Protocol):
    """A download program, as `upshift doctor` sees it; it keeps the clients' contract (docs/design/house.md)."""

    @property
    def name(self) -> str:
        """The client's name, e.g. quiche."""

    def missing(self) -> str | None:
        """Why it cannot run here, in one sentence; None if it can."""

    def command(self) -> tuple[str, ...]:
        """How to start it, without its arguments. Raises PlaceError if it is missing."""


class Watch(Protocol):
    """Watches a place during one measurement run."""

    def settle(self) -> None:
        """Returns when no packet of the watched path is under way any more, or after a bounded time."""

    def finish(self) -> Verdict:
        """Ends the watch and judges. Call `settle` first."""


class Place(Protocol):
    """Where downloads run."""

    @property
    def name(self) -> str:
        """The vantage point's name, e.g. MUC."""

    @property
    def allowed_prefixes(self) -> tuple[IPNetwork, ...]:
        """Addresses that programs of this place may contact."""

    @property
    def nameservers(self) -> tuple[str, ...]:
        """Addresses of the DNS servers to ask (port 53); empty for the system's own."""

    @property
    def ca_file(self) -> Path | None:
        """Certificates to trust; None for the system's own."""

    @property
    def interface(self) -> str:
        """Network interface on which captures are taken (`any` where that cannot be known)."""

    def run(self, argv: Sequence[str], *, timeout_s: float = 60.0, stdin: str | None = None) -> Completed:
        """Runs a program in the place to its end (see `upshift.system.process.run`)."""

    def start(
        self,
        argv: Sequence[str],
        *,
        stdin: bool = False,
        stdout: bool | Path = False,
        stderr: bool | Path = False,
        binary: bool = False,
    ) -> Child:
        """Starts a program in the place in the background (see `upshift.system.process.start`)."""

    def apply(self, settings: Sequence[Setting]) -> None:
        """Makes the kernel of this place have these settings, and forgets cached TCP metrics.

        Raises PlaceError if the kernel refuses one.
        """

    def measuring(self) -> AbstractContextManager[None]:
        """Surrounds a measurement run: meanwhile the place's clock is kept good, as far as that costs something."""

    def watch(self, server_ip: str) -> Watch:
        """Starts to watch the path to this server."""

    def check(self) -> None:
        """Raises PlaceError if the place itself has gone or is broken, so that what ran there says nothing."""

    def environment(self) -> Mapping[str, object]:
        """Kernel, CPU, offloads, sysctls, program versions: what has to be stored with the data."""

    def close(self) -> None:
        """Gives the place back: settings restored, what was made for it removed. May be called twice."""
