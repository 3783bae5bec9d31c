"""Describes a host, for the record that is stored with the data (`environment.json`) and for `upshift doctor`.

Reads /proc and /sys (proc(5), sysfs(5)) and asks programs for their versions; changes nothing. Per-namespace settings
are read by a program inside the place.
"""

from __future__ import annotations

import os
import platform
import shutil
import ssl
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import core
from core.errors import PlaceError
from core.system import process
from vantage.linux import namespace as linux
from vantage.linux.offloads import driver, features

HOST_SYSCTLS = (
    "net/core/rmem_default",
    "net/core/rmem_max",
    "net/core/wmem_default",
    "net/core/wmem_max",
    "net/core/default_qdisc",
    "net/core/netdev_max_backlog",
    "net/core/optmem_max",
    "net/ipv4/tcp_mem",
    "net/ipv4/tcp_allowed_congestion_control",
    "net/ipv4/tcp_available_congestion_control",
)
"""One value for the whole host; QUIC clients depend on `rmem_default` (lab.md: not per namespace)."""

VERSION_OPTIONS: dict[str, tuple[str, ...]] = {
    "tcpdump": ("--version",),
    "ip": ("-V",),
    "ss": ("-V",),
    "nft": ("--version",),
    "nsenter": ("--version",),
    "unshare": ("--version",),
    "setpriv": ("--version",),
    "sysctl": ("--version",),
    "knotd": ("--version",),
    "openssl": ("version",),
    "pathem": ("--version",),
}
"""Program -> the argument that makes it print its version."""

CUBIC = Path("/sys/module/tcp_cubic/parameters")
_CLOCK = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
_CGROUPS = Path("/sys/fs/cgroup")
_GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")


def read(path: Path | str) -> str | None:
    """The stripped text of a small kernel file; None if it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def describe_system(run: linux.Run) -> dict[str, Any]:
    """The part of a record that places of every kind have: host, network, and what the kernel has for both alike."""
    network = linux.describe_network(run)
    common = {"sysctls": {**host_sysctls(), **network["sysctls"]}, "tcp_cubic": module_parameters(CUBIC)}
    return {**linux.describe_host(), **network, **common}


def describe(run: linux.Run, interface: str) -> dict[str, Any]:
    """The record: keys are stable words, values plain JSON. `run` runs a program in the place."""
    return {
        **describe_system(run),
        "kind": "host",
        "upshift": core.__version__,
        "distribution": distribution(),
        "cpu": cpu(),
        "clock_source": clock_source(),
        "interface": interface,
        "devices": [link_record(name) for name in physical_interfaces()],
        "qdisc": (run(("tc", "qdisc", "show")).stdout.strip().splitlines() if shutil.which("tc") else None),
        "openssl": ssl.OPENSSL_VERSION,
        "programs": {name: version_of(name) for name in VERSION_OPTIONS if process.find_program(name)},
        "steal_s": cpu_times()[1],
        "load_1m": os.getloadavg()[0],
    }


def distribution() -> str | None:
    """The name in os-release(5)."""
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME")
    except OSError:
        return None


def cpu() -> dict[str, Any]:
    """Model, usable count, frequency governor (None if the hypervisor decides), and `limit` if the cgroup has one."""
    lines = (read("/proc/cpuinfo") or "").splitlines()
    return {
        "model": linux.cpu_model() or platform.processor() or None,
        "count": len(os.sched_getaffinity(0)),
        "governor": read(_GOVERNOR),
        "hypervisor": any(" hypervisor" in line for line in lines if line.startswith("flags")),
        **({"limit": limit} if (limit := cpu_limit()) else {}),
    }


def cpu_limit() -> float | None:
    """The fewest CPUs whose time our cgroup, or one that holds it, may use (cgroup v2, `cpu.max`); None: no limit."""
    lines = (read("/proc/self/cgroup") or "").splitlines()
    folder = _CGROUPS / next((line[3:].strip("/") for line in lines if line.startswith("0::")), "")
    texts = (read(each / "cpu.max") for each in (folder, *folder.parents) if each.is_relative_to(_CGROUPS))
    limits = (text.split() for text in texts if text and not text.startswith("max"))
    return min((int(quota) / int(period) for quota, period in limits), default=None)


def cpu_times() -> tuple[float, float, float]:
    """(all, stolen, idle) CPU seconds of all processors since boot.

    Source: the first line of /proc/stat (proc(5)); the eighth number is stolen, the fourth and fifth are idle.
    """
    words = (read("/proc/stat") or f"cpu{' 0' * 8}").splitlines()[0].split()[1:9]
    numbers = [int(word) / os.sysconf("SC_CLK_TCK") for word in words]
    return sum(numbers), numbers[7], numbers[3] + numbers[4]


def busy_share(sample_s: float) -> float:
    """Share of the CPU time of all processors that was used or stolen in the next `sample_s`, 0 to 1."""
    before = cpu_times()
    time.sleep(sample_s)
    after = cpu_times()
    return 1 - (after[2] - before[2]) / max(after[0] - before[0], 1e-9)


def physical_interfaces() -> list[str]:
    """Interfaces with a device behind them (a NIC, a virtio port), not loopback, tunnels or pairs."""
    root = Path("/sys/class/net")
    try:
        return sorted(path.name for path in root.iterdir() if (path / "device").exists())
    except OSError:
        return []


def link_record(name: str) -> dict[str, Any]:
    """Driver, MTU, speed and the offloads that are on."""
    record: dict[str, Any] = {"name": name, "mtu": read(f"/sys/class/net/{name}/mtu")}
    record["speed_mbit"] = read(f"/sys/class/net/{name}/speed")
    try:
        record |= driver(name)
        record["offloads"] = sorted(key for key, on in features(name).items() if on)
    except PlaceError:  # /sys shows the host's interfaces, and we may be in another namespace
        record["offloads"] = None
    return record


def host_sysctls() -> dict[str, str]:
    """Host-wide settings by their dotted names; unreadable ones are left out."""
    values = {name.replace("/", "."): read(f"/proc/sys/{name}") for name in HOST_SYSCTLS}
    return {name: " ".join(value.split()) for name, value in values.items() if value is not None}


def clock_source() -> str | None:
    """The clock that the kernel reads the time from."""
    return read(_CLOCK)


def module_parameters(folder: Path) -> dict[str, str]:
    """Parameters of a kernel module, e.g. CUBIC's HyStart (they are not per namespace)."""
    try:
        return {path.name: value for path in sorted(folder.iterdir()) if (value := read(path)) is not None}
    except OSError:
        return {}


def version_of(name: str) -> str | None:
    """First line of the program's version output; None if it cannot be run."""
    return first_line((name, *VERSION_OPTIONS[name]))


def first_line(command: Sequence[str]) -> str | None:
    """First line of what a program prints; None if it cannot be run, or fails."""
    path = process.find_program(command[0])
    if path is None:
        return None
    try:
        done = process.run((path, *command[1:]), timeout_s=10)
    except (PlaceError, OSError):
        return None
    lines = (done.stdout.strip() or done.stderr.strip()).splitlines()
    return lines[0].strip() if lines and done.returncode == 0 else None
