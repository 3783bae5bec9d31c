"""Kernel settings by /proc/sys, as the calling process's network namespace has them (proc(5), /proc/sys/net)."""

from __future__ import annotations

from pathlib import Path

from core.errors import PlaceError

ROOT = Path("/proc/sys")

INHERITED = ("net/ipv4/tcp_*", "net/ipv4/udp_*", "net/ipv4/ip_local_port_range", "net/ipv4/ip_no_pmtu_disc")
"""Settings that the campaign's namespace gets from the host: a new namespace has the kernel's defaults for some of
them (net/ipv4/tcp_ipv4.c, tcp_sk_init) and the host's for others, and the vantage point should behave like the host."""

NOT_INHERITED = frozenset({"tcp_fastopen_key", "tcp_mem", "udp_mem", "tcp_available_congestion_control"})
"""Secrets, and settings that are host-wide."""


def path_of(name: str) -> Path:
    """/proc/sys path of a setting, written `net.ipv4.tcp_ecn` or, where a part has dots, `net/ipv4/conf/eth0.7/x`."""
    relative = name if "/" in name else name.replace(".", "/")
    if ".." in relative.split("/") or relative.startswith("/"):
        raise PlaceError(f"{name!r} is not the name of a kernel setting")
    return ROOT / relative


def read(name: str) -> str | None:
    """The value with single spaces between numbers, None if this kernel or namespace lacks the setting."""
    try:
        return " ".join(path_of(name).read_text(encoding="utf-8", errors="replace").split())
    except OSError:
        return None


def write(name: str, value: str) -> None:
    """Sets a value. Raises FileNotFoundError for an unknown setting, PlaceError if the kernel refuses."""
    try:
        path_of(name).write_text(value + "\n", encoding="utf-8")
    except FileNotFoundError:
        raise
    except OSError as error:
        raise PlaceError(f"the kernel refuses {name} = {value!r} ({error.strerror})") from None


def inherited() -> dict[str, str]:
    """The settings that a campaign's namespace takes over, with their values here; names relative to /proc/sys."""
    values = {}
    for pattern in INHERITED:
        for path in sorted(ROOT.glob(pattern)):
            name = str(path.relative_to(ROOT))
            value = read(name)
            if path.name not in NOT_INHERITED and value is not None:
                values[name] = value
    return values
