"""The highest rate of each client on this host; measurements must stay well below it.

    python -m vantage.doctor.ceilings SECONDS CLIENTS

runs in a private network namespace; CLIENTS is JSON, client -> command line. Caddy serves a large file on loopback
(MTU 1500), each client downloads from it with a time budget, and one JSON document with all results is printed. Client
and server share the CPUs, so that the true ceiling, with the server elsewhere, is higher.
"""

from __future__ import annotations

import json
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from upshift.errors import PlaceError, UpshiftError
from upshift.reach import ENVIRONMENT_VARIABLE
from upshift.system import process
from upshift.system.place import Program
from vantage.doctor.facts import private_namespace
from vantage.host.undo_log import module_environment

FILE_BYTES = 1 << 30
"""A sparse file: it takes no disk space."""

HOST = "ceiling.upshift.test"
PORT = 8443
_READY_S = 20.0
_LOOPBACK = "127.0.0.0/8"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """One client's ceiling. If it could not be measured, rate and cost are None and `fault` says why."""

    client: str
    mbit_s: float | None = None
    cpu_s_per_gb: float | None = None
    """CPU seconds of the client per 10^9 body bytes."""
    body_bytes: int = 0
    fault: str | None = None


def measure(clients: Iterable[Program], seconds: float) -> list[Ceiling]:
    """Every client's ceiling, `seconds` each, in a private namespace. Raises PlaceError if that cannot be created."""
    asked = [(client, client.missing()) for client in clients]
    able = {client.name: client.command() for client, fault in asked if fault is None}
    argv = (sys.executable, "-m", "vantage.doctor.ceilings", f"{seconds:g}", json.dumps(able))
    command = (*private_namespace(), *process.PARENT_DEATH, *argv)
    done = process.run(command, env=module_environment(), timeout_s=60 + (seconds + 20) * len(able))
    done.check(doing="measuring the clients' ceilings")
    unable = [Ceiling(client=client.name, fault=fault) for client, fault in asked if fault is not None]
    return [Ceiling(**entry) for entry in json.loads(done.stdout)] + unable


def judge(client: str, answer: Mapping[str, Any]) -> Ceiling:
    """A ceiling from a client's JSON document: the rate between the first and the last body byte.

    The measurement is valid if the file was complete or the time budget ended it.
    """
    if answer.get("outcome") != "ok" and answer.get("failure") != "time_budget":
        return Ceiling(client=client, fault=f"{answer.get('failure')}: {answer.get('failure_detail')}")
    received, first, last = answer.get("body_bytes"), answer.get("first_byte_s"), answer.get("last_byte_s")
    if not received or first is None or last is None or last <= first:
        return Ceiling(client=client, fault="it received too little to compute a rate")
    cpu = answer.get("client_cpu_s")
    return Ceiling(
        client=client,
        mbit_s=received * 8 / 1e6 / (last - first),
        cpu_s_per_gb=None if cpu is None else cpu / (received / 1e9),
        body_bytes=received,
    )


def caddy_configuration(folder: Path) -> dict[str, Any]:
    """Caddy's JSON: one file server on loopback with HTTP/1.1 and HTTP/3, nothing else."""
    files = {"handler": "file_server", "root": str(folder / "content")}
    server = {
        "listen": [f"127.0.0.1:{PORT}"],
        "protocols": ["h1", "h2", "h3"],
        "automatic_https": {"disable": True},
        "tls_connection_policies": [{}],
        "routes": [{"handle": [files]}],
    }
    pair = {"certificate": str(folder / "server.pem"), "key": str(folder / "server.key")}
    return {
        "admin": {"disabled": True, "config": {"persist": False}},
        "logging": {"logs": {"default": {"level": "ERROR"}}},
        "storage": {"module": "file_system", "root": str(folder / "storage")},
        "apps": {
            "http": {"servers": {"ceiling": server}, "grace_period": "1s"},
            "tls": {
                "certificates": {"load_files": [pair]},
                "automation": {"policies": [{"disable_ocsp_stapling": True}]},
            },
        },
    }


def _prepare(folder: Path) -> None:
    """Certificates, the file, and Caddy's configuration."""
    import trustme

    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    certificate = authority.issue_cert(HOST)
    certificate.private_key_pem.write_to_path(str(folder / "server.key"))
    for position, part in enumerate(certificate.cert_chain_pems):
        part.write_to_path(str(folder / "server.pem"), append=position > 0)
    (folder / "content").mkdir()
    with (folder / "content" / "file").open("wb") as handle:
        handle.truncate(FILE_BYTES)
    (folder / "caddy.json").write_text(json.dumps(caddy_configuration(folder)), encoding="utf-8")


def _wait_until_ready(server: process.Child, log: Path) -> None:
    """Returns when Caddy takes TCP connections and has bound its UDP port (/proc/net/udp)."""
    deadline = time.monotonic() + _READY_S
    bound = f":{PORT:04X} "
    while server.returncode is None and time.monotonic() < deadline:
        with suppress(OSError), socket.create_connection(("127.0.0.1", PORT), timeout=1):
            if bound in Path("/proc/net/udp").read_text(encoding="ascii"):
                return
        time.sleep(0.02)
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() if log.exists() else []
    raise PlaceError("Caddy did not start" + (f": {lines[-1]}" if lines else ""))


def _try_client(client: str, argv: Sequence[str], folder: Path, seconds: float) -> Ceiling:
    shared = ("--url", f"https://{HOST}:{PORT}/file", "--address", "127.0.0.1", "--port", str(PORT))
    limits = ("--budget-s", f"{seconds:g}", "--max-bytes", str(2 * FILE_BYTES), "--allow", _LOOPBACK)
    environment = {**module_environment(), ENVIRONMENT_VARIABLE: _LOOPBACK}
    command = (*process.PARENT_DEATH, *argv, *shared, "--ca", str(folder / "ca.pem"), *limits)
    try:
        done = process.run(command, env=environment, timeout_s=seconds + 20)
        return judge(client, json.loads(done.check(doing="downloading from loopback").stdout))
    except UpshiftError as error:
        return Ceiling(client=client, fault=error.what)
    except ValueError:
        return Ceiling(client=client, fault="its output is not valid JSON")


def main(arguments: list[str]) -> int:
    """The program that runs in the private namespace."""
    seconds, clients = float(arguments[0]), json.loads(arguments[1])
    process.run(("ip", "link", "set", "lo", "up", "mtu", "1500")).check(doing="setting up loopback")
    folder = Path(tempfile.mkdtemp(prefix="upshift-ceiling-"))
    try:
        _prepare(folder)
        log = folder / "caddy.log"
        home = {"HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "XDG_DATA_HOME": str(folder)}
        argv = ("caddy", "run", "--config", str(folder / "caddy.json"))
        with process.start(argv, stderr=log, env=home) as server:
            _wait_until_ready(server, log)
            found = [_try_client(client, argv, folder, seconds) for client, argv in clients.items()]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps([asdict(ceiling) for ceiling in found]))  # noqa: T201 - its answer
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
