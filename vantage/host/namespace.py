"""A network namespace made for one campaign, joined to the host's network by a veth pair and address translation.

    program -> upshift0 (namespace) -> veth -> upsXXXX (host) -> masquerade -> uplink -> Internet

On the host it adds one interface and one nftables table, both ours, and sets one flag: forwarding on the uplink
(`net.ipv4.conf.UPLINK.forwarding`, and for IPv6 `force_forwarding`), because the kernel forwards a packet only if the
interface *on which it arrives* forwards (net/ipv4/route.c, ip_route_input_slow: IN_DEV_FORWARD), and answers arrive
on the uplink. Where we had to set it, our table drops everything else that the uplink would forward now. Forwarding
switches LRO off, of a VLAN or bond also on the interfaces below (net/core/dev.c, dev_disable_lro); it is switched on
again at the end. Another program may switch forwarding off meanwhile, or remove our table: `CampaignNamespace.check`
looks.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from core.domain import Disturbance, VoidReason
from core.errors import PlaceError
from core.reach import IPNetwork
from core.system import process
from core.system.place import Prober, Suitability
from core.system.process import PARENT_DEATH, Completed, module_environment
from vantage.host.network import (
    INTERFACE_PREFIX,
    INVALID,
    Link,
    Uplink,
    choose_link,
    forward_blockers,
    host_table,
    inner_table,
    made_of,
    read_json,
    used_prefixes,
)
from vantage.host.undo import UndoStep, switch_if_off
from vantage.host.undo_log import UndoLog
from vantage.linux import sysctls
from vantage.linux.offloads import features, set_features, wire_features

INTERFACE = "upshift0"
"""The interface inside the namespace."""

ALL_IPV6 = "net/ipv6/conf/all/forwarding"
"""The switch by which all interfaces forward IPv6."""

LOOK_S = 60.0
"""How often `CampaignNamespace.check` looks for the table: that takes a program."""


class CampaignNamespace:
    """The namespace and its link to the host. Each change to the host is recorded in the undo log first.

    Attributes:
        refused: settings of the host that the namespace did not take over, with the reason.
        notes: sentences for the user.
        ipv6: whether IPv6 leaves the namespace.
        prober: addresses for a raw-socket prober, which neither kernel has.
    """

    def __init__(
        self, undo_log: UndoLog, *, uplink: Uplink, ipv6: bool, allowed: Sequence[IPNetwork], nameservers: Sequence[str]
    ) -> None:
        self._undo_log = undo_log
        self._uplink = uplink
        self.ipv6 = ipv6
        self.notes: list[str] = []
        self.refused: dict[str, str] = {}
        self._outer = f"{INTERFACE_PREFIX}{undo_log.ident}"
        self._descriptor = -1
        self._forwarding: tuple[str, ...] = ()
        self._looked = time.monotonic()
        link = choose_link(used_prefixes(), ipv6=ipv6, rng=random.SystemRandom())
        try:
            self._join_host(link, allowed)
            self._set_up_inside(link, allowed, nameservers)
            self.prober = self._route_prober(link)
        except BaseException:
            self.close()
            raise

    @property
    def prefix(self) -> tuple[str, ...]:
        """Command prefix that enters the namespace."""
        return ("nsenter", f"--net={self.path}", "--")

    @property
    def path(self) -> str:
        """The namespace as a file that our children can open: through our descriptor, since PIDs are reused."""
        return f"/proc/{os.getpid()}/fd/{self._descriptor}"

    def run(self, argv: Sequence[str], *, timeout_s: float = 60.0, stdin: str | None = None) -> Completed:
        """Runs a program in the namespace; it is killed if we end."""
        return process.run(
            (*self.prefix, *PARENT_DEATH, *argv), timeout_s=timeout_s, stdin=stdin, env=self._undo_log.environment
        )

    def count_invalid(self) -> int:
        """Packets of the namespace that connection tracking called invalid, so that they were dropped.

        Raises PlaceError if another program has removed the table (`flush ruleset`): nothing is translated then.
        """
        table = f"upshift_{self._undo_log.ident}"
        done = process.run(("nft", "-json", "list", "counter", "inet", table, INVALID))
        if "No such file or directory" in done.stderr:
            what = f"another program has removed the nftables table inet {table}"
            raise PlaceError(what, remedy="run the same command again")
        done.check(doing="reading the counter of invalid packets")
        return next(
            int(entry["counter"]["packets"]) for entry in json.loads(done.stdout)["nftables"] if "counter" in entry
        )

    def check(self) -> None:
        """Raises PlaceError if another program has switched off or removed what the namespace's packets need: no
        download gets an answer then, whatever its server does. Nothing is said once the namespace is closed: our
        guardian does the same.
        """
        off = next((flag for flag in self._forwarding if sysctls.read(flag) == "0"), None)
        if off is not None and self._descriptor >= 0:
            raise PlaceError(f"another program has switched {off} off", remedy="run the same command again")
        if time.monotonic() - self._looked >= LOOK_S:
            self._looked = time.monotonic()
            try:
                self.count_invalid()
            except PlaceError:
                if self._descriptor >= 0:
                    raise

    def close(self) -> None:
        """Closes the namespace; releasing the undo log removes the rest. May be called twice."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _join_host(self, link: Link, allowed: Sequence[IPNetwork]) -> None:
        """Makes the namespace, the pair of interfaces, the translation and the forwarding."""
        table = f"upshift_{self._undo_log.ident}"
        name = self._uplink.name
        needed = forwarding_flags(name, ipv6=self.ipv6)
        devices = made_of(name)
        flags = self._undo_log.share(needed, devices)
        steps = []
        for device in devices if flags else ():
            with contextlib.suppress(PlaceError):  # a driver without features has no LRO
                if features(device).get("rx-lro"):
                    switch = switch_if_off(flags[0])
                    steps.append(UndoStep(kind="feature", name=device, value="rx-lro", shared=True, switch=switch))
        steps += [UndoStep(kind="link", name=self._outer), UndoStep(kind="table", name=f"inet {table}")]
        self._undo_log.add(steps)

        # The table first: the host must never forward for others.
        switched_on = [flag.split("/")[1] for flag in flags]  # ipv4, ipv6
        text = host_table(table, link=link, interface=self._outer, uplink=name, only_ours=switched_on, allowed=allowed)
        self._undo_log.run(("nft", "-f", "-"), stdin=text).check(
            doing="setting up address translation (see upshift doctor)"
        )
        mark = self._undo_log.environment
        with process.start(("cat",), prefix=("unshare", "--net"), stdin=True, stdout=True, env=mark) as holder:
            self._adopt(holder)
            mtu = str(self._uplink.mtu)
            pair = ("type", "veth", "peer", "name", INTERFACE, "mtu", mtu, "netns", str(holder.pid))
            self._ip("link", "add", self._outer, "mtu", mtu, *pair)
        set_features(self._outer, wire_features(features(self._outer)))
        self._ip("address", "add", str(link.host4), "dev", self._outer)
        if link.host6:
            self._ip("address", "add", str(link.host6), "dev", self._outer, "nodad")
        self._ip("link", "set", self._outer, "up")
        outer = forwarding_flags(self._outer, ipv6=self.ipv6)
        for flag in (*flags, *outer):
            sysctls.write(flag, "1")
        # Without a flag of the interface, IPv6 goes by the switch of all of them.
        by_switch = self.ipv6 and not any(flag.startswith("net/ipv6/") for flag in needed)
        self._forwarding = (*needed, *outer, *([ALL_IPV6] if by_switch else []))
        self._find_forward_blockers()

    def _adopt(self, holder: process.Child) -> None:
        """Opens the namespace of a program that `unshare` started, and lets the guardian open it too."""
        assert holder.stdin is not None and holder.stdout is not None  # noqa: S101 - narrows the types
        try:
            holder.stdin.write("\n")
            holder.stdin.flush()
            answered = holder.stdout.readline()  # it answers when it runs, so after unshare
        except BrokenPipeError:
            answered = ""
        if not answered:
            raise PlaceError(
                "network namespaces cannot be created on this host", remedy="run as root; see upshift doctor"
            )
        self._descriptor = os.open(f"/proc/{holder.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        self._undo_log.hold(self.path)

    def _set_up_inside(self, link: Link, allowed: Sequence[IPNetwork], nameservers: Sequence[str]) -> None:
        """The namespace's own side: rules before the interface is up, so that no packet leaves unchecked."""
        text = inner_table(allowed, nameservers)
        self.run(("nft", "-f", "-"), stdin=text).check(doing="setting up the namespace's firewall")
        # TCP metrics must not carry over between downloads, even where flushing them is refused (user namespace).
        wanted = {**sysctls.inherited(), "net/ipv4/tcp_no_metrics_save": "1"}
        # What comes for the prober is not the kernel's, and must not be sent back.
        wanted |= {"net/ipv4/ip_forward": "0", "net/ipv6/conf/all/forwarding": "0"}
        wanted |= {"net/ipv6/conf/all/accept_ra": "0", "net/ipv6/conf/default/accept_ra": "0"}
        if not self.ipv6:
            wanted["net/ipv6/conf/all/disable_ipv6"] = "1"
        request = json.dumps({"sysctls": wanted, "interface": INTERFACE})
        done = process.run(
            (*self.prefix, *PARENT_DEATH, sys.executable, "-P", "-m", "vantage.host.namespace"),
            stdin=request,
            env={**module_environment(), **self._undo_log.environment},
        ).check(doing="setting up the namespace")
        self.refused = json.loads(done.stdout)["refused"]
        commands = [("link", "set", "lo", "up"), ("address", "add", str(link.inner4), "dev", INTERFACE)]
        if link.inner6:
            commands.append(("address", "add", str(link.inner6), "dev", INTERFACE, "nodad"))
        commands.append(("link", "set", INTERFACE, "up"))
        commands.append(("-4", "route", "add", "default", "via", str(link.host4.ip), "dev", INTERFACE))
        if link.host6:
            commands.append(("-6", "route", "add", "default", "via", str(link.host6.ip), "dev", INTERFACE))
        for command in commands:
            self.run(("ip", *command)).check(doing=f"setting up the namespace (ip {' '.join(command)})")

    def _route_prober(self, link: Link) -> Prober:
        """Leads packets for the prober's addresses into the namespace: nobody answers there for them, so the host gets
        permanent neighbour entries.
        """
        [inside] = json.loads(self.run(("ip", "-json", "link", "show", "dev", INTERFACE)).stdout)
        [outside] = read_json(("ip", "-json", "link", "show", "dev", self._outer))
        for address in (link.prober4, link.prober6):
            if address:
                entry = (str(address), "lladdr", inside["address"], "dev", self._outer, "nud", "permanent")
                self._ip("neighbour", "add", *entry)
        ipv6 = str(link.prober6) if link.prober6 else None
        return Prober(ipv4=str(link.prober4), ipv6=ipv6, device=INTERFACE, neighbour=outside["address"])

    def _ip(self, *arguments: str) -> None:
        self._undo_log.run(("ip", *arguments)).check(doing=f"running ip {' '.join(arguments)}")

    def _find_forward_blockers(self) -> None:
        done = process.run(("nft", "-json", "list", "ruleset"))
        with contextlib.suppress(ValueError):
            self.notes += [
                f"the firewall chain {chain} drops forwarded packets by default; unless one of its rules accepts "
                f"iifname and oifname {self._outer[:3]}*, every download{' over IPv6' * chain.startswith('ip6 ')} "
                "from the campaign's namespace fails"
                for chain in forward_blockers(json.loads(done.stdout), ipv6=self.ipv6)
            ]


def forwarding_flags(interface: str, *, ipv6: bool) -> tuple[str, ...]:
    """The settings that make the kernel forward what arrives on this interface; they have to be 1."""
    names = [f"net/ipv4/conf/{interface}/forwarding"]
    if ipv6 and sysctls.read(ALL_IPV6) != "1":
        names.append(f"net/ipv6/conf/{interface}/force_forwarding")
    return tuple(names)


def why_no_ipv6(uplink: Uplink) -> str | None:
    """Why a namespace gets no IPv6: the uplink has none, or forwarding it needs a host-wide change; None if it does.

    IPv6 has one switch for all interfaces (ip6_forward() reads `conf.all.forwarding`), and switching it on purges the
    default routes that the host learned from router advertisements (net/ipv6/addrconf.c, rt6_purge_dflt_routers).
    Linux 6.17 has `force_forwarding` per interface. Without either, the namespace has IPv4 only.
    """
    if not uplink.ipv6 or not Path("/proc/net/if_inet6").exists():
        return f"the interface {uplink.name} has no global IPv6 address"
    can_forward = sysctls.read(ALL_IPV6) == "1"
    if can_forward or sysctls.read("net/ipv6/conf/all/force_forwarding") is not None:
        return None
    return "its kernel, before Linux 6.17, forwards IPv6 on all interfaces or on none"


SETTLE_S = 2.0
"""Longest wait for the end of connections. Nearly every close is over after two round trips; a server that never
answers our FIN would keep the socket for a minute (tcp(7), tcp_fin_timeout)."""

_POLL_S = 0.02
_OPEN_STATES = ("established", "syn-sent", "fin-wait-1", "fin-wait-2", "close-wait", "last-ack", "closing")


class HostWatch:
    """Waits until no TCP connection to the server is open, and counts packets that this host dropped.

    Args:
        run: runs a program in the place.
        server_ip: the server of this measurement run.
        namespace: the campaign's own, whose interface drops only our packets; without one nothing is counted: the
            host's uplink also drops unrelated packets.
    """

    def __init__(self, run: Callable[..., Completed], server_ip: str, namespace: CampaignNamespace | None) -> None:
        self._run = run
        self._namespace = namespace
        self._server = ipaddress.ip_address(server_ip)
        self._invalid = self._count_invalid()
        self._dropped = self._read_dropped()

    def settle(self) -> None:
        """Returns when every TCP connection to the server is closed (TIME-WAIT counts as closed), or after 2 s.

        This polls the kernel (ss(8), sock_diag(7)) instead of sleeping for a fixed time. QUIC sockets are closed
        with their client, and a last datagram from the server may still arrive.
        """
        states = [word for state in _OPEN_STATES for word in ("state", state)]
        address = f"[{self._server}]" if self._server.version == 6 else str(self._server)
        deadline = time.monotonic() + SETTLE_S
        while time.monotonic() < deadline:
            done = self._run(("ss", "-H", "-t", "-n", *states, "dst", address))
            if done.returncode != 0 or not done.stdout.strip():
                return
            time.sleep(_POLL_S)

    def finish(self) -> Suitability:
        """Disturbed where this host itself lost packets on their way into the namespace or out of it.

        The kernel drops them when the queue between interface and protocol is full (net.core.netdev_max_backlog) and
        counts them for the interface (net/core/dev.c, enqueue_to_backlog): a busy host, not a lossy path. Packets that
        connection tracking calls invalid cannot be translated, so they are dropped: a client's real packets, not sent.
        """
        invalid = self._count_invalid() - self._invalid
        dropped = self._read_dropped() - self._dropped
        disturbed = None
        if dropped > 0:
            detail = f"this host dropped {dropped} packets between its interface and the campaign's namespace"
            disturbed = Disturbance(reason=VoidReason.HOST_DROPPED, detail=detail)
        elif invalid > 0:
            detail = f"connection tracking of this host called {invalid} packets of the campaign's namespace invalid"
            disturbed = Disturbance(reason=VoidReason.CONNTRACK_INVALID, detail=detail)
        return Suitability(disturbed=disturbed, lateness_p99_ms=None, flows={})

    def _count_invalid(self) -> int:
        return self._namespace.count_invalid() if self._namespace else 0

    def _read_dropped(self) -> int:
        if self._namespace is None:
            return 0
        done = self._run(("ip", "-json", "-s", "link", "show", "dev", INTERFACE))
        try:
            return int(json.loads(done.stdout)[0]["stats64"]["rx"]["dropped"])
        except (ValueError, LookupError):
            return 0


def set_up(wanted: dict[str, str], interface: str) -> dict[str, str]:
    """Applies the settings that differ; returns those that could not be applied, with the reason."""
    refused: dict[str, str] = {}
    for name, value in wanted.items():
        present = sysctls.read(name)
        if present is None or present == value:
            continue  # not per namespace, or already set
        try:
            sysctls.write(name, value)
        except (PlaceError, OSError) as error:
            refused[name] = str(error)
    for name in set_features(interface, wire_features(features(interface))):
        refused[f"{interface} {name}"] = "the driver does not switch it off"
    return refused


def main() -> int:
    """Sets the namespace up from within, once: `python -m vantage.host.namespace`.

    Reads one JSON document on standard input, `{"sysctls": {name: value}, "interface": name}`: applies those settings
    and turns off the interface's offloads, so that captures show the packets on the wire. Prints
    `{"refused": {name: reason}}`.
    """
    request = json.load(sys.stdin)
    print(json.dumps({"refused": set_up(request["sysctls"], request["interface"])}))  # noqa: T201 - its answer
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
