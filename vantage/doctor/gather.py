"""Gathers the facts that `upshift doctor` checks."""

from __future__ import annotations

import importlib
import os
import platform
import shutil
import sys
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from core.errors import PlaceError
from core.system import process
from core.system.clock import read_clock
from core.system.place import Program
from vantage.doctor import probes
from vantage.doctor.facts import OUR_BINARIES, PACKAGES, Facts, ServerFound, UplinkFound
from vantage.host import undo_plan
from vantage.host.network import find_uplink
from vantage.lab.network.pathem import find_pathem
from vantage.lab.server_kind import ServerKind
from vantage.lab.servers import ALL as KINDS
from vantage.lab.state import all_labs, state_directory
from vantage.linux import cpu, sysctls
from vantage.linux import environment as host_environment


def gather(
    out: Path,
    clients: Iterable[Program],
    *,
    ceilings: Mapping[str, str | None],
    busy_share: float = 0.0,
    sample_s: float = 1.0,
    uplink: str | None = None,
) -> Facts:
    """All facts.

    Takes about twice `sample_s`: it times wake-ups and watches the CPU's steal time.

    Args:
        out: where a campaign's results are to go.
        clients: the download programs to look for.
        ceilings: client -> why its ceiling is not known (`vantage.doctor.ceilings.record.unknown`).
        busy_share: of the CPU time, by other programs, when the ceilings were measured.
        uplink: interface to measure by; None: that of the default route.
    """
    before = host_environment.cpu_times()
    names = (*PACKAGES, *OUR_BINARIES)
    with ThreadPoolExecutor(max_workers=4) as pool:
        versions = pool.map(_version, names)
        kinds = {name: kind for name, kind in KINDS.items() if kind.version is not None}
        found = pool.map(_server, kinds.values())
        probed = probes.run_all(pool)
        programs = dict(zip(names, versions, strict=True))
        servers = dict(zip(kinds, found, strict=True))
    wakeups = cpu.measure_wakeups(sample_s)
    after = host_environment.cpu_times()
    with cpu.keep_cpus_awake(find_pathem) as cpus_awake:
        wakeups_awake = cpu.measure_wakeups(sample_s)
    folder = _existing(out)
    rmem_max, tcp_rmem = sysctls.read("net.core.rmem_max"), sysctls.read("net.ipv4.tcp_rmem")
    return Facts(
        python=sys.version_info[:3],
        kernel=platform.release(),
        root=os.geteuid() == 0,
        probed=probed,
        native=_import("upshift_native"),
        trustme=_import("trustme"),
        programs=programs,
        servers=servers,
        clients={client.name: client.missing() for client in clients},
        ceilings=ceilings,
        busy_share=busy_share,
        available_congestion_controls=_words("net.ipv4.tcp_available_congestion_control"),
        allowed_congestion_controls=_words("net.ipv4.tcp_allowed_congestion_control"),
        default_congestion_control=sysctls.read("net.ipv4.tcp_congestion_control"),
        rmem_max=int(rmem_max) if rmem_max else None,
        tcp_rmem_max=int(tcp_rmem.split()[2]) if tcp_rmem else None,
        udp_gro=probes.has_udp_gro(),
        steal_share=(after[1] - before[1]) / max(after[0] - before[0], 1e-9),
        load_1m=os.getloadavg()[0],
        cpus=len(os.sched_getaffinity(0)),
        clock=host_environment.clock_source(),
        wakeups=wakeups,
        wakeups_awake=wakeups_awake,
        cpus_awake=cpus_awake,
        out=str(out),
        free_bytes=shutil.disk_usage(folder).free,
        time_of_day=_time_of_day(),
        uplink=_uplink(uplink),
        host_leftovers=host_leftovers(),
        dead_labs=tuple(lab.name for lab in all_labs() if not lab.alive()),
    )


def host_leftovers() -> tuple[str, ...]:
    """Changes to this host that dead campaigns left, as text."""
    try:
        return tuple(f"{plan.place}: {undo_plan.describe(plan)}" for plan in undo_plan.leftovers(state_directory()))
    except PlaceError as error:
        return (error.sentence(),)


def _version(name: str) -> str | None:
    path = process.find_program(name)
    return None if path is None else host_environment.version_of(name) or f"{path} (version unknown)"


def _server(kind: ServerKind) -> ServerFound:
    if (fault := kind.missing()) is not None or kind.version is None:
        return ServerFound(fault=fault, version=None)
    return ServerFound(fault=None, version=host_environment.first_line(kind.version()))


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


def _uplink(wanted: str | None) -> UplinkFound:
    try:
        found = find_uplink(wanted)
    except PlaceError as error:
        return UplinkFound(fault=f"{error.what}; {error.remedy or 'see: ip route'}", name=None, addresses=())
    return UplinkFound(fault=None, name=found.name, addresses=found.addresses)


def _words(name: str) -> tuple[str, ...]:
    return tuple((sysctls.read(name) or "").split())


def _existing(path: Path) -> Path:
    """The path, or its nearest parent that exists."""
    path = path.absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    return path
