"""The servers for the calibration of clients: the lab's, with one file and without logs, in the other namespace."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from core.domain import Transport
from core.errors import PlaceError
from core.system import process
from vantage.doctor.ceilings.path import SERVER_ADDRESS

HOST = "ceiling.upshift.test"
PORT = 8443
FILE_BYTES = 64_000_000
"""Body size [bytes]; as with most bodies, clients keep it in memory and hash it after the last byte."""

_READY_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """How to start one server program for a calibration."""

    kind: str
    """Its kind in the lab (`vantage.lab.servers`), with the check whether it is installed, and its version."""
    transport: Transport
    command: Callable[[Path], tuple[str, ...]]
    """Command line, from the folder of `prepare`."""
    environment: Callable[[Path], Mapping[str, str]] = field(default=lambda _: {})


def prepare(folder: Path) -> None:
    """Certificates, and the file (sparse: it takes no disk space)."""
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


def _h3serve(folder: Path) -> tuple[str, ...]:
    pair = ("--cert", str(folder / "server.pem"), "--key", str(folder / "server.key"))
    program = process.find_program("h3serve") or "h3serve"
    return (program, "--listen", f"{SERVER_ADDRESS}:{PORT}", *pair, "--bytes", str(FILE_BYTES))


def _nginx(folder: Path) -> tuple[str, ...]:
    path = folder / "nginx.conf"
    path.write_text(nginx_configuration(folder), encoding="utf-8")
    return (process.require("nginx", package="nginx-light"), "-p", str(folder), "-c", str(path), "-e", "stderr")


def nginx_configuration(folder: Path) -> str:
    """nginx in one process in the foreground: one file over TLS."""
    unused = "\n".join(
        f'    {name}_temp_path "{folder}/{name}";' for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    return f"""daemon off;
master_process off;
pid "{folder}/nginx.pid";
error_log stderr warn;
events {{ worker_connections 64; }}
http {{
    access_log off;
{unused}
    server {{
        listen {SERVER_ADDRESS}:{PORT} ssl;
        ssl_certificate "{folder}/server.pem";
        ssl_certificate_key "{folder}/server.key";
        root "{folder}/content";
    }}
}}
"""


def _caddy(folder: Path) -> tuple[str, ...]:
    path = folder / "caddy.json"
    path.write_text(json.dumps(caddy_configuration(folder)), encoding="utf-8")
    return (process.require("caddy", package="caddy"), "run", "--config", str(path))


def caddy_configuration(folder: Path) -> dict[str, Any]:
    """Caddy's JSON: one file server with HTTP/1.1."""
    files = {"handler": "file_server", "root": str(folder / "content")}
    server = {
        "listen": [f"{SERVER_ADDRESS}:{PORT}"],
        "protocols": ["h1"],
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


def _caddy_home(folder: Path) -> Mapping[str, str]:
    return dict.fromkeys(("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"), str(folder))


SERVERS = (
    Server(kind="nginx", transport=Transport.TCP, command=_nginx),
    Server(kind="caddy", transport=Transport.TCP, command=_caddy, environment=_caddy_home),
    Server(kind="quiche", transport=Transport.QUIC, command=_h3serve),
)
"""Clients are measured against the fastest installed one of their transport."""


def wait_until_ready(server: process.Child, transport: Transport, log: Path) -> None:
    """Returns when the server has bound its port, by its network namespace's tables (proc(5)). Raises PlaceError."""
    deadline = time.monotonic() + _READY_S
    table = Path(f"/proc/{server.pid}/net/{'tcp' if transport is Transport.TCP else 'udp'}")
    bound = f":{PORT:04X} 00000000:0000 "
    while server.returncode is None and time.monotonic() < deadline:
        with suppress(OSError):
            if bound in table.read_text(encoding="ascii"):
                return
        time.sleep(0.02)
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() if log.exists() else []
    raise PlaceError(f"{server.argv[0]} did not start" + (f": {lines[-1]}" if lines else ""))
