"""Gathers the facts that `upshift doctor` checks."""

from __future__ import annotations

import importlib
import math
import os
import platform
import random
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from core.errors import PlaceError
from core.files.disk import free_bytes, nearest
from core.reach import ANYWHERE
from core.system import process
from core.system.confine import landlock_version
from core.system.place import Program
from core.system.this_host import read_clock
from core.untrusted import last_line
from vantage.doctor.facts import OUR_BINARIES, PACKAGES, Facts, ServerFacts, UplinkFacts
from vantage.host import undo
from vantage.host.network import choose_link, default_interface, default_routes, find_uplink, host_table
from vantage.host.place import NET_ADMIN, SYS_ADMIN, may
from vantage.linux import cpu, sysctls
from vantage.linux import environment as host_environment
from vantage.linux.state_folder import state_directory
from vantage.server_kind import ServerKind
from vantage.servers import ALL as KINDS


def gather(
    out: Path,
    clients: Iterable[Program],
    *,
    ceilings: Mapping[str, str | None],
    busy_share: float = 0.0,
    sample_s: float = 1.0,
    uplink: str | None = None,
    dead_labs: Sequence[str] = (),
) -> Facts:
    """All facts.

    Takes about twice `sample_s`: it times wake-ups and watches the CPU's steal time.

    Args:
        out: where a campaign's results are to go.
        clients: the download programs to look for.
        ceilings: client -> why its ceiling is not known (`vantage.doctor.ceilings.unknown`).
        busy_share: share of the CPU time that other programs used when the ceilings were measured, 0 to 1.
        uplink: interface to measure by; None: that of the default route.
        dead_labs: names of labs that were killed and left files.
    """
    before = host_environment.cpu_times()
    with ThreadPoolExecutor(max_workers=4) as pool:
        programs = {name: pool.submit(_version, name) for name in (*PACKAGES, *OUR_BINARIES)}
        servers = {name: pool.submit(_server, kind) for name, kind in KINDS.items() if kind.version is not None}
        probes = {name: pool.submit(probe) for name, probe in PROBES.items()}
    wakeups = cpu.measure_wakeups(sample_s)
    after = host_environment.cpu_times()
    with cpu.keep_cpus_awake() as cpus_awake:
        wakeups_awake = cpu.measure_wakeups(sample_s)
    return Facts(
        python=sys.version_info[:3],
        kernel=platform.release(),
        may_change_network=may(NET_ADMIN, SYS_ADMIN),
        probed={name: probe.result() for name, probe in probes.items()},
        native=_import("upshift_native"),
        trustme=_import("trustme"),
        programs={name: future.result() for name, future in programs.items()},
        servers={name: future.result() for name, future in servers.items()},
        clients={client.name: client.missing() for client in clients},
        ceilings=ceilings,
        busy_share=busy_share,
        **_settings(),
        landlock=landlock_version(),
        steal_share=(after[1] - before[1]) / max(after[0] - before[0], 1e-9),
        load_1m=os.getloadavg()[0],
        cpus=min(len(os.sched_getaffinity(0)), host_environment.cpu_limit() or math.inf),
        clock=host_environment.clock_source(),
        wakeups=wakeups,
        wakeups_awake=wakeups_awake,
        cpus_awake=cpus_awake,
        out=str(out),
        free_bytes=free_bytes(nearest(out)),
        time_of_day=_time_of_day(),
        uplink=_uplink(uplink),
        host_leftovers=host_leftovers(),
        dead_labs=tuple(dead_labs),
    )


def _settings() -> dict[str, Any]:
    """What this host's kernel is set to."""
    rmem_max, tcp_rmem = sysctls.read("net.core.rmem_max"), sysctls.read("net.ipv4.tcp_rmem")
    return {
        "available_congestion_controls": _words("net.ipv4.tcp_available_congestion_control"),
        "allowed_congestion_controls": _words("net.ipv4.tcp_allowed_congestion_control"),
        "default_congestion_control": sysctls.read("net.ipv4.tcp_congestion_control"),
        "rmem_max": int(rmem_max) if rmem_max else None,
        "tcp_rmem_max": int(tcp_rmem.split()[2]) if tcp_rmem else None,
    }


def host_leftovers() -> tuple[str, ...]:
    """Changes to this host that dead campaigns left, as text."""
    try:
        return tuple(f"{plan.place}: {undo.describe(plan)}" for plan in undo.leftovers(state_directory()))
    except PlaceError as error:
        return (error.sentence(),)


