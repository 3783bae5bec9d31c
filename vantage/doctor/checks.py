"""What a host can and cannot measure, and how to fix it: checks as pure functions of gathered facts.

`vantage.doctor.gather` gathers, `upshift.commands.doctor` prints. A check is a function from `Facts` to a `Finding`;
adding one is adding it to `CHECKS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from core.system.builds import DEBUG_MARK
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


class Status(StrEnum):
    OK = "ok"
    WARN = "warn"
    """It works, with a limitation."""
    CANNOT = "cannot"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check."""

    name: str
    status: Status
    says: str
    remedy: str | None = None
    lab: bool = True
    """Whether the lab needs it; the others matter for campaigns on real hosts only."""
    campaign: bool = False
    """Whether no campaign should be run on this host before it is ok."""


def examine(facts: Facts) -> list[Finding]:
    """All findings, in the order of `CHECKS`."""
    return [finding for check in CHECKS for finding in check(facts)]


def lab_can_run(findings: list[Finding]) -> bool:
    """Whether nothing that the lab needs is missing."""
    return not any(finding.lab and finding.status is Status.CANNOT for finding in findings)


def campaign_can_run(findings: list[Finding]) -> bool:
    """Whether nothing speaks against a campaign on this host's own network."""
    return not any(finding.campaign and finding.status is not Status.OK for finding in findings)


def check_python(facts: Facts) -> list[Finding]:
    said = "Python " + ".".join(map(str, facts.python))
    if facts.python[:2] >= OLDEST_PYTHON:
        return [Finding(name="Python", status=Status.OK, says=said)]
    oldest = ".".join(map(str, OLDEST_PYTHON))
    return [
        Finding(
            name="Python",
            status=Status.CANNOT,
            says=f"{said} is older than {oldest}",
            remedy="run: make setup",
            campaign=True,
        )
    ]


def check_kernel(facts: Facts) -> list[Finding]:
    numbers = tuple(int(part) for part in facts.kernel.split("-")[0].split(".")[:2] if part.isdigit())
    if numbers >= OLDEST_KERNEL:
        return [Finding(name="kernel", status=Status.OK, says=f"Linux {facts.kernel}")]
    said = f"Linux {facts.kernel} is older than {OLDEST_KERNEL[0]}.{OLDEST_KERNEL[1]}"
    return [Finding(name="kernel", status=Status.WARN, says=said, remedy="use a newer kernel; older ones are untested")]


def check_rights(facts: Facts) -> list[Finding]:
    if facts.root:
        return [
            Finding(name="rights", status=Status.OK, says="root: the lab and campaigns on this host can run", lab=False)
        ]
    said = "not root: the lab can run (in a user namespace); campaigns on this host's own network cannot"
    return [Finding(name="rights", status=Status.WARN, says=said, remedy="use sudo for these campaigns", lab=False)]


def check_probes(facts: Facts) -> list[Finding]:
    """Probes that ran in a private namespace."""
    probed = facts.probed
    probes = [
        _probe(
            "namespaces",
            probed.namespaces,
            "network namespaces can be created",
            "run as root, or allow user namespaces: sysctl -w user.max_user_namespaces=15000 "
            "(Ubuntu 24.04 also: sysctl -w kernel.apparmor_restrict_unprivileged_userns=0)",
            campaign=True,
        ),
        _probe(
            "TUN devices",
            probed.tun,
            "/dev/net/tun can be used",
            "load the driver (modprobe tun), and for ordinary users: chmod 0666 /dev/net/tun",
        ),
        _probe("captures", probed.capture, "tcpdump captures in a namespace", "apt-get install tcpdump", campaign=True),
        _probe(
            "CUBIC by route",
            probed.cubic_by_route,
            "CUBIC can be set per route",
            "load the module: modprobe tcp_cubic",
        ),
    ]
    nat = _probe(
        "NAT",
        probed.nat,
        'nftables can masquerade: isolation = "netns" works',
        'apt-get install nftables; modprobe nft_masq; or use isolation = "host"',
        lab=False,
        campaign=True,
    )
    prober = _probe(
        "raw sockets",
        probed.prober,
        "iwprobe can open raw sockets: initial windows can be surveyed",
        "run: make setup; then as root, or with CAP_NET_RAW",
        lab=False,
    )
    return [*probes, nat, prober]


def _probe(
    name: str, fault: str | None, well: str, remedy: str, *, lab: bool = True, campaign: bool = False
) -> Finding:
    if fault is None:
        return Finding(name=name, status=Status.OK, says=well, lab=lab, campaign=campaign)
    return Finding(name=name, status=Status.CANNOT, says=fault, remedy=remedy, lab=lab, campaign=campaign)


