"""Measures the ceilings of clients: every client against the fastest server here, at rising rates.

    python -m vantage.doctor.ceilings.measure FOLDER SECONDS CLIENTS

is the program that runs in a private network namespace; CLIENTS is JSON, client -> transport and command line. It makes
a second namespace for the servers (`vantage.doctor.ceilings.path`), and prints one JSON line per transfer. Client and
server share this host's CPUs: if the server is the limit, the true ceiling is higher.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from core.domain import Transport
from core.errors import PlaceError, UpshiftError
from core.progress import Progress
from core.reach import ENVIRONMENT_VARIABLE
from core.system import process
from core.system.place import Program
from vantage.doctor.ceilings.path import PREFIX, SERVER_ADDRESS, Pair, cpu_s
from vantage.doctor.ceilings.servers import FILE_BYTES, HOST, PORT, SERVERS, Server, prepare, wait_until_ready
from vantage.doctor.ceilings.values import Ceiling, Transfer, read_answer
from vantage.doctor.probes import private_namespace
from vantage.host.undo_log import module_environment
from vantage.lab.servers import ALL as KINDS

FRACTIONS = (0.125, 0.25, 0.5, 0.75, 1.0)
"""Offered rates, as shares of the client's highest rate without a limit."""

_SPARE_S = 20.0
"""How long a client may run after its transfer [s]."""


def installed_servers() -> list[Server]:
    """The `SERVERS` that can be started here."""
    return [server for server in SERVERS if KINDS[server.kind].missing() is None]


def measure(clients: Iterable[Program], seconds: float, *, progress: Progress) -> list[Ceiling]:
    """Every client's ceiling; each transfer takes at most `seconds`.

    Raises PlaceError if namespaces cannot be created here, or a server does not start.
    """
    asked = list(clients)
    faults = {client.name: client.missing() or _no_server(client) for client in asked}
    able = [client for client in asked if faults[client.name] is None]
    found: dict[str, list[Transfer]] = {client.name: [] for client in asked}
    servers = installed_servers()
    total = sum(len(FRACTIONS) + sum(s.transport == client.transport for s in servers) for client in able)
    done = 0
    progress.update("calibrate", done=0, total=total)
    with tempfile.TemporaryDirectory(prefix="upshift-ceilings-") as folder:
        for name, transfer in _transfers(able, seconds, Path(folder)):
            found[name].append(transfer)
            done += 1
            faulty = sum(t.fault is not None for transfers in found.values() for t in transfers)
            progress.update("calibrate", done=min(done, total), total=total, failed=faulty, note=name)
    return [
        Ceiling(
            client=client.name,
            transport=client.transport,
            versions=client.versions(),
            transfers=tuple(found[client.name]),
            fault=faults[client.name],
        )
        for client in asked
    ]


def _no_server(client: Program) -> str | None:
    if any(server.transport == client.transport for server in installed_servers()):
        return None
    kinds = [KINDS[server.kind] for server in SERVERS if server.transport == client.transport]
    return " and ".join(filter(None, (kind.missing() for kind in kinds)))


def _transfers(clients: Sequence[Program], seconds: float, folder: Path) -> Iterator[tuple[str, Transfer]]:
    """(client, transfer) from the program in the private namespace."""
    if not clients:
        return
    able = {client.name: {"transport": client.transport, "argv": client.command()} for client in clients}
    argv = (sys.executable, "-m", "vantage.doctor.ceilings.measure", str(folder), f"{seconds:g}", json.dumps(able))
    said = folder / "stderr"
    with process.start(
        argv, prefix=private_namespace(), stdout=True, stderr=said, env=dict(module_environment())
    ) as child:
        for line in child.stdout or ():
            entry = json.loads(line)
            yield entry["client"], Transfer(**entry["transfer"])
        code = child.wait(_SPARE_S)
    if code != 0:
        lines = said.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        raise PlaceError(
            f"the clients' ceilings cannot be measured here: {lines[-1] if lines else f'exit code {code}'}"
        )


