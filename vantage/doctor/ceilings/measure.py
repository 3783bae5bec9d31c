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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from core.domain import Transport
from core.errors import PlaceError, UpshiftError
from core.reach import ENVIRONMENT_VARIABLE
from core.system import process
from core.system.place import Program
from core.terminal import Progress
from vantage.doctor.ceilings.path import (
    FILE_BYTES,
    HOST,
    KINDS,
    PORT,
    PREFIX,
    SERVER_ADDRESS,
    Pair,
    cpu_s,
    plan_server,
    prepare,
    wait_until_ready,
)
from vantage.doctor.ceilings.values import MeasuredCeiling, Transfer, read_answer
from vantage.doctor.gather import private_namespace
from vantage.host.undo_log import module_environment
from vantage.server_kind import ServerKind
from vantage.servers import ALL

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
    argv = (sys.executable, "-m", "vantage.doctor.ceilings.measure", str(folder), f"{seconds:g}", json.dumps(able))
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
