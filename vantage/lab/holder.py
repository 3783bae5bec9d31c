"""The holder: process 1 of a lab's PID namespace, owner of its mount and network namespaces.

    python -m vantage.lab.holder FOLDER --owner-fd N [--attached]

Started by `vantage.lab.control` inside `unshare`. It builds what FOLDER/plan.json says, reports each step as a
JSON line on standard output (`{"step", "done", "total"}`, then `{"ready": true}` or `{"failed": SENTENCE}`), then
watches the programs until it is stopped. When it ends, however it ends, the kernel kills every process of the PID
namespace, and with them the TUN devices, namespaces and mounts disappear: nothing can be left behind.

The owner is the process that started it, as a pidfd. The holder ends with its owner while the lab comes up, and later
too if the lab is attached.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import select
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from core.errors import LabError, UpshiftError
from core.reach import ENVIRONMENT_VARIABLE
from core.system import process
from vantage.lab.pathem import DEVICE
from vantage.lab.plan import read_plan
from vantage.lab.state import LabFolder
from vantage.lab.topology import DNS_NODE
from vantage.linux import cpu
from vantage.linux.ports import local_ports
from vantage.server_kind import ProgramPlan

RUN = Path("/run")
NETNS = RUN / "netns"


def private_netns_folder() -> None:
    """Covers /run/netns, where iproute2 keeps namespaces, with an empty file system that is private to the lab."""
    try:
        NETNS.mkdir(mode=0o755, exist_ok=True)
    except PermissionError:
        _private_run()
        NETNS.mkdir(mode=0o755, exist_ok=True)
    _mount("-t", "tmpfs", "-o", "mode=755", "upshift-lab", str(NETNS))


def _private_run() -> None:
    """Covers /run with a folder that has the same entries, since only root can create /run/netns.

    Everything stays reachable at its path (this lab's own folder may be below /run/user).
    """
    staging = Path(tempfile.mkdtemp(prefix="upshift-run-"))
    _mount("-t", "tmpfs", "-o", "mode=755", "upshift-run", str(staging))
    for entry in RUN.iterdir():
        copy = staging / entry.name
        try:
            if entry.is_symlink():
                copy.symlink_to(entry.readlink())
            elif entry.is_dir():
                copy.mkdir()
                _mount("--rbind", str(entry), str(copy))
            else:
                copy.touch()
                _mount("--bind", str(entry), str(copy))
        except (OSError, LabError):
            continue  # if it cannot be bound, we may not use it either
    _mount("--move", str(staging), str(RUN))
    staging.rmdir()


def cover_resolv_conf(replacement: Path) -> None:
    """Makes programs in the lab use the lab's DNS server."""
    target = Path("/etc/resolv.conf")
    if target.exists():
        _mount("--bind", str(replacement), str(target.resolve()))


def _mount(*arguments: str) -> None:
    done = process.run(["mount", *arguments])
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise LabError(f"mounting in the lab's own mount namespace failed ({reason})", remedy="see: upshift doctor")


CLONE_NEWNET = 0x40000000
CONNECT_TIMEOUT_S = 2.0

Result = TypeVar("Result")


def in_node(node: str, work: Callable[[], Result]) -> Result:
    """Runs `work` in a thread that is in the node's network namespace (setns(2) moves one thread, here a new one)."""

    def body() -> Result:
        descriptor = os.open(NETNS / node, os.O_RDONLY | os.O_CLOEXEC)
        try:
            library = ctypes.CDLL(None, use_errno=True)
            if library.setns(descriptor, CLONE_NEWNET):
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number))
        finally:
            os.close(descriptor)
        return work()

    with ThreadPoolExecutor(max_workers=1) as pool:
        try:
            return pool.submit(body).result()
        except OSError as error:
            raise LabError(f"node {node} cannot be entered ({error.strerror})") from None


def answers(node: str, address: str, port: int) -> bool:
    """Whether something in the node accepts connections there."""

    def connect() -> bool:
        try:
            with socket.create_connection((address, port), timeout=CONNECT_TIMEOUT_S):
                return True
        except OSError:
            return False

    return in_node(node, connect)


def udp_bound(node: str, port: int) -> bool:
    """Whether a UDP socket of the node is bound to the port."""
    return port in in_node(node, lambda: local_ports("udp", "thread-self"))


NICE = -10
"""Nice value of all programs of the lab, and those that join it, where permitted."""

READY_TIMEOUT_S = 45.0
LOG_TAIL_LINES = 5