class _Range:
    """Clients at this end of the pair, one server at a time at the other."""

    def __init__(self, pair: Pair, folder: Path, seconds: float) -> None:
        self._pair, self._folder, self._seconds = pair, folder, seconds

    def calibrate(self, argv: Sequence[str], servers: Sequence[Server]) -> Iterator[Transfer]:
        """One transfer per server without a limit, then rising rates with the fastest."""
        rates: list[tuple[float, Server]] = []
        for server in servers:
            with self._serving(server) as transfer:
                found = transfer(argv, None)
            yield found
            if found.mbit_s is not None:
                rates.append((found.mbit_s, server))
        if not rates:
            return
        highest, fastest = max(rates, key=lambda rate: rate[0])
        with self._serving(fastest) as transfer:
            for fraction in FRACTIONS:
                yield transfer(argv, highest * fraction)

    def _serving(self, server: Server) -> _Serving:
        return _Serving(server, self._pair, self._folder, self._seconds)


class _Serving:
    """A running server; yields a function that makes a transfer from it."""

    def __init__(self, server: Server, pair: Pair, folder: Path, seconds: float) -> None:
        self._server, self._pair, self._folder, self._seconds = server, pair, folder, seconds
        self._stack = ExitStack()

    def __enter__(self) -> Callable[[Sequence[str], float | None], Transfer]:
        server, log = self._server, self._folder / f"{self._server.kind}.log"
        with ExitStack() as stack:
            prefix, home = self._pair.server_prefix, server.environment(self._folder)
            argv = server.command(self._folder)
            self._child = stack.enter_context(process.start(argv, prefix=prefix, stderr=log, env=home))
            wait_until_ready(self._child, server.transport, log)
            self._stack = stack.pop_all()
        return self._transfer

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _transfer(self, argv: Sequence[str], offered_mbit_s: float | None) -> Transfer:
        kind = self._server.kind
        shared = ("--url", f"https://{HOST}:{PORT}/file", "--address", SERVER_ADDRESS, "--port", str(PORT))
        limits = ("--budget-s", f"{self._seconds:g}", "--max-bytes", str(2 * FILE_BYTES), "--allow", PREFIX)
        command = (*process.PARENT_DEATH, *argv, *shared, "--ca", str(self._folder / "ca.pem"), *limits)
        environment = {**module_environment(), ENVIRONMENT_VARIABLE: PREFIX}
        try:
            self._pair.limit(offered_mbit_s)
            before = cpu_s(self._child.pid)
            done = process.run(command, env=environment, timeout_s=self._seconds + _SPARE_S)
            spent = cpu_s(self._child.pid) - before
            answer: Mapping[str, Any] = json.loads(done.check(doing="downloading").stdout)
            return read_answer(answer, server=kind, offered_mbit_s=offered_mbit_s, server_cpu_s=spent)
        except UpshiftError as error:
            return Transfer(server=kind, offered_mbit_s=offered_mbit_s, fault=error.what)
        except ValueError:
            return Transfer(server=kind, offered_mbit_s=offered_mbit_s, fault="its output is not valid JSON")


def main(arguments: list[str]) -> int:
    """The program that runs in the private namespace."""
    folder, seconds, clients = Path(arguments[0]), float(arguments[1]), json.loads(arguments[2])
    prepare(folder)
    installed = installed_servers()
    with Pair() as pair:
        for name, client in clients.items():
            servers = [server for server in installed if server.transport == Transport(client["transport"])]
            for transfer in _Range(pair, folder, seconds).calibrate(client["argv"], servers):
                line = json.dumps({"client": name, "transfer": asdict(transfer)})
                print(line, flush=True)  # noqa: T201 - its answer
    return 0


if __name__ == "__main__":
    try:
        raise SystemExit(main(sys.argv[1:]))
    except UpshiftError as error:
        raise SystemExit(error.sentence()) from None
