"""Behind a proxy that inspects TLS, `make setup` trusts what the system trusts."""

from __future__ import annotations

import http.server
import os
import shlex
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

pytestmark = pytest.mark.lab

SETUP = Path(__file__).resolve().parents[2] / "scripts" / "trust"
BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")


@pytest.fixture(scope="module")
def uv() -> str:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "upshift" / "uv" / "bin"
    found = shutil.which("uv", path=f"{os.environ['PATH']}:{cache}")
    if found is None or not BUNDLE.is_file():
        pytest.skip("uv is not installed, or this system has no bundle of certificates where Debian has it")
    return found


@pytest.fixture
def inspected(tmp_path: Path) -> Iterator[tuple[int, Path]]:
    """Port of a package index on loopback, and the CA of its certificate, which no bundle has."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port, tmp_path / "ca.pem"
    server.shutdown()
    thread.join()
    server.server_close()


def ask(uv: str, port: int, ca: Path, before: str) -> str:
    """What uv says of a package that the index does not have, where the system's bundle is that CA."""
    script = f"""
        set -e
        mount --bind {ca} {BUNDLE}
        {before}
        uv --no-cache --no-config pip compile --index-url https://127.0.0.1:{port}/simple - <<<upshift-absent
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SSL_", "UV_"))}
    environment["PATH"] = f"{Path(uv).parent}:{environment['PATH']}"
    environment["NO_PROXY"] = "127.0.0.1"
    argv = ["unshare", "--map-root-user", "--mount", "bash", "-c", script]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode != 0
    return " ".join(done.stderr.split())


def test_uv_trusts_what_the_system_trusts(uv: str, inspected: tuple[int, Path]) -> None:
    assert "UnknownIssuer" in ask(uv, *inspected, before=":"), "uv's own certificates do not have this CA"
    told = ask(uv, *inspected, before=f". {shlex.quote(str(SETUP))}")
    assert "UnknownIssuer" not in told and "not found in the package registry" in told
    assert "deprecated" not in told
