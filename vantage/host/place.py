"""The place *this host*: where a real vantage point's downloads run.

`isolation = "netns"` (the default) makes a network namespace for the campaign, in which factors are set, so that the
host's own settings never change. `isolation = "host"` does what the paper did: it changes the host's settings. Either
way a guardian process undoes every change, however the campaign ends (see `vantage.host.guardian`).
"""

from __future__ import annotations

import ipaddress
import os
import threading
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Literal, Unpack

from core.domain import RouteAttribute, Setting, Sysctl
from core.errors import PlaceError, ReachError, UsageError
from core.reach import ANYWHERE, ENVIRONMENT_VARIABLE, IPNetwork, check_address, environment_prefixes, is_allowed
from core.system import confine, process
from core.system.place import Prober, Watch
from core.system.process import PARENT_DEATH, Child, Completed, Pipes
from core.system.this_host import check_ipv6
from vantage.host import raw_ports
from vantage.host.namespace import INTERFACE, CampaignNamespace, HostWatch, why_no_ipv6
from vantage.host.network import (
    RESOLV_CONF,
    capture_interface,
    find_uplink,
    host_nameservers,
    intersection,
    listed_nameservers,
    routed_elsewhere,
)
from vantage.host.undo import UndoStep
from vantage.host.undo_log import UndoLog
from vantage.linux import cpu, sysctls
from vantage.linux import environment as host_environment
from vantage.linux import namespace as linux
from vantage.linux.state_folder import state_directory

Isolation = Literal["netns", "host"]

NET_ADMIN, SYS_ADMIN = 12, 21
"""Capabilities by number (linux/capability.h)."""