def check_programs(facts: Facts) -> list[Finding]:
    findings = []
    for name, package in PACKAGES.items():
        version = facts.programs.get(name)
        if version is None:
            findings.append(
                Finding(
                    name=name,
                    status=Status.CANNOT,
                    says="missing",
                    remedy=f"apt-get install {package}",
                    campaign=name not in _LAB_PROGRAMS,
                )
            )
        else:
            findings.append(Finding(name=name, status=Status.OK, says=version))
    for name in OUR_BINARIES:
        version = facts.programs.get(name)
        good = version is not None and DEBUG_MARK not in version
        status, remedy = (Status.OK, None) if good else (Status.CANNOT, "run: make setup")
        findings.append(Finding(name=name, status=status, says=version or "missing", remedy=remedy))
    return findings


def check_servers(facts: Facts) -> list[Finding]:
    findings = []
    for kind, found in facts.servers.items():
        name = f"server {kind}"
        if found.fault is None:
            findings.append(Finding(name=name, status=Status.OK, says=found.version or "installed, version unknown"))
        else:
            says, _, remedy = found.fault.partition("; ")
            findings.append(Finding(name=name, status=Status.CANNOT, says=says, remedy=remedy or "run: make setup"))
    return findings


def check_ceilings(facts: Facts) -> list[Finding]:
    """Whether it is known how fast each client can be here."""
    faults = {name: fault for name, fault in facts.ceilings.items() if fault is not None}
    remedy = "run: upshift doctor --calibrate"
    if not faults and facts.busy_share > BUSY_LIMIT:
        says = f"too low: other programs used {facts.busy_share:.0%} of the CPU time when they were measured"
        remedy = f"stop other programs, then {remedy}"
        return [Finding(name="client ceilings", status=Status.WARN, says=says, remedy=remedy, lab=False)]
    if not faults:
        says = f"the highest rates of {', '.join(facts.ceilings)} are known"
        return [Finding(name="client ceilings", status=Status.OK, says=says, lab=False)]
    reasons: dict[str, list[str]] = {}
    for client, fault in faults.items():
        reasons.setdefault(fault, []).append(client)
    said = "; ".join(f"{', '.join(names)} ({fault})" for fault, names in reasons.items())
    says = f"not known whether a client limits a download: {said}"
    able = any(facts.clients.get(client) is None for client in faults)  # campaigns that name the others are refused
    return [Finding(name="client ceilings", status=Status.WARN, says=says, remedy=remedy, lab=False, campaign=able)]


def check_clients(facts: Facts) -> list[Finding]:
    findings = []
    for name, fault in facts.clients.items():
        if fault is None:
            findings.append(Finding(name=f"client {name}", status=Status.OK, says="can run", lab=False))
        else:
            remedy = "run: make setup; until then, campaigns that name it are refused"
            findings.append(Finding(name=f"client {name}", status=Status.WARN, says=fault, remedy=remedy, lab=False))
    return findings


def check_modules(facts: Facts) -> list[Finding]:
    return [
        _probe("capture engine", facts.native, "upshift_native can be imported", "run: make setup", campaign=True),
        _probe("certificates", facts.trustme, "trustme can be imported", "run: make setup"),
    ]


def check_congestion_control(facts: Facts) -> list[Finding]:
    said = (
        f"default {facts.default_congestion_control}; available: {' '.join(facts.available_congestion_controls)}; "
        f"allowed for all users: {' '.join(facts.allowed_congestion_controls)}"
    )
    if facts.default_congestion_control == "cubic":
        return [Finding(name="congestion control", status=Status.OK, says=said, lab=False)]
    return [
        Finding(
            name="congestion control",
            status=Status.WARN,
            says=said,
            remedy="the lab sets CUBIC per route; on this host the default affects uploads only",
            lab=False,
        )
    ]


def smallest_window_scale(buffer_bytes: int) -> int:
    """The window scale that a SYN carries at least, where a receive buffer may grow to this size.

    Source: net/ipv4/tcp_output.c, tcp_select_initial_window: scale = ilog2(space) - 15, between 0 and 14.
    """
    return min(14, max(0, buffer_bytes.bit_length() - 1 - 15))


def check_buffers(facts: Facts) -> list[Finding]:
    if facts.rmem_max is None:
        return [
            Finding(name="window scale", status=Status.WARN, says="net.core.rmem_max cannot be read here", lab=False)
        ]
    scale = smallest_window_scale(facts.rmem_max)
    said = f"net.core.rmem_max = {facts.rmem_max} gives a window scale of at least {scale}"
    if facts.tcp_rmem_max is not None:
        default = smallest_window_scale(max(facts.rmem_max, facts.tcp_rmem_max))
        said += f"; this host's default is {default}"
    remedy = "lower scales are set by the route's window" if scale > 0 else None
    return [Finding(name="window scale", status=Status.OK, says=said, remedy=remedy, lab=False)]