class Holder:
    """Builds a lab and keeps it."""

    def __init__(self, folder: LabFolder, owner: int, *, attached: bool) -> None:
        self.folder = folder
        self.plan = read_plan(folder.plan)
        self.children: dict[str, process.Child] = {}
        self._owner: int | None = owner
        self._attached = attached
        self._total = 5 + len(self.plan.programs)
        self._done = 0
        self._dead: list[str] = []
        # /proc is the host's, so this is our number there.
        outer = int(Path("/proc/self").readlink().name)
        self._state: dict[str, Any] = {
            "pid": outer,
            "started_ticks": process.start_time_ticks(outer),
            "rootless": os.geteuid() != 0,
            "attached": attached,
            "nice": cpu.raise_priority(NICE),
            "fifo_priority": 0,
        }

    def save(self, status: str, detail: str = "") -> None:
        """Writes state.json whole."""
        part = self.folder.state.with_suffix(".part")
        part.write_text(json.dumps({**self._state, "status": status, "detail": detail}), encoding="utf-8")
        part.replace(self.folder.state)

    def step(self, what: str) -> None:
        """Reports a finished step, and ends if the owner has ended."""
        self._done += 1
        say({"step": what, "done": self._done, "total": self._total})
        self.check_owner()

    def check_owner(self) -> None:
        """Ends this process, and with it the lab, if the owner has ended."""
        if self._owner is not None and select.select([self._owner], [], [], 0)[0]:
            self.save("failed", "the process that started this lab has ended")
            self.leave()

    def leave(self, code: int = 0) -> NoReturn:
        """Ends this process, and with it the lab.

        First the emulator, for up to 1 s: it lets the idle-priority processes end soon, which on a busy host would
        delay the end of the lab (docs/design/pathem.md). Works within a signal handler, too.
        """
        with suppress(KeyError, ProcessLookupError, ChildProcessError):
            emulator = self.children["pathem"].pid
            os.kill(emulator, signal.SIGTERM)
            deadline = time.monotonic() + 1.0
            flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
            while os.waitid(os.P_PID, emulator, flags) is None and time.monotonic() < deadline:
                time.sleep(0.005)
        os._exit(code)

    def build(self) -> None:
        """Brings everything up. Raises UpshiftError with a sentence for the user."""
        self.save("starting")
        private_netns_folder()
        cover_resolv_conf(self.plan.resolv_conf)
        nodes = self.plan.nodes
        _batch([f"netns add {node.name}" for node in nodes], "creating the network namespaces")
        self.step("namespaces")
        for node in nodes:
            settings = [f"{name}={value}" for name, value in node.sysctls.items()]
            self._in_node(node.name, ["sysctl", "-qw", *settings], "setting up")
            self._in_node(node.name, ["ip", "link", "set", "lo", "up"], "bringing loopback up in")
        self.step("settings")
        self._start_emulator()
        stop_pacing([node.name for node in nodes])
        self.step("path emulator")
        for node in nodes:
            doing = f"setting up the routes of {node.name}"
            _batch(node.ip_batch, doing, "-n", node.name)
            _batch(node.ip6_batch, doing, "-6", "-n", node.name)
        self.step("routes")
        for program in self.plan.programs:
            self._start(program.name, program.node, program.argv, program.env)
            if self.plan.fifo_priority is not None and program.node != DNS_NODE:
                granted = cpu.make_fifo(self.children[program.name].pid, self.plan.fifo_priority)
                self._state["fifo_priority"] = granted
        self.step("servers")
        deadline = time.monotonic() + READY_TIMEOUT_S
        for program in self.plan.programs:
            self._await(program, deadline)
            self.step(program.name)

    def _in_node(self, node: str, argv: Sequence[str], doing: str) -> None:
        process.run(["nsenter", f"--net={NETNS}/{node}", *argv]).check(doing=f"{doing} node {node}")

    def _start(self, name: str, node: str | None, argv: Sequence[str], env: Mapping[str, str]) -> None:
        prefix = ["nsenter", f"--net={NETNS}/{node}"] if node else []
        log = self.folder.logs / f"{name}.log"
        self.children[name] = process.start(argv, prefix=prefix, stdout=log, stderr=log, env=env)

    def _start_emulator(self) -> None:
        self._start("pathem", None, self.plan.emulator, {})
        deadline = time.monotonic() + READY_TIMEOUT_S
        # The socket appears last, when all devices exist.
        while not self.folder.socket.is_socket():
            self._check_child("pathem", deadline)

    def _check_child(self, name: str, deadline: float) -> None:
        """Waits briefly; raises if the program has ended or time is up."""
        code = self.children[name].returncode
        if code is not None:
            raise LabError(
                f"the lab's {name} ended with code {code}{self._tail(name)}", remedy=_remedy(self._tail(name))
            )
        if time.monotonic() > deadline:
            raise LabError(f"the lab's {name} was not ready within {READY_TIMEOUT_S:g} s{self._tail(name)}")
        self.check_owner()
        time.sleep(0.01)

    def _tail(self, name: str) -> str:
        log = self.folder.logs / f"{name}.log"
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_TAIL_LINES:] if log.exists() else []
        return f"; end of its log ({log}): " + " | ".join(lines) if lines else ""

    def _await(self, program: ProgramPlan, deadline: float) -> None:
        for address, port in program.tcp:
            while not answers(program.node, address, port):
                self._check_child(program.name, deadline)
        for port in program.udp:
            while not udp_bound(program.node, port):
                self._check_child(program.name, deadline)
        # Another program may have taken the port and answered.
        self._check_child(program.name, deadline)

    def supervise(self) -> NoReturn:
        """Watches the programs until a signal ends this process."""
        if not self._attached and self._owner is not None:
            os.close(self._owner)
            self._owner = None
        while True:
            time.sleep(0.25)
            self.check_owner()
            dead = sorted(name for name, child in self.children.items() if child.returncode is not None)
            if dead != self._dead:
                self._dead = dead
                sentences = [f"{name} ended with code {self.children[name].returncode}" for name in dead]
                self.save("unhealthy", "; ".join(sentences))
            self._reap()

    def _reap(self) -> None:
        """Orphans in the lab become our children: reaps one that has ended, but not our own programs."""
        own = {child.pid for child in self.children.values()}
        with suppress(ChildProcessError):
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is not None and ended.si_pid not in own:
                os.waitpid(ended.si_pid, os.WNOHANG)