class HostPlace:
    """This host as a place (`core.system.place.Place`). Use it as a context manager, or call `close`.

    Args:
        name: the vantage point's name.
        isolation: `netns` or `host`, as above.
        allowed_prefixes: what may be contacted; required; ANYWHERE for no limit. In `netns` the kernel enforces
            it for every program of the place; `UPSHIFT_ALLOWED_PREFIXES` narrows it further.
        nameservers: DNS servers to ask; empty for the host's own.
        uplink: interface to the Internet; None for that of the default route.
        ipv6: its programs contact servers over IPv6 alone, so a host that cannot is refused.
        either: they contact servers over IPv4 or IPv6, whichever a name has.
        let_cpus_sleep: do not keep the CPUs awake during measurement runs.

    Attributes:
        notes: sentences for the user, to print before the campaign starts.

    Raises:
        PlaceError: no permission, a missing program, or an unsupported host. All changes are undone.
    """

    def __init__(
        self,
        name: str,
        *,
        isolation: Isolation = "netns",
        allowed_prefixes: Sequence[IPNetwork] = ANYWHERE,
        nameservers: Sequence[str] = (),
        uplink: str | None = None,
        ipv6: bool = False,
        either: bool = False,
        let_cpus_sleep: bool = False,
    ) -> None:
        if isolation not in ("netns", "host"):
            raise UsageError(f"unknown isolation {isolation!r}", remedy="use netns or host")
        require_capabilities()
        for program, package in (("nsenter", "util-linux"), ("ip", "iproute2"), ("sysctl", "procps")):
            process.require(program, package=package)
        self.name = name
        self.nameservers = tuple(nameservers)
        self.ca_file: Path | None = None
        self.interface = "any"
        self._isolation = isolation
        self._lock = threading.Lock()
        self._settings = linux.Namespace(self.run, ("default",))
        self._allowed = narrowed(allowed_prefixes)
        self._namespace: CampaignNamespace | None = None
        self._prober: Prober | None = None
        self._closed = False
        self._uplink = uplink
        self._let_cpus_sleep = let_cpus_sleep
        for server in self.nameservers:
            check_address(server)
        folder = state_directory()
        if ipv6:
            if isolation == "netns" and (why := why_no_ipv6(find_uplink(uplink))):
                what = f"IPv6 would not leave a network namespace of this host ({why})"
                raise PlaceError(what, remedy="use isolation host, or IPv4")
            check_ipv6(self._allowed)
        if isolation == "netns":
            process.require("nft", package="nftables")
            self._open_namespace(uplink, folder)
        else:
            # A tunnel, for one, has IPv6 leave by another interface than IPv4.
            self.interface = uplink or capture_interface(*((4, 6) if either else (6,) if ipv6 else (4,)))
            self._undo_log = UndoLog(name, isolation=isolation, state=folder)
            self.notes = list(self._undo_log.recovered)

    def _open_namespace(self, uplink: str | None, folder: Path) -> None:
        interface = find_uplink(uplink)
        ipv6 = why_no_ipv6(interface) is None
        elsewhere = routed_elsewhere(uplink) if uplink else []
        if not self.nameservers:
            self.nameservers = host_nameservers(ipv6=ipv6)
            for server in self.nameservers:
                check_address(server)
        self._undo_log = UndoLog(self.name, isolation="netns", state=folder)
        try:
            self._namespace = CampaignNamespace(
                self._undo_log, uplink=interface, ipv6=ipv6, allowed=self._allowed, nameservers=self.nameservers
            )
        except BaseException:
            self._undo_log.release()
            raise
        self.interface = INTERFACE
        self.notes = [*self._undo_log.recovered, *self._namespace.notes, *elsewhere]

    @property
    def allowed_prefixes(self) -> tuple[IPNetwork, ...]:
        """The requested prefixes, narrowed by `UPSHIFT_ALLOWED_PREFIXES` where that is set, and the DNS servers.

        Of a DNS server that is only in the second group, the namespace's rules let out port 53 alone.
        """
        servers = self.nameservers or system_nameservers()
        return self._allowed + tuple(
            ipaddress.ip_network(server) for server in servers if not is_allowed(server, self._allowed)
        )

    @property
    def _prefix(self) -> tuple[str, ...]:
        if self._closed:
            raise PlaceError(f"the place {self.name} is already closed")
        return self._namespace.prefix if self._namespace else ()

    def _environment(self) -> dict[str, str]:
        """Environment of the place's programs: its mark, and the allowed prefixes unless everything is allowed."""
        reach = self.allowed_prefixes
        if reach == ANYWHERE:
            return self._undo_log.environment
        return {**self._undo_log.environment, ENVIRONMENT_VARIABLE: ",".join(map(str, reach))}

    def run(self, argv: Sequence[str], *, timeout_s: float = 60.0, stdin: str | None = None) -> Completed:
        """Runs a program in the place to its end; it is killed if we end."""
        command = (*self._prefix, *PARENT_DEATH, *argv)
        return process.run(command, timeout_s=timeout_s, stdin=stdin, env=self._environment())

    def start(self, argv: Sequence[str], **pipes: Unpack[Pipes]) -> Child:
        """Starts a program in the place in the background; it is killed when the calling thread ends."""
        return process.start(argv, prefix=self._prefix, env=self._environment(), **pipes)

    def apply(self, settings: Sequence[Setting]) -> None:
        """Applies these settings (see `vantage.linux.namespace.Namespace`; route attributes go to
        the default routes).

        On the host itself, the present values are recorded in the undo log first.
        """
        with self._lock:
            if self._namespace is None:
                self._undo_log.add(undo_steps(settings, known={step.name for step in self._undo_log.steps}))
            self._settings.apply(settings)

    def limit_settings(self, names: Collection[str]) -> None:
        """See `vantage.linux.namespace.Namespace.limit`."""
        self._settings.limit(self.start, names)

    def measuring(self) -> AbstractContextManager[cpu.CpusAwake]:
        """Keeps the host's CPUs awake, unless they may sleep; only while a measurement run lasts."""
        if self._let_cpus_sleep:
            return nullcontext(cpu.AS_ASKED)
        return cpu.keep_cpus_awake()

    def watch(self, server_ip: str) -> Watch:
        """Starts to watch the path to this server. Raises ReachError if it may not be contacted."""
        check_address(server_ip, self._allowed)
        return HostWatch(self.run, server_ip, self._namespace)

    def prober(self) -> Prober:
        """Addresses of the namespace's link that no kernel has; for `isolation = "host"` the host's own, with source
        ports that are reserved at the first call (`vantage.host.raw_ports`).
        """
        if self._namespace is not None:
            return self._namespace.prober
        with self._lock:
            if self._prober is None:
                process.require("nft", package="nftables")
                self._prober = raw_ports.open_prober(self._undo_log, self._uplink or "any")
            return self._prober

    def check(self) -> None:
        """Raises PlaceError if the guardian has ended (nothing would undo our changes if we were killed), or if another
        program has switched off forwarding that the campaign's namespace needs.

        This host itself needs no other check, and its packet loss is part of the measurement.
        """
        self._undo_log.check_guarded()
        if self._namespace is not None:
            self._namespace.check()

    def environment(self) -> Mapping[str, object]:
        """The record to store with the data (see `vantage.linux.environment`)."""
        record = host_environment.describe(self.run, self.interface)
        record["isolation"] = self._isolation
        with self.measuring() as awake:
            record["timing"] = {"cpus_awake": asdict(awake)}
        if self._namespace:
            record["ipv6"] = self._namespace.ipv6
            record["settings_not_taken_over"] = dict(self._namespace.refused)
        record["notes"] = list(self.notes)
        return record

    def close(self) -> None:
        """Restores the host. May be called twice. Raises PlaceError naming what could not be undone."""
        if self._closed:
            return
        self._closed = True
        if self._namespace:
            self._namespace.close()
        self._undo_log.release()

    def __enter__(self) -> HostPlace:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def narrowed(wanted: Sequence[IPNetwork]) -> tuple[IPNetwork, ...]:
    """The prefixes that both the campaign and the environment allow. Raises ReachError if there are none."""
    limits = environment_prefixes()
    prefixes = intersection(wanted, ANYWHERE if limits is None else limits)
    if prefixes:
        return prefixes
    if not wanted:
        raise ReachError(
            "no address may be contacted",
            where="allowed_prefixes",
            remedy='list prefixes, or ["0.0.0.0/0", "::/0"] for all',
        )
    raise ReachError(
        f"{ENVIRONMENT_VARIABLE} allows no address in {', '.join(map(str, wanted))}",
        remedy="unset it, or use prefixes within it",
    )