def check_udp(facts: Facts) -> list[Finding]:
    if facts.udp_gro:
        return [Finding(name="UDP GRO", status=Status.OK, says="the kernel supports UDP GRO")]
    said = "the kernel has no UDP GRO (Linux 5.0), so QUIC costs more CPU time"
    return [Finding(name="UDP GRO", status=Status.WARN, says=said, remedy="use a newer kernel", lab=False)]


def check_quiet(facts: Facts) -> list[Finding]:
    said = f"{facts.cpus} CPUs, load {facts.load_1m:.1f}, {facts.steal_share:.1%} of CPU time taken by other guests"
    if facts.load_1m <= facts.cpus / 2 and facts.steal_share <= STEAL_LIMIT and facts.cpus >= 2:
        return [Finding(name="quiet", status=Status.OK, says=said)]
    remedy = "stop other programs, or use a host with two free CPUs; disturbed measurement runs are repeated"
    return [Finding(name="quiet", status=Status.WARN, says=said, remedy=remedy)]


def check_clock(facts: Facts) -> list[Finding]:
    if facts.clock in WELL_KNOWN_CLOCKS:
        return [Finding(name="clock", status=Status.OK, says=f"{facts.clock}")]
    return [
        Finding(
            name="clock",
            status=Status.WARN,
            says=f"clock source {facts.clock or 'unknown'}: reading the time may be slow or coarse",
            remedy="see /sys/devices/system/clocksource/clocksource0/available_clocksource",
        )
    ]


def check_wakeups(facts: Facts) -> list[Finding]:
    """Idle CPUs that wake late delay packets, unless they are kept awake."""
    said = f"an idle CPU wakes late by {facts.wakeups.sentence()}"
    best = facts.wakeups
    if facts.cpus_awake.method is not Method.NONE:
        best = min(best, facts.wakeups_awake, key=lambda wakeups: wakeups.p50_us)
        said += f"; while measuring, {facts.cpus_awake.sentence()}: {facts.wakeups_awake.sentence()}"
    else:
        said += f"; {facts.cpus_awake.sentence()}"
    if best.p50_us <= LATE_WAKEUP_US:
        return [Finding(name="wake-up", status=Status.OK, says=said)]
    remedy = "stop other programs, run as root, or use a host whose CPUs wake faster; packets may be this late"
    return [Finding(name="wake-up", status=Status.WARN, says=said, remedy=remedy)]


def check_space(facts: Facts) -> list[Finding]:
    said = f"{facts.free_bytes / 1e9:.1f} GB free for {facts.out}"
    if facts.free_bytes >= NEEDED_FREE_BYTES:
        return [Finding(name="disk", status=Status.OK, says=said)]
    remedy = "captures need space: use another --out"
    return [Finding(name="disk", status=Status.WARN, says=said, remedy=remedy, campaign=True)]


def check_time_of_day(facts: Facts) -> list[Finding]:
    """Vantage points on several hosts take turns by the clock."""
    if facts.time_of_day is None:
        said = "this host's clock is synchronised"
        return [Finding(name="time of day", status=Status.OK, says=said, lab=False, campaign=True)]
    said = f"{facts.time_of_day}: vantage points on several hosts cannot take turns by it"
    remedy = "run a time daemon: apt-get install chrony"
    return [Finding(name="time of day", status=Status.WARN, says=said, remedy=remedy, lab=False, campaign=True)]


def check_uplink(facts: Facts) -> list[Finding]:
    found = facts.uplink
    if found.fault is None:
        said = f"{found.name} with {', '.join(found.addresses)}"
        return [Finding(name="uplink", status=Status.OK, says=said, lab=False, campaign=True)]
    says, _, remedy = found.fault.partition("; ")
    return [Finding(name="uplink", status=Status.WARN, says=says, remedy=remedy, lab=False, campaign=True)]


def check_leftovers(facts: Facts) -> list[Finding]:
    findings = [
        Finding(
            name="leftovers",
            status=Status.WARN,
            says=f"an earlier campaign was killed and left these changes: {words}",
            remedy="run: upshift doctor --restore (the next upshift run does it too)",
            lab=False,
        )
        for words in facts.host_leftovers
    ]
    findings += [
        Finding(
            name="leftovers",
            status=Status.WARN,
            says=f"the lab {name} was killed and left files",
            remedy=f"run: upshift lab down {name}",
        )
        for name in facts.dead_labs
    ]
    return findings or [Finding(name="leftovers", status=Status.OK, says="none")]


CHECKS: tuple[Callable[[Facts], list[Finding]], ...] = (
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
    check_udp,
    check_quiet,
    check_clock,
    check_wakeups,
    check_space,
    check_time_of_day,
    check_uplink,
    check_leftovers,
)
