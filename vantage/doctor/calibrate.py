"""Measures the ceilings of clients: every client at the same rising rates, then against the fastest server here.

    python -m vantage.doctor.calibrate FOLDER ORDER

is the program that runs in a private network namespace; ORDER is JSON, the fields of `_Order`. It prints one JSON line
per client and kind of packets. Client and server share this host's CPUs: if the server is the limit, the true ceiling
is higher.

The path is a veth pair between that namespace and a second one, the server's. Segmentation and GRO are off at both
ends, as are checksum offloads, as in a campaign's namespace (docs/design/host.md): the client gets single packets,
which need more CPU time than merged ones. These come by GRO at the client's end. A token bucket (tc-tbf(8)) at the
server's end limits the rate. There is no route out of either namespace. The servers are those of the lab
(`vantage.servers`), with one file and without logs.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from core.domain import Transport
from core.errors import PlaceError, UpshiftError
from core.files.config import build
from core.files.fixed_rates import MET_SHARE, RATES, PacketForm, Transfer, fastest
from core.reach import ENVIRONMENT_VARIABLE
from core.system import process
from core.system.place import Program
from core.terminal import Progress
from core.untrusted import last_line
from vantage.doctor.ceilings import MeasuredCeiling, read_answer
from vantage.doctor.gather import private_namespace
from vantage.linux.offloads import features, set_features, wire_features
from vantage.linux.ports import local_ports
from vantage.server_kind import ProgramPlan, ServerKind, ServerRole, ServerSetup
from vantage.servers import ALL

PREFIX = "198.19.255.0/30"
SERVER_ADDRESS, CLIENT_ADDRESS = "198.19.255.1", "198.19.255.2"
_SERVER_END, _CLIENT_END = "ups-server", "ups-client"

_BURST_S = 0.001
"""Size of the token bucket [s]: shorter bursts would need a higher timer rate."""
_SMALLEST_BURST_BYTES = 80_000
"""The bucket splits a larger piece of the sender (GSO: 64 kB, and a header per packet), and then each packet wakes the
client: up to 500 Mbit/s, where 1 ms is less, that cost curl 8 to 22 CPU-s/GB, in place of 2 to 8."""
_QUEUE_S = 0.05
_SMALLEST_QUEUE_BYTES = 256_000
_READY_S = 5.0


class Pair:
    """Two connected namespaces, during the block. Call it only in a private network namespace.

    Raises PlaceError if the kernel refuses.
    """

    def __init__(self, packets: PacketForm = PacketForm.SINGLE) -> None:
        self._merged = packets is PacketForm.MERGED

    def __enter__(self) -> Pair:
        self._stack = ExitStack()
        try:
            # The second namespace exists as long as this program, which waits for the end of its input.
            self._holder = self._stack.enter_context(process.start(("unshare", "--net", "--", "cat"), stdin=True))
            self._wait_for_namespace()
            self._connect()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def server_prefix(self) -> tuple[str, ...]:
        """Command prefix that enters the server's namespace."""
        return ("nsenter", f"--net=/proc/{self._holder.pid}/ns/net", "--")

    def limit(self, mbit_s: float | None) -> None:
        """Limits the rate towards the client; None: no limit.

        Raises PlaceError if the kernel has no token bucket.
        """
        tc = (*self.server_prefix, "tc", "qdisc")
        process.run((*tc, "del", "dev", _SERVER_END, "root"))  # there may be none
        if mbit_s is None:
            return
        bytes_per_s = mbit_s * 1e6 / 8
        burst = max(_SMALLEST_BURST_BYTES, round(bytes_per_s * _BURST_S))
        queue = burst + max(_SMALLEST_QUEUE_BYTES, round(bytes_per_s * _QUEUE_S))
        bucket = ("rate", f"{round(mbit_s * 1e6)}bit", "burst", str(burst), "limit", str(queue))
        process.run((*tc, "add", "dev", _SERVER_END, "root", "tbf", *bucket)).check(doing="limiting the rate")

    def _wait_for_namespace(self) -> None:
        ours, deadline = Path("/proc/self/ns/net").readlink(), time.monotonic() + _READY_S
        while time.monotonic() < deadline and self._holder.returncode is None:
            if Path(f"/proc/{self._holder.pid}/ns/net").readlink() != ours:
                return
            time.sleep(0.005)
        raise PlaceError("a second network namespace cannot be created")

    def _connect(self) -> None:
        # Servers listen at 443, and a vantage point's service has no CAP_NET_BIND_SERVICE.
        ports = ("sysctl", "-q", "-w", "net.ipv4.ip_unprivileged_port_start=0")
        process.run((*self.server_prefix, *ports)).check(doing="opening the server's port")
        self._batch(f"link add {_CLIENT_END} mtu 1500 type veth peer name {_SERVER_END} mtu 1500")
        # The kernel removes a namespace some time after its last process, and the next pair has the same names.
        self._stack.callback(process.run, ("ip", "link", "del", _CLIENT_END))
        for end in (_CLIENT_END, _SERVER_END):
            set_features(end, wire_features(features(end)))
        if self._merged:  # as by a network card, which checks checksums, too
            set_features(_CLIENT_END, {"rx-gro": True})
            set_features(_SERVER_END, {name: True for name in features(_SERVER_END) if "tx-checksum" in name})
        self._batch(
            f"link set {_SERVER_END} netns {self._holder.pid}",
            f"address add {CLIENT_ADDRESS}/30 dev {_CLIENT_END}",
            f"link set {_CLIENT_END} up",
        )
        lines = ("link set lo up", f"address add {SERVER_ADDRESS}/30 dev {_SERVER_END}", f"link set {_SERVER_END} up")
        self._batch(*lines, prefix=self.server_prefix)

    @staticmethod
    def _batch(*lines: str, prefix: tuple[str, ...] = ()) -> None:
        text = "\n".join(lines) + "\n"
        process.run((*prefix, "ip", "-batch", "-"), stdin=text).check(doing="connecting two namespaces")