def system_nameservers() -> list[str]:
    """DNS servers of the host itself, its stub on loopback included; those that the environment forbids left out."""
    limits = environment_prefixes()
    listed = listed_nameservers(RESOLV_CONF)
    return [server for server in listed if limits is None or is_allowed(server, limits)]


def may(*capabilities: int) -> bool:
    """Whether this process has these capabilities."""
    effective = confine.capabilities("CapEff")
    return all(effective >> bit & 1 for bit in capabilities)


def require_capabilities() -> None:
    """Raises PlaceError unless this process may change the network (capabilities(7))."""
    if not may(NET_ADMIN, SYS_ADMIN):
        raise PlaceError(
            f"a campaign on this host needs root (user ID {os.geteuid()} may not change the network)",
            remedy="use sudo, or a lab, which needs no root",
        )


def undo_steps(settings: Sequence[Setting], *, known: Collection[str] = ()) -> list[UndoStep]:
    """Steps that restore this host's settings to their present values; `known`: names that have one.

    Of a route only attributes are restored: the host may have got another gateway meanwhile. A route from a router
    advertisement is not changed: ours beside it is removed.
    """
    steps = []
    for setting in settings:
        if isinstance(setting, Sysctl):
            value = sysctls.read(setting.name)
            if value is not None:  # the kernel will refuse an unknown one
                steps.append(UndoStep(kind="sysctl", name=setting.name, value=value))
    attributes = [setting.name for setting in settings if isinstance(setting, RouteAttribute)]
    for family in ("-4", "-6"):
        if names := [name for name in attributes if f"{family} {name}" not in known]:
            route = linux.first_route(process.run, family)
            if linux.is_beside_advertised(route):
                ours = f"dev {linux.attribute_of(route, 'dev')} proto {linux.OWN_PROTOCOL}"
                steps.append(UndoStep(kind="routes", name=family, value=ours))
                continue
            for name in names:
                value = linux.attribute_of(route, name) or ""
                steps.append(UndoStep(kind="attribute", name=f"{family} {name}", value=value))
    return steps
