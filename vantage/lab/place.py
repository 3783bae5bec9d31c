"""A lab node as an `core.system.place.Place`."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, Unpack

from core.domain import Setting
from core.errors import LabError, PlaceError
from core.files.disk import take_lock
from core.reach import ENVIRONMENT_VARIABLE, LAB_PREFIXES, LOOPBACK_PREFIXES, IPNetwork
from core.system import process
from core.system.place import Prober
from core.system.process import Child, Completed, Pipes
from vantage.lab.addresses import IPV4, IPV6, Addresses, prober_addresses
from vantage.lab.control import LAB_VARIABLE, NODE_VARIABLE
from vantage.lab.pathem import DEVICE, Emulator
from vantage.lab.plan import LabPlan, read_plan
from vantage.lab.state import LabFolder
from vantage.lab.topology import DNS_NODE, PathSpec
from vantage.lab.topology_file import load_topology
from vantage.lab.watch import LabWatch
from vantage.linux import namespace as linux
from vantage.linux.environment import describe_system, first_line

ALLOWED = (*LAB_PREFIXES, *LOOPBACK_PREFIXES)
NETNS = "/run/netns"


def prefix_into(folder: LabFolder, node: str, state: Mapping[str, Any], *, cwd: str | None = None) -> list[str]:
    """The start of a command line that enters a node: namespaces, working folder, environment.

    The path of the namespace is read through the holder's root, as /run/netns there is private. Entering a mount
    namespace changes the working folder to /, hence env(1).
    """
    pid = state["pid"]
    if state["rootless"]:
        enter = [sys.executable, "-I", "-S", str(Path(__file__).with_name("join.py")), str(pid), node]
    else:
        enter = ["nsenter", f"--mount=/proc/{pid}/ns/mnt", f"--net=/proc/{pid}/root{NETNS}/{node}"]
    # The same priority as the lab's own programs: else a client would measure its waiting for a CPU.
    lower = int(state.get("nice", 0)) - os.getpriority(os.PRIO_PROCESS, 0)
    return [
        *(("nice", "-n", str(lower)) if lower < 0 else ()),
        *enter,
        "env",
        f"--chdir={cwd or '/'}",
        f"{ENVIRONMENT_VARIABLE}={','.join(map(str, ALLOWED))}",
        f"{LAB_VARIABLE}={folder.root}",
        f"{NODE_VARIABLE}={node}",
    ]


def prober_of(node: str, own: Addresses | None, *, ipv6: bool) -> Prober:
    """The prober addresses of a vantage point. Raises LabError for another node, whose `own` are None."""
    if own is None:
        raise LabError(f"{node} has no prober address", remedy="use a vantage point of the lab")
    return Prober(ipv4=own.ipv4, ipv6=own.ipv6 if ipv6 else None, device=DEVICE, neighbour=None)


def prober_here(environ: Mapping[str, str]) -> Prober | None:
    """The prober addresses of the node that this process was started in; None outside a lab. Raises as `prober_of`."""
    if LAB_VARIABLE not in environ or NODE_VARIABLE not in environ:
        return None
    folder, node = LabFolder(Path(environ[LAB_VARIABLE])), environ[NODE_VARIABLE]
    own = prober_addresses(load_topology(folder.topology)).get(node)
    return prober_of(node, own, ipv6=read_plan(folder.plan).ipv6)


class LabPlace:
    """A node of a lab that is up; implements `core.system.place.Place`.

    Args:
        paths: server address -> its node, and the path from here; an address that is missing cannot be watched.
        prober: addresses for a raw-socket prober; None for a node that is not a vantage point.
    """

    allowed_prefixes: tuple[IPNetwork, ...] = ALLOWED
    interface = DEVICE

    def __init__(
        self,
        folder: LabFolder,
        name: str,
        *,
        state: Mapping[str, Any],
        plan: LabPlan,
        paths: Mapping[str, tuple[str, PathSpec]],
        prober: Addresses | None,
    ) -> None:
        self.name = name
        self.nameservers: tuple[str, ...] = (plan.addresses[DNS_NODE].ipv4,)
        self.ca_file: Path | None = folder.ca
        self._folder = folder
        self._state = state
        self._plan = plan
        self._paths = paths
        self._prober = prober
        self._emulator: Emulator | None = None
        self._claim: IO[str] | None = None
        self._namespace = linux.Namespace(self.run, (str(IPV4), str(IPV6)) if plan.ipv6 else (str(IPV4),))

    def claim(self) -> None:
        """Reserves this node for settings and measurements until `close`, or until this process ends.

        Raises LabError if another process has reserved it: two campaigns in one namespace would change each other's
        settings.
        """
        handle = self._folder.claim(self.name).open("a+")
        if not take_lock(handle.fileno()):
            handle.seek(0)
            owner = handle.read().strip()
            handle.close()
            raise LabError(
                f"the vantage point {self.name} of the lab {self._folder.name} is in use by process {owner}",
                remedy="wait until that campaign ends, or use another lab (UPSHIFT_STATE_DIR=/run/upshift-2)",
            )
        handle.truncate(0)
        handle.write(f"{os.getpid()}\n")
        handle.flush()
        self._claim = handle

    def prefix(self) -> list[str]:
        """How to start a program here (see `prefix_into`). Raises LabError if the lab no longer exists."""
        pid, started = int(self._state["pid"]), int(self._state["started_ticks"])
        # A PID that has been reused must never be entered.
        if process.start_time_ticks(pid) != started:
            raise LabError(f"the lab {self._folder.name} no longer exists", remedy="run the same command again")
        try:
            cwd = str(Path.cwd())
        except OSError:
            cwd = "/"
        return prefix_into(self._folder, self.name, self._state, cwd=cwd)

    def run(self, argv: Sequence[str], *, timeout_s: float = 60.0, stdin: str | None = None) -> Completed:
        """Runs a program in the node to its end."""
        done = process.run([*self.prefix(), *process.PARENT_DEATH, *argv], timeout_s=timeout_s, stdin=stdin)
        return replace(done, argv=tuple(argv))

    def start(self, argv: Sequence[str], **pipes: Unpack[Pipes]) -> Child:
        """Starts a program in the node in the background."""
        return process.start(argv, prefix=self.prefix(), **pipes)

    def apply(self, settings: Sequence[Setting]) -> None:
        """Sets sysctls and route attributes of the node's namespace, and flushes cached TCP metrics."""
        self._namespace.apply(settings)

    def limit_settings(self, names: Collection[str]) -> None:
        """See `vantage.linux.namespace.Namespace.limit`."""
        self._namespace.limit(self.start, names)

    def measuring(self) -> AbstractContextManager[None]:
        """Nothing to do: the path emulator keeps the CPUs awake as long as the lab is up."""
        return nullcontext()

    def watch(self, server_ip: str) -> LabWatch:
        """Starts to watch both directions of the path to this server. Raises LabError if there is no path."""
        if self._emulator is None:
            self._emulator = Emulator(self._folder.socket)
        if server_ip not in self._paths:
            raise LabError(f"no server of the lab {self._folder.name} has the address {server_ip}", where=self.name)
        node, path = self._paths[server_ip]
        local = self._plan.addresses[self.name]
        here = local.ipv6 if ":" in server_ip else local.ipv4
        ends = (self.name, here), (node, server_ip)
        return LabWatch(self._emulator, ends, rtt_ms=path.rtt_ms, queue_ms=path.queue_ms)

    def prober(self) -> Prober:
        """The vantage point's prober addresses. Raises LabError for another node."""
        return prober_of(self.name, self._prober, ipv6=self._plan.ipv6)

    def check(self) -> None:
        """Raises LabError if the lab no longer exists or one of its programs has ended.

        Programs that joined the lab outlive it and keep its namespaces, without devices: all DNS look-ups fail there.
        """
        self.prefix()
        state = self._folder.read_state() or {}
        detail = str(state.get("detail", "")) if state.get("status") != "ready" else ""
        if not detail:
            try:  # a new connection: the holder notices a moment later
                Emulator(self._folder.socket).close()
                return
            except LabError:
                detail = "its path emulator has ended"
        # A lab that came up with the command goes with it.
        again = "run the same command again"
        stays = not self._state["attached"]
        raise LabError(
            f"the lab {self._folder.name} is unhealthy ({detail})",
            remedy=f"run: upshift lab down {self._folder.name}, then {again}" if stays else again,
        )

    def environment(self) -> Mapping[str, object]:
        """The record to store with the data of this place."""
        with closing(Emulator(self._folder.socket)) as emulator:
            timing = emulator.timing(self._state)
        commands = {"tcpdump": ("tcpdump", "--version"), "ip": ("ip", "-V"), **self._plan.versions}
        return {
            "kind": "lab",
            "name": self.name,
            "topology": self._plan.name,
            "topology_sha256": self._plan.topology_sha256,
            "rootless": self._state["rootless"],
            "emulator": shlex.join(self._plan.emulator),
            "timing": timing,
            "versions": {program: first_line(argv) or "" for program, argv in commands.items()},
            **describe_system(self.run),
        }

    def close(self) -> None:
        """Restores the node's settings, closes the connection to the emulator and releases the claim."""
        try:
            if process.start_time_ticks(int(self._state["pid"])) == self._state["started_ticks"]:
                self._namespace.restore()
        except PlaceError:
            try:
                self.check()
            except LabError:
                return  # nothing can be restored in a broken lab; the error has already been reported
            raise
        finally:
            if self._emulator is not None:
                self._emulator.close()
                self._emulator = None
            if self._claim is not None:
                self._claim.close()
                self._claim = None


def command_into(folder: LabFolder, node: str, argv: Sequence[str], *, state: Mapping[str, Any]) -> list[str]:
    """A whole command line that runs `argv` in a node, for execvp(3); common programs trust the lab's certificates."""
    words = list(argv[1:] if argv and argv[0] == "--" else argv)
    trust = [f"{name}={folder.ca}" for name in ("SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE")]
    return [*prefix_into(folder, node, state, cwd=str(Path.cwd())), *trust, *words]