def cpu_s(pid: int) -> float:
    """CPU time of a process's running threads [s]; /proc/PID/task/*/schedstat, first number [ns]."""
    spent = 0
    for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        try:
            spent += int(path.read_text(encoding="ascii").split()[0])
        except FileNotFoundError:  # the thread has ended
            continue
    return spent / 1e9


KINDS: Mapping[str, tuple[str, ...]] = {"1.1": ("nginx", "caddy"), "2": ("nginx", "caddy"), "3": ("quiche",)}
"""HTTP version -> the server kinds that clients are measured against: the fastest installed one counts."""

HOST = "ceiling.upshift.test"
PORT = 443
FILE_BYTES = 64_000_000
"""Body size [bytes]; as with most bodies, clients keep it in memory and hash it after the last byte."""

_SERVER_READY_S = 20.0


def prepare(folder: Path) -> None:
    """Writes certificates, and the file (sparse: it takes no disk space)."""
    import trustme

    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    certificate = authority.issue_cert(HOST)
    certificate.private_key_pem.write_to_path(str(folder / f"{HOST}.key"))
    for position, part in enumerate(certificate.cert_chain_pems):
        part.write_to_path(str(folder / f"{HOST}.pem"), append=position > 0)
    (folder / "content").mkdir()
    with (folder / "content" / "file").open("wb") as handle:
        handle.truncate(FILE_BYTES)


def plan_server(kind: ServerKind, transport: Transport, folder: Path) -> ProgramPlan:
    """The program of a kind that serves the file of `prepare` at the server's end, as in a lab."""
    role = ServerRole.WEB if transport is Transport.TCP else ServerRole.QUIC
    setup = ServerSetup(
        name=HOST,
        roles=frozenset({role}),
        folder=folder / kind.name,
        content=folder / "content",
        certificates=folder,
        domains=[HOST],
        ipv4=SERVER_ADDRESS,
        congestion_control=kind.quic.congestion_control[0] if kind.quic else "",
    )
    [program] = kind.programs(setup)
    return program


def wait_until_ready(server: process.Child, transport: Transport, log: Path) -> None:
    """Returns when the server has bound its port, by its network namespace's tables (proc(5)). Raises PlaceError."""
    deadline = time.monotonic() + _SERVER_READY_S
    protocol: Literal["tcp", "udp"] = "tcp" if transport is Transport.TCP else "udp"
    while server.returncode is None and time.monotonic() < deadline:
        # A connection of the server before may be in TIME-WAIT at the port.
        if PORT in local_ports(protocol, server.pid, unconnected=True):
            return
        time.sleep(0.02)
    reason = _last_line(log) if log.exists() else ""
    raise PlaceError(f"{server.argv[0]} did not start" + (f": {reason}" if reason else ""))


def _last_line(log: Path) -> str:
    return last_line(log.read_text(encoding="utf-8", errors="replace"))


_SPARE_S = 20.0
"""How long a client may run after its transfer [s]."""


def _kinds(client: Program) -> tuple[str, ...]:
    return KINDS[client.http or ("1.1" if client.transport is Transport.TCP else "3")]