def _version(name: str) -> str | None:
    path = process.find_program(name)
    return None if path is None else host_environment.version_of(name) or f"{path} (version unknown)"


def _server(kind: ServerKind) -> ServerFacts:
    if (fault := kind.missing()) is not None or kind.version is None:
        return ServerFacts(fault=fault, version=None)
    return ServerFacts(fault=None, version=host_environment.first_line(kind.version()))


def _import(name: str) -> str | None:
    try:
        importlib.import_module(name)
    except ImportError as error:
        return str(error)
    return None


def _time_of_day() -> str | None:
    try:
        return read_clock().fault()
    except PlaceError as error:
        return error.what


def _uplink(wanted: str | None) -> UplinkFacts:
    ipv6 = None
    try:
        by_ipv6 = default_interface(default_routes(6))
        ipv6 = by_ipv6 if wanted in (None, by_ipv6) else None
        uplink = find_uplink(wanted)
    except PlaceError as error:
        fault = f"{error.what}; {error.remedy or 'see: ip route'}"
        return UplinkFacts(fault=fault, name=None, addresses=(), ipv6=ipv6)
    return UplinkFacts(fault=None, name=uplink.name, addresses=uplink.addresses, ipv6=ipv6)


def _words(name: str) -> tuple[str, ...]:
    return tuple((sysctls.read(name) or "").split())


def private_namespace() -> tuple[str, ...]:
    """Command prefix for a private network namespace; without CAP_SYS_ADMIN, in a user namespace with our own user ID.

    With a mapping to root, tcpdump would drop its privileges.
    """
    if may(SYS_ADMIN):
        return ("unshare", "--net", "--")
    return ("unshare", "--user", "--net", "--map-current-user", "--keep-caps", "--")


def try_privately(argv: Sequence[str], *, stdin: str | None = None) -> str | None:
    """Runs a program in a private namespace; None if it succeeded, else its error message."""
    try:
        done = process.run((*private_namespace(), *argv), stdin=stdin, timeout_s=20)
    except PlaceError as error:
        return error.what
    if done.returncode == 0:
        return None
    return last_line(done.stderr) or f"{argv[0]} ended with exit code {done.returncode}"


def try_translation() -> str | None:
    """Loads the rules that a campaign's namespace uses."""
    link = choose_link((), ipv6=True, rng=random.Random(0))
    table = "upshift_probe"
    text = host_table(table, link=link, interface="ups0", uplink="eth0", only_ours=("ipv4", "ipv6"), allowed=ANYWHERE)
    return try_privately(("nft", "-f", "-"), stdin=text)


def try_cubic() -> str | None:
    """Sets CUBIC on a route; the sysctl may refuse what the route allows (allowed_congestion_control)."""
    lines = "link set lo up\nroute add 198.18.0.1/32 dev lo congctl cubic\n"
    return try_privately(("ip", "-batch", "-"), stdin=lines)


def try_capture() -> str | None:
    """Starts tcpdump on a private loopback and waits until it reports that it listens."""
    argv = ("tcpdump", "-i", "lo", "-w", "/dev/null")
    private = private_namespace()
    up = ("sh", "-c", 'ip link set lo up && exec "$@"', "sh")
    try:
        with process.start(argv, prefix=(*private, *up), stderr=True) as child:
            message = ""
            while child.stderr is not None and (line := child.stderr.readline()):
                if "listening on" in line:
                    return None
                message = line.strip() or message
    except PlaceError as error:
        return error.what
    return message or "tcpdump ended at once"


def try_prober() -> str | None:
    """Starts the prober of initial windows on a private loopback; without requests it ends at once."""
    name = "iwprobe"
    path = process.find_program(name)
    if path is None:
        return f"{name} is not installed"
    script = 'ip link set lo up && exec "$@"'
    return try_privately(("sh", "-c", script, "sh", path, "--device", "lo", "--address", "198.18.0.250"), stdin="")


PROBES: Mapping[str, Callable[[], str | None]] = {
    "namespaces": partial(try_privately, ("true",)),
    "kernel settings": partial(try_privately, ("sh", "-c", 'cat "$0" >"$0"', "/proc/sys/net/ipv4/tcp_sack")),
    "TUN devices": partial(try_privately, ("ip", "tuntap", "add", "dev", "probe0", "mode", "tun")),
    "captures": try_capture,
    "CUBIC by route": try_cubic,
    "NAT": try_translation,
    "raw sockets": try_prober,
}
"""What is tried in a private network namespace -> why it failed; None: it succeeded."""
