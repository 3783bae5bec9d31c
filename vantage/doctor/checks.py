"""What a host can and cannot measure, and how to fix it: checks as pure functions of gathered facts.

`vantage.doctor.gather` gathers, `upshift.commands.doctor` prints. A check is a function from `Facts` to
`CheckResult`s; adding one is adding it to `CHECKS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from core.system.process import DEBUG_MARK
from vantage.doctor.facts import OUR_BINARIES, PACKAGES, Facts
from vantage.linux.cpu import Method

OLDEST_PYTHON = (3, 11)
OLDEST_KERNEL = (5, 4)
"""nftables translates in `inet` tables since 5.2, and a process handle (pidfd_open(2)) exists since 5.3."""

NEEDED_FREE_BYTES = 1_000_000_000
STEAL_LIMIT = 0.02
"""Share of CPU time that other guests may take before measurements suffer."""

BUSY_LIMIT = 0.2
"""Share of CPU time that other programs may use before ceilings come out too low."""

LATE_WAKEUP_US = 100.0
"""Median above which the lab's round trips cannot be right to 0.1 ms."""

WELL_KNOWN_CLOCKS = frozenset({"tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page", "xen"})
"""Clock sources that are read without a trap into a slow device."""

_LAB_PROGRAMS = frozenset({"knotd"})
"""Those of `PACKAGES` that campaigns do not need."""


class CheckStatus(StrEnum):
    OK = "ok"
    WARN = "warn"
    """It works, with a limitation."""
    CANNOT = "cannot"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """The result of one check."""

    name: str
    status: CheckStatus
    says: str
    remedy: str | None = None
    lab: bool = True
    """Whether the lab needs it; the others matter for campaigns on real hosts only."""
    campaign: bool = False
    """Whether no campaign should be run on this host before it is ok."""


def examine(facts: Facts) -> list[CheckResult]:
    """All results, in the order of `CHECKS`."""
    return [result for check in CHECKS for result in check(facts)]


def lab_can_run(results: list[CheckResult]) -> bool:
    """Whether nothing that the lab needs is missing."""
    return not any(result.lab and result.status is CheckStatus.CANNOT for result in results)


def campaign_can_run(results: list[CheckResult]) -> bool:
    """Whether nothing speaks against a campaign on this host's own network."""
    return not any(result.campaign and result.status is not CheckStatus.OK for result in results)


def _ok(name: str, says: str, *, lab: bool = True, campaign: bool = False, remedy: str | None = None) -> CheckResult:
    return CheckResult(name=name, status=CheckStatus.OK, says=says, remedy=remedy, lab=lab, campaign=campaign)


def _warn(name: str, says: str, remedy: str | None, *, lab: bool = True, campaign: bool = False) -> CheckResult:
    return CheckResult(name=name, status=CheckStatus.WARN, says=says, remedy=remedy, lab=lab, campaign=campaign)


def _cannot(name: str, says: str, remedy: str, *, lab: bool = True, campaign: bool = False) -> CheckResult:
    return CheckResult(name=name, status=CheckStatus.CANNOT, says=says, remedy=remedy, lab=lab, campaign=campaign)


def check_python(facts: Facts) -> list[CheckResult]:
    version = "Python " + ".".join(map(str, facts.python))
    if facts.python[:2] >= OLDEST_PYTHON:
        return [_ok("Python", version)]
    oldest = ".".join(map(str, OLDEST_PYTHON))
    return [_cannot("Python", f"{version} is older than {oldest}", "run: make setup", campaign=True)]


def check_kernel(facts: Facts) -> list[CheckResult]:
    numbers = tuple(int(part) for part in facts.kernel.split("-")[0].split(".")[:2] if part.isdigit())
    if numbers >= OLDEST_KERNEL:
        return [_ok("kernel", f"Linux {facts.kernel}")]
    says = f"Linux {facts.kernel} is older than {OLDEST_KERNEL[0]}.{OLDEST_KERNEL[1]}"
    return [_warn("kernel", says, "use a newer kernel; older ones are untested")]


def check_rights(facts: Facts) -> list[CheckResult]:
    if facts.may_change_network:
        says = "the network may be changed: the lab and campaigns on this host can run"
        return [_ok("rights", says, lab=False, campaign=True)]
    says = "the network may not be changed, so campaigns on this host cannot run; the lab needs only a user namespace"
    return [_warn("rights", says, "use sudo for these campaigns", lab=False, campaign=True)]


class _Probe(NamedTuple):
    """What is said of a probe that succeeded, and what mends one that failed."""

    well: str
    remedy: str
    lab: bool = True
    campaign: bool = False


