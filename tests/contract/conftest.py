"""Real servers on loopback for the contract tests: Caddy as it should be, and one that misbehaves on purpose."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from core.system import process
from tests.ports import free_port

HOST = "files.example"
SIZE = 3_000_000
LARGE = 70_000_000
"""More than clients keep in memory."""


@dataclass(frozen=True)
class Server:
    host: str
    port: int
    ca: Path
    other_ca: Path
    sha256: str = ""

    def url(self, path: str) -> str:
        return f"https://{self.host}:{self.port}{path}"


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `ca.pem`, `other.pem` (a CA that signed nothing), `server.pem` and `server.key`."""
    folder = tmp_path_factory.mktemp("certificates")
    ca = trustme.CA()
    ca.cert_pem.write_to_path(folder / "ca.pem")
    trustme.CA().cert_pem.write_to_path(folder / "other.pem")
    server = ca.issue_cert(HOST)
    server.private_key_pem.write_to_path(folder / "server.key")
    for blob in server.cert_chain_pems:
        blob.write_to_path(folder / "server.pem", append=True)
    now = datetime.datetime.now(datetime.UTC)
    day = datetime.timedelta(days=1)
    for name, leaf in (
        ("expired", ca.issue_cert(HOST, not_before=now - 9 * day, not_after=now - day)),
        ("not_yet_valid", ca.issue_cert(HOST, not_before=now + day, not_after=now + 9 * day)),
        ("wrong_name", ca.issue_cert("other.example")),
        ("unknown_ca", trustme.CA().issue_cert(HOST)),
    ):
        leaf.private_key_and_cert_chain_pem.write_to_path(folder / f"{name}.pem")
    (folder / "self_signed.pem").write_bytes(_self_signed(now, day))
    return folder


def _self_signed(now: datetime.datetime, day: datetime.timedelta) -> bytes:
    """Key and certificate of a server that is its own authority."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, HOST)])
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    made = made.serial_number(7).not_valid_before(now - day).not_valid_after(now + day)
    made = made.add_extension(x509.SubjectAlternativeName([x509.DNSName(HOST)]), critical=False)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return pem + made.sign(key, SHA256()).public_bytes(Encoding.PEM)


@pytest.fixture(scope="session")
def caddy(certificates: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Debian's Caddy with HTTP/1.1, 2 and 3; serves `/file` of `SIZE` random bytes and `/large` of `LARGE` zeros."""
    program = process.require("caddy", package="caddy")
    folder = tmp_path_factory.mktemp("caddy")
    (folder / "www").mkdir()
    body = os.urandom(SIZE)
    (folder / "www" / "file").write_bytes(body)
    with (folder / "www" / "large").open("wb") as large:
        large.truncate(LARGE)
    port = free_port()
    (folder / "Caddyfile").write_text(
        "{\n admin off\n auto_https off\n servers {\n protocols h1 h2 h3\n }\n}\n"
        f"https://{HOST}:{port} {{\n bind 127.0.0.1\n tls {certificates}/server.pem {certificates}/server.key\n"
        f" root * {folder}/www\n file_server\n}}\n"
    )
    env = {"HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    command = [program, "run", "--adapter", "caddyfile", "--config", str(folder / "Caddyfile")]
    with process.start(command, stderr=folder / "log", env=env) as child:
        until = time.monotonic() + 20
        while True:
            assert child.returncode is None, (folder / "log").read_text()
            assert time.monotonic() < until, (folder / "log").read_text()
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                # Caddy opens its UDP socket after that for TCP (proc(5), /proc/net/udp).
                if f":{port:04X} " in Path("/proc/net/udp").read_text(encoding="ascii"):
                    break
            time.sleep(0.05)
        yield Server(HOST, port, certificates / "ca.pem", certificates / "other.pem", hashlib.sha256(body).hexdigest())


@dataclass(frozen=True)
class Faulty:
    host: str
    ca: Path
    ports: dict[str, int]
    """Fault -> port; see `_fault_server.py`."""


@pytest.fixture(scope="session")
def faulty(certificates: Path) -> Iterator[Faulty]:
    """The server of `_fault_server.py`."""
    script = Path(__file__).with_name("_fault_server.py")
    command = [sys.executable, str(script), str(certificates / "server.pem"), str(certificates / "server.key")]
    with process.start(command, stdin=True, stdout=True) as child:
        assert child.stdout is not None
        yield Faulty(HOST, certificates / "ca.pem", json.loads(child.stdout.readline()))
