"""Measures the ceilings of clients: every client against the fastest server here, at rising rates.

    python -m vantage.doctor.calibrate FOLDER SECONDS CLIENTS

is the program that runs in a private network namespace; CLIENTS is JSON, client -> transport and command line. It
prints one JSON line per transfer. Client and server share this host's CPUs: if the server is the limit, the true
ceiling is higher.

The path is a veth pair between that namespace and a second one, the server's. Segmentation, GRO and checksum offloads
are off at both ends, as in a campaign's namespace (docs/design/host.md): the client gets single packets, which need
more CPU time than merged ones. A token bucket (tc-tbf(8)) at the server's end limits the rate. There is no route out of
either namespace. The servers are those of the lab (`vantage.servers`), with one file and without logs.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from core.domain import Transport
from core.errors import PlaceError, UpshiftError
from core.reach import ENVIRONMENT_VARIABLE
from core.system import process
from core.system.place import Program
from core.terminal import Progress
from vantage.doctor.ceilings import MeasuredCeiling, Transfer, read_answer
from vantage.doctor.gather import private_namespace
from vantage.host.undo_log import module_environment
from vantage.linux.offloads import features, set_features, wire_features
from vantage.server_kind import ProgramPlan, ServerKind, ServerRole, ServerSetup
from vantage.servers import ALL

PREFIX = "198.19.255.0/30"
SERVER_ADDRESS, CLIENT_ADDRESS = "198.19.255.1", "198.19.255.2"
_SERVER_END, _CLIENT_END = "ups-server", "ups-client"

_BURST_S = 0.001
"""Size of the token bucket [s]: shorter bursts would need a higher timer rate."""
_SMALLEST_BURST_BYTES = 32_000
_QUEUE_S = 0.05
_SMALLEST_QUEUE_BYTES = 256_000
_READY_S = 5.0


class Pair:
    """Two connected namespaces, during the block. Call it only in a private network namespace.

    Raises PlaceError if the kernel refuses.
    """

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

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        for end in (_CLIENT_END, _SERVER_END):
            set_features(end, wire_features(features(end)))
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


KINDS: Mapping[Transport, tuple[str, ...]] = {Transport.TCP: ("nginx", "caddy"), Transport.QUIC: ("quiche",)}
"""The server kinds that clients of each transport are measured against: the fastest installed one counts."""

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
    protocol = "tcp" if transport is Transport.TCP else "udp"
    bound = re.compile(rf":{PORT:04X} 0+:0000 ")
    while server.returncode is None and time.monotonic() < deadline:
        for name in (protocol, f"{protocol}6"):
            with suppress(OSError):
                if bound.search(Path(f"/proc/{server.pid}/net/{name}").read_text(encoding="ascii")):
                    return
        time.sleep(0.02)
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() if log.exists() else []
    raise PlaceError(f"{server.argv[0]} did not start" + (f": {lines[-1]}" if lines else ""))


FRACTIONS = (0.125, 0.25, 0.5, 0.75, 1.0)
"""Offered rates, as shares of the client's highest rate without a limit."""

_SPARE_S = 20.0
"""How long a client may run after its transfer [s]."""


def installed_servers(transport: Transport) -> list[ServerKind]:
    """The kinds of `KINDS` that can be started here."""
    return [ALL[name] for name in KINDS[transport] if ALL[name].missing() is None]


def measure(clients: Iterable[Program], seconds: float, *, progress: Progress) -> list[MeasuredCeiling]:
    """Every client's ceiling; each transfer takes at most `seconds`.

    Raises PlaceError if namespaces cannot be created here, or a server does not start.
    """
    programs = list(clients)
    faults = {client.name: client.missing() or _no_server(client) for client in programs}
    able = [client for client in programs if faults[client.name] is None]
    transfers: dict[str, list[Transfer]] = {client.name: [] for client in programs}
    total = sum(len(FRACTIONS) + len(installed_servers(client.transport)) for client in able)
    done = 0
    progress.update("calibrate", done=0, total=total)
    with tempfile.TemporaryDirectory(prefix="upshift-ceilings-") as folder:
        for name, transfer in _transfers(able, seconds, Path(folder)):
            transfers[name].append(transfer)
            done += 1
            faulty = sum(t.fault is not None for each in transfers.values() for t in each)
            progress.update("calibrate", done=min(done, total), total=total, failed=faulty, note=name)
    return [
        MeasuredCeiling(
            client=client.name,
            transport=client.transport,
            versions=client.versions(),
            transfers=tuple(transfers[client.name]),
            fault=faults[client.name],
        )
        for client in programs
    ]