def stop_pacing(nodes: Sequence[str]) -> None:
    """Another queue for the nodes' devices where the host's default (`net.core.default_qdisc`) is fq, which paces every
    TCP connection (tc-fq(8)) but for its first ten segments (net/ipv4/tcp_output.c, tcp_update_skb_after_send).
    """
    listed = process.run(["ip", "-n", nodes[0], "link", "show", "dev", DEVICE]).stdout
    for node in nodes if " qdisc fq " in listed else ():
        argv = ["tc", "-n", node, "qdisc", "replace", "dev", DEVICE, "root", "pfifo_fast"]
        process.run(argv).check(doing=f"setting up the device of {node}")


def _remedy(tail: str) -> str | None:
    if "address already in use" in tail.lower():
        return "another program on that node uses the port; run: upshift lab down"
    if "/dev/net/tun" in tail:
        return "make /dev/net/tun usable (modprobe tun; without root also: sudo chmod 0666 /dev/net/tun)"
    return None


def _batch(lines: Sequence[str], doing: str, *options: str) -> None:
    if lines:
        process.run(["ip", *options, "-batch", "-"], stdin="\n".join(lines) + "\n").check(doing=doing)


def say(message: Mapping[str, object]) -> None:
    """Writes one line to the process that starts the lab; `check_owner` notices if that has ended."""
    with suppress(OSError):
        print(json.dumps(message), flush=True)  # noqa: T201 - the protocol


def main() -> None:
    """Builds, reports, watches."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--owner-fd", type=int, required=True)
    parser.add_argument("--attached", action="store_true")
    options = parser.parse_args()
    # Programs of the lab may contact the lab only.
    os.environ[ENVIRONMENT_VARIABLE] = "198.18.0.0/15,fd00:198:18::/48,127.0.0.0/8,::1/128"
    holder = Holder(LabFolder(options.folder), options.owner_fd, attached=options.attached)
    for number in (signal.SIGTERM, signal.SIGINT):
        # Process 1 ignores signals without a handler. The kernel cleans up after it.
        signal.signal(number, lambda *_: holder.leave())
    try:
        holder.build()
    except UpshiftError as error:
        holder.save("failed", error.sentence())
        say({"failed": error.what, "remedy": error.remedy})
        holder.leave(2)
    holder.save("ready")
    say({"ready": True})
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)
    holder.supervise()


if __name__ == "__main__":
    main()