_PROBES = {
    "namespaces": _Probe(
        "network namespaces can be created",
        "run as root, or allow user namespaces: sysctl -w user.max_user_namespaces=15000 "
        "(Ubuntu 24.04 also: sysctl -w kernel.apparmor_restrict_unprivileged_userns=0)",
        campaign=True,
    ),
    "kernel settings": _Probe(
        "kernel settings of a namespace can be changed",
        "a container needs a writable /proc/sys: docker run --privileged",
        lab=False,
        campaign=True,
    ),
    "TUN devices": _Probe(
        "/dev/net/tun can be used",
        "load the driver (modprobe tun); as an ordinary user: use sudo, or chmod 0666 /dev/net/tun",
    ),
    "captures": _Probe("tcpdump captures in a namespace", "apt-get install tcpdump", campaign=True),
    "CUBIC by route": _Probe("CUBIC can be set per route", "load the module: modprobe tcp_cubic"),
    "NAT": _Probe(
        'nftables can masquerade: isolation = "netns" works',
        'apt-get install nftables; modprobe nft_masq; or use isolation = "host"',
        lab=False,
        campaign=True,
    ),
    "raw sockets": _Probe(
        "iwprobe can open raw sockets: initial windows can be surveyed",
        "run: make setup; then as root, or with CAP_NET_RAW",
        lab=False,
    ),
}


def check_probes(facts: Facts) -> list[CheckResult]:
    """Probes that ran in a private namespace."""
    return [_probe(name, facts.probed[name], **one._asdict()) for name, one in _PROBES.items()]


def _probe(
    name: str, fault: str | None, well: str, remedy: str, *, lab: bool = True, campaign: bool = False
) -> CheckResult:
    if fault is None:
        return _ok(name, well, lab=lab, campaign=campaign)
    return _cannot(name, fault, remedy, lab=lab, campaign=campaign)


def check_programs(facts: Facts) -> list[CheckResult]:
    results = []
    for name, package in PACKAGES.items():
        version, campaign = facts.programs.get(name), name not in _LAB_PROGRAMS
        missing = _cannot(name, "missing", f"apt-get install {package}", campaign=campaign)
        results.append(missing if version is None else _ok(name, version))
    for name in OUR_BINARIES:
        version = facts.programs.get(name)
        good = version is not None and DEBUG_MARK not in version
        results.append(_ok(name, version or "") if good else _cannot(name, version or "missing", "run: make setup"))
    return results


def check_servers(facts: Facts) -> list[CheckResult]:
    results = []
    for kind, server in facts.servers.items():
        if server.fault is None:
            results.append(_ok(f"server {kind}", server.version or "installed, version unknown"))
        else:
            says, _, remedy = server.fault.partition("; ")
            results.append(_cannot(f"server {kind}", says, remedy or "run: make setup"))
    return results


def check_ceilings(facts: Facts) -> list[CheckResult]:
    """Whether it is known how fast each client can be here."""
    name, remedy = "client ceilings", "run: upshift doctor --calibrate"
    faults = {client: fault for client, fault in facts.ceilings.items() if fault is not None}
    if not faults and facts.busy_share > BUSY_LIMIT:
        says = f"too low: other programs used {facts.busy_share:.0%} of the CPU time when they were measured"
        return [_warn(name, says, f"stop other programs, then {remedy}", lab=False)]
    if not faults:
        return [_ok(name, f"the highest rates of {', '.join(facts.ceilings)} are known", lab=False)]
    reasons: dict[str, list[str]] = {}
    for client, fault in faults.items():
        reasons.setdefault(fault, []).append(client)
    listed = "; ".join(f"{', '.join(names)} ({fault})" for fault, names in reasons.items())
    able = any(facts.clients.get(client) is None for client in faults)  # campaigns that name the others are refused
    says = f"not known whether a client limits a download: {listed}"
    return [_warn(name, says, remedy, lab=False, campaign=able)]


def check_clients(facts: Facts) -> list[CheckResult]:
    remedy = "run: make setup; until then, campaigns that name it are refused"
    return [
        _ok(f"client {name}", "can run", lab=False)
        if fault is None
        else _warn(f"client {name}", fault, remedy, lab=False)
        for name, fault in facts.clients.items()
    ]


def check_modules(facts: Facts) -> list[CheckResult]:
    return [
        _probe("capture engine", facts.native, "upshift_native can be imported", "run: make setup", campaign=True),
        _probe("certificates", facts.trustme, "trustme can be imported", "run: make setup"),
    ]


def check_congestion_control(facts: Facts) -> list[CheckResult]:
    says = (
        f"default {facts.default_congestion_control}; available: {' '.join(facts.available_congestion_controls)}; "
        f"allowed for all users: {' '.join(facts.allowed_congestion_controls)}"
    )
    if facts.default_congestion_control == "cubic":
        return [_ok("congestion control", says, lab=False)]
    remedy = "the lab sets CUBIC per route; on this host the default affects uploads only"
    return [_warn("congestion control", says, remedy, lab=False)]


def smallest_window_scale(buffer_bytes: int) -> int:
    """The window scale that a SYN carries at least, where a receive buffer may grow to this size.

    Source: net/ipv4/tcp_output.c, tcp_select_initial_window: scale = ilog2(space) - 15, between 0 and 14.
    """
    return min(14, max(0, buffer_bytes.bit_length() - 1 - 15))


