"""The facts about a host: what `vantage.doctor.gather` finds and `vantage.doctor.checks` judges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from vantage.linux.cpu import CpusAwake, Wakeups

PACKAGES: Mapping[str, str] = {
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "setpriv": "util-linux",
    "ip": "iproute2",
    "ss": "iproute2",
    "sysctl": "procps",
    "tcpdump": "tcpdump",
    "knotd": "knot",
}
"""Programs that the lab needs besides its servers -> their Debian package."""

OUR_BINARIES = ("pathem",)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """What was found of one of the lab's server kinds."""

    fault: str | None
    """Why it cannot be started, `what; remedy`; None if it can."""
    version: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class UplinkFacts:
    """How this host reaches the Internet."""

    fault: str | None
    """Why it is not known, `what; remedy`; None if it is."""
    name: str | None
    """Interface."""
    addresses: tuple[str, ...]
    """Its global addresses."""
    ipv6: str | None = None
    """Interface of the default route over IPv6, if it may be the uplink: `isolation = "host"` needs no IPv4 for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What was found on this host."""

    python: tuple[int, int, int]
    kernel: str
    may_change_network: bool
    """Root may, and the service of a vantage point; root of a container perhaps not."""
    probed: Mapping[str, str | None]
    """Probe in a private network namespace (`vantage.doctor.gather.PROBES`) -> its error message; None: none."""
    native: str | None
    """Why the capture engine `upshift_native` cannot be imported, or None if it can."""
    trustme: str | None
    """The same of the lab's certificate maker."""
    programs: Mapping[str, str | None]
    """Program -> its version, or None if it is missing."""
    servers: Mapping[str, ServerFacts]
    """Server kinds of the lab that are programs of their own."""
    clients: Mapping[str, str | None]
    """Client -> why it cannot run, or None if it can."""
    ceilings: Mapping[str, str | None]
    """Client -> why its ceiling is not known, or None if it is."""
    busy_share: float
    """Share of CPU time that other programs used before the ceilings were measured, 0 to 1."""
    available_congestion_controls: tuple[str, ...]
    allowed_congestion_controls: tuple[str, ...]
    default_congestion_control: str | None
    rmem_max: int | None
    tcp_rmem_max: int | None
    landlock: int
    """Version of Landlock that the kernel offers; 0: none."""
    steal_share: float
    load_1m: float
    cpus: float
    clock: str | None
    wakeups: Wakeups
    """How late this host's idle CPUs wake."""
    wakeups_awake: Wakeups
    """The same with its CPUs kept awake."""
    cpus_awake: CpusAwake
    out: str
    free_bytes: int
    time_of_day: str | None
    """Why slots cannot be told by this host's clock, or None if they can."""
    uplink: UplinkFacts
    host_leftovers: tuple[str, ...] = field(default=())
    """Changes of dead campaigns, as text."""
    dead_labs: tuple[str, ...] = field(default=())