def _no_server(client: Program) -> str | None:
    if installed_servers(client.transport):
        return None
    return " and ".join(filter(None, (ALL[name].missing() for name in KINDS[client.transport])))


def _transfers(clients: Sequence[Program], seconds: float, folder: Path) -> Iterator[tuple[str, Transfer]]:
    """(client, transfer) from the program in the private namespace."""
    if not clients:
        return
    able = {client.name: {"transport": client.transport, "argv": client.command()} for client in clients}
    argv = (sys.executable, "-m", "vantage.doctor.calibrate", str(folder), f"{seconds:g}", json.dumps(able))
    error_log = folder / "stderr"
    with process.start(
        argv, prefix=private_namespace(), stdout=True, stderr=error_log, env=dict(module_environment())
    ) as child:
        for line in child.stdout or ():
            entry = json.loads(line)
            yield entry["client"], Transfer(**entry["transfer"])
        code = child.wait(_SPARE_S)
    if code != 0:
        lines = error_log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        raise PlaceError(
            f"the clients' ceilings cannot be measured here: {lines[-1] if lines else f'exit code {code}'}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bench:
    """Clients of one transport at this end of the pair, one server at a time at the other."""

    pair: Pair
    folder: Path
    seconds: float
    transport: Transport

    def calibrate(self, argv: Sequence[str]) -> Iterator[Transfer]:
        """One transfer per server without a limit, then rising rates with the fastest."""
        rates: list[tuple[float, ServerKind]] = []
        for kind in installed_servers(self.transport):
            with self._serving(kind) as server:
                transfer = self._transfer(server, kind, argv, None)
            yield transfer
            if transfer.mbit_s is not None:
                rates.append((transfer.mbit_s, kind))
        if not rates:
            return
        highest, fastest = max(rates, key=lambda rate: rate[0])
        with self._serving(fastest) as server:
            for fraction in FRACTIONS:
                yield self._transfer(server, fastest, argv, highest * fraction)

    @contextmanager
    def _serving(self, kind: ServerKind) -> Iterator[process.Child]:
        """Runs a server during the block."""
        log, plan = self.folder / f"{kind.name}.log", plan_server(kind, self.transport, self.folder)
        prefix = self.pair.server_prefix
        with process.start(plan.argv, prefix=prefix, stderr=log, env=dict(plan.env)) as server:
            wait_until_ready(server, self.transport, log)
            yield server

    def _transfer(
        self, server: process.Child, kind: ServerKind, argv: Sequence[str], offered_mbit_s: float | None
    ) -> Transfer:
        shared = ("--url", f"https://{HOST}:{PORT}/file", "--address", SERVER_ADDRESS, "--port", str(PORT))
        limits = ("--budget-s", f"{self.seconds:g}", "--max-bytes", str(2 * FILE_BYTES), "--allow", PREFIX)
        command = (*process.PARENT_DEATH, *argv, *shared, "--ca", str(self.folder / "ca.pem"), *limits)
        environment = {**module_environment(), ENVIRONMENT_VARIABLE: PREFIX}
        try:
            self.pair.limit(offered_mbit_s)
            before = cpu_s(server.pid)
            done = process.run(command, env=environment, timeout_s=self.seconds + _SPARE_S)
            spent = cpu_s(server.pid) - before
            answer: Mapping[str, Any] = json.loads(done.check(doing="downloading").stdout)
            return read_answer(answer, server=kind.name, offered_mbit_s=offered_mbit_s, server_cpu_s=spent)
        except UpshiftError as error:
            return Transfer(server=kind.name, offered_mbit_s=offered_mbit_s, fault=error.what)
        except ValueError:
            return Transfer(server=kind.name, offered_mbit_s=offered_mbit_s, fault="its output is not valid JSON")


def main(arguments: list[str]) -> int:
    """The program that runs in the private namespace."""
    folder, seconds, clients = Path(arguments[0]), float(arguments[1]), json.loads(arguments[2])
    prepare(folder)
    with Pair() as pair:
        for name, client in clients.items():
            bench = _Bench(pair=pair, folder=folder, seconds=seconds, transport=Transport(client["transport"]))
            for transfer in bench.calibrate(client["argv"]):
                line = json.dumps({"client": name, "transfer": asdict(transfer)})
                print(line, flush=True)  # noqa: T201 - its answer
    return 0


if __name__ == "__main__":
    try:
        raise SystemExit(main(sys.argv[1:]))
    except UpshiftError as error:
        raise SystemExit(error.sentence()) from None