def check_buffers(facts: Facts) -> list[CheckResult]:
    if facts.rmem_max is None:
        return [_warn("window scale", "net.core.rmem_max cannot be read here", None, lab=False)]
    scale = smallest_window_scale(facts.rmem_max)
    says = f"net.core.rmem_max = {facts.rmem_max} gives a window scale of at least {scale}"
    if facts.tcp_rmem_max is not None:
        default = smallest_window_scale(max(facts.rmem_max, facts.tcp_rmem_max))
        says += f"; this host's default is {default}"
    remedy = "lower scales are set by the route's window" if scale > 0 else None
    return [_ok("window scale", says, remedy=remedy, lab=False)]


def check_landlock(facts: Facts) -> list[CheckResult]:
    """Clients give up files, programs and ports by Landlock; what is missing, the user and seccomp have to hold."""
    missing = [what for version, what in ((1, "files"), (4, "TCP ports"), (6, "signals")) if facts.landlock < version]
    if not missing:
        return [_ok("Landlock", f"version {facts.landlock}: clients keep no file, port or signal", lab=False)]
    says = f"version {facts.landlock}" if facts.landlock else "missing"
    remedy = "use Linux 6.12 or newer, with landlock among its LSMs; the other walls of clients hold without"
    return [_warn("Landlock", f"{says}: clients that a server takes over keep {', '.join(missing)}", remedy, lab=False)]


def check_quiet(facts: Facts) -> list[CheckResult]:
    says = f"{facts.cpus:g} CPUs, load {facts.load_1m:.1f}, {facts.steal_share:.1%} of CPU time taken by other guests"
    if facts.load_1m <= facts.cpus / 2 and facts.steal_share <= STEAL_LIMIT and facts.cpus >= 2:
        return [_ok("quiet", says)]
    remedy = "stop other programs, or use a host with two free CPUs; disturbed measurement runs are repeated"
    return [_warn("quiet", says, remedy)]


def check_clock(facts: Facts) -> list[CheckResult]:
    if facts.clock in WELL_KNOWN_CLOCKS:
        return [_ok("clock", f"{facts.clock}")]
    says = f"clock source {facts.clock or 'unknown'}: reading the time may be slow or coarse"
    return [_warn("clock", says, "see /sys/devices/system/clocksource/clocksource0/available_clocksource")]


def check_wakeups(facts: Facts) -> list[CheckResult]:
    """Idle CPUs that wake late delay packets, unless they are kept awake."""
    says = f"an idle CPU wakes late by {facts.wakeups.sentence()}"
    best = facts.wakeups
    if facts.cpus_awake.method is not Method.NONE:
        best = min(best, facts.wakeups_awake, key=lambda wakeups: wakeups.p50_us)
        says += f"; while measuring, {facts.cpus_awake.sentence()}: {facts.wakeups_awake.sentence()}"
    else:
        says += f"; {facts.cpus_awake.sentence()}"
    if best.p50_us <= LATE_WAKEUP_US:
        return [_ok("wake-up", says)]
    remedy = "stop other programs, run as root, or use a host whose CPUs wake faster; packets may be this late"
    return [_warn("wake-up", says, remedy)]


def check_space(facts: Facts) -> list[CheckResult]:
    says = f"{facts.free_bytes / 1e9:.1f} GB free for {facts.out}"
    if facts.free_bytes >= NEEDED_FREE_BYTES:
        return [_ok("disk", says)]
    return [_warn("disk", says, "captures need space: use another --out", campaign=True)]


def check_time_of_day(facts: Facts) -> list[CheckResult]:
    """Vantage points on several hosts take turns by the clock."""
    if facts.time_of_day is None:
        return [_ok("time of day", "this host's clock is synchronised", lab=False, campaign=True)]
    says = f"{facts.time_of_day}: vantage points on several hosts cannot take turns by it"
    return [_warn("time of day", says, "run a time daemon: apt-get install chrony", lab=False, campaign=True)]


def check_uplink(facts: Facts) -> list[CheckResult]:
    uplink = facts.uplink
    if uplink.fault is None:
        return [_ok("uplink", f"{uplink.name} with {', '.join(uplink.addresses)}", lab=False, campaign=True)]
    says, _, remedy = uplink.fault.partition("; ")
    return [_warn("uplink", says, remedy, lab=False, campaign=True)]


def check_leftovers(facts: Facts) -> list[CheckResult]:
    restore = "run: upshift doctor --restore (the next upshift run does it too)"
    results = [
        _warn("leftovers", f"an earlier campaign was killed and left these changes: {changes}", restore, lab=False)
        for changes in facts.host_leftovers
    ]
    results += [
        _warn("leftovers", f"the lab {name} was killed and left files", f"run: upshift lab down {name}")
        for name in facts.dead_labs
    ]
    return results or [_ok("leftovers", "none")]


CHECKS: tuple[Callable[[Facts], list[CheckResult]], ...] = (
    check_python,
    check_kernel,
    check_rights,
    check_probes,
    check_programs,
    check_servers,
    check_clients,
    check_ceilings,
    check_modules,
    check_congestion_control,
    check_buffers,
    check_landlock,
    check_quiet,
    check_clock,
    check_wakeups,
    check_space,
    check_time_of_day,
    check_uplink,
    check_leftovers,
)