def installed_servers(client: Program) -> list[str]:
    """The kinds of `KINDS` for a client that can be started here."""
    return [name for name in _kinds(client) if ALL[name].missing() is None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    """What the program in the private namespace has to do."""

    seconds: float
    """The longest duration of a transfer."""
    rates: Sequence[float]
    """Offered to each client [Mbit/s]."""
    packets: Sequence[PacketForm]
    clients: Mapping[str, tuple[Transport, Sequence[str], Sequence[str]]]
    """Client -> transport, names of the server kinds, and command line."""


def measure(
    clients: Iterable[Program],
    seconds: float,
    *,
    rates: Sequence[float] = RATES,
    packets: Sequence[PacketForm] = tuple(PacketForm),
    progress: Progress,
) -> list[MeasuredCeiling]:
    """Every client's ceiling, and its transfers at these rates [Mbit/s]; each transfer takes at most `seconds`.

    Raises PlaceError if namespaces cannot be created here, or a server does not start.
    """
    programs = list(clients)
    faults = {client.name: client.missing() or _no_server(client) for client in programs}
    able = {c.name: (c.transport, installed_servers(c), c.command()) for c in programs if faults[c.name] is None}
    transfers: dict[str, list[Transfer]] = {client.name: [] for client in programs}
    total = len(able) * len(packets)
    progress.update("calibrate", done=0, total=total)
    order = _Order(seconds=seconds, rates=rates, packets=packets, clients=able)
    with tempfile.TemporaryDirectory(prefix="upshift-ceilings-") as folder:
        for done, (name, measured) in enumerate(_at_fixed_rates(order, Path(folder)) if able else (), 1):
            transfers[name] += measured
            faulty = sum(t.fault is not None for each in transfers.values() for t in each)
            progress.update("calibrate", done=done, total=total, failed=faulty, note=name)
    return [
        MeasuredCeiling(client=client, transfers=transfers[client.name], fault=faults[client.name])
        for client in programs
    ]


def _no_server(client: Program) -> str | None:
    return None if installed_servers(client) else " and ".join(filter(None, (ALL[k].missing() for k in _kinds(client))))


def _at_fixed_rates(order: _Order, folder: Path) -> Iterator[tuple[str, list[Transfer]]]:
    """(client, transfers) from the program in the private namespace."""
    argv = (sys.executable, "-P", "-m", "vantage.doctor.calibrate", str(folder), json.dumps(asdict(order)))
    error_log = folder / "stderr"
    with process.start(
        argv, prefix=private_namespace(), stdout=True, stderr=error_log, env=process.module_environment()
    ) as child:
        for line in child.stdout or ():
            client, transfers = json.loads(line)
            yield client, [build(transfer, Transfer, where=client) for transfer in transfers]
        code = child.wait(_SPARE_S)
    if code != 0:
        reason = _last_line(error_log) or f"exit code {code}"
        raise PlaceError(f"the clients' ceilings cannot be measured here: {reason}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bench:
    """One client at this end of the pair, one server at a time at the other."""

    pair: Pair
    folder: Path
    order: _Order
    packets: PacketForm
    client: str

    def calibrate(self) -> Iterator[Transfer]:
        """One transfer per server without a limit, then rising rates with the fastest, up to the first missed one."""
        free = []
        for kind in self.order.clients[self.client][1]:
            with self._serving(kind) as server:
                free.append(self._transfer(server, kind, None))
        yield from free
        if not self.order.rates or (best := fastest(free)) is None:
            return
        with self._serving(best.server) as server:
            for rate in self.order.rates:
                yield (transfer := self._transfer(server, best.server, rate))
                if (transfer.mbit_s or 0.0) < MET_SHARE * rate:
                    return

    @contextmanager
    def _serving(self, kind: str) -> Iterator[process.Child]:
        """Runs a server during the block."""
        transport = self.order.clients[self.client][0]
        log, plan = self.folder / f"{kind}.log", plan_server(ALL[kind], transport, self.folder)
        prefix = self.pair.server_prefix
        with process.start(plan.argv, prefix=prefix, stderr=log, env=dict(plan.env)) as server:
            wait_until_ready(server, transport, log)
            yield server

    def _transfer(self, server: process.Child, kind: str, offered_mbit_s: float | None) -> Transfer:
        seconds, argv = self.order.seconds, self.order.clients[self.client][2]
        shared = ("--url", f"https://{HOST}:{PORT}/file", "--address", SERVER_ADDRESS, "--port", str(PORT))
        limits = ("--budget-s", f"{seconds:g}", "--max-bytes", str(2 * FILE_BYTES), "--allow", PREFIX)
        command = (*process.PARENT_DEATH, *argv, *shared, "--ca", str(self.folder / "ca.pem"), *limits)
        environment = {**process.module_environment(), ENVIRONMENT_VARIABLE: PREFIX}
        known = Transfer(server=kind, packets=self.packets, offered_mbit_s=offered_mbit_s)
        try:
            self.pair.limit(offered_mbit_s)
            before = cpu_s(server.pid)
            done = process.run(command, env=environment, timeout_s=seconds + _SPARE_S)
            spent = cpu_s(server.pid) - before
            answer: Mapping[str, Any] = json.loads(done.check(doing="downloading").stdout)
            return read_answer(answer, known, server_cpu_s=spent)
        except UpshiftError as error:
            return replace(known, fault=error.what)
        except ValueError:
            return replace(known, fault="its output is not valid JSON")


def main(arguments: list[str]) -> int:
    """The program that runs in the private namespace."""
    folder, order = Path(arguments[0]), build(json.loads(arguments[1]), _Order, where="order")
    prepare(folder)
    for packets in order.packets:
        with Pair(packets) as pair:
            for client in order.clients:
                bench = _Bench(pair=pair, folder=folder, order=order, packets=packets, client=client)
                print(json.dumps([client, [asdict(transfer) for transfer in bench.calibrate()]]), flush=True)  # noqa: T201
    return 0


if __name__ == "__main__":
    try:
        raise SystemExit(main(sys.argv[1:]))
    except UpshiftError as error:
        raise SystemExit(error.sentence()) from None
