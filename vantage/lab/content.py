"""What the lab's servers serve: seeded random files, start pages, and certificates."""

from __future__ import annotations

import hashlib
import html
import json
import random
from collections.abc import Mapping
from pathlib import Path

from vantage.lab.topology import Server, Topology


def file_bytes(topology: Topology, server: Server, path: str, size: int) -> bytes:
    """The content of a file: random bytes (nothing on the way could compress them), the same in every lab."""
    return random.Random(topology.seed_of("content", server.name, path)).randbytes(size)


def write_content(topology: Topology, folder: Path) -> Mapping[str, str]:
    """Writes every server's files below `folder`/SERVER; returns URL path by server, `SERVER/path`, to SHA-256.

    A file that already has the right content is kept.
    """
    hashes: dict[str, str] = {}
    for server in topology.server:
        root = folder / server.name
        for file in server.files:
            data = file_bytes(topology, server, file.path, file.size_bytes)
            target = root / file.path.removeprefix("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
            hashes[server.name + file.path] = hashlib.sha256(data).hexdigest()
        (root / "index.html").write_text(start_page(server), encoding="utf-8")
    (folder / "sha256.json").write_text(json.dumps(hashes, indent=1), encoding="utf-8")
    return hashes


def start_page(server: Server) -> str:
    """A page that links to the server's files, so that a crawler finds them."""
    links = "".join(
        f'<li><a href="{html.escape(file.path)}">{html.escape(file.path)}</a></li>\n' for file in server.files
    )
    title = html.escape(server.domains[0])
    return f'<!doctype html>\n<html lang="en"><title>{title}</title>\n<h1>{title}</h1>\n<ul>\n{links}</ul>\n</html>\n'


def write_certificates(topology: Topology, folder: Path) -> None:
    """Writes `ca.pem`, and `SERVER.pem` and `SERVER.key` for each server's domains. Keys never leave the folder."""
    import trustme

    authority = trustme.CA(organization_name=f"Upshift lab {topology.name}")
    folder.mkdir(parents=True, exist_ok=True)
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    for server in topology.server:
        certificate = authority.issue_cert(*server.domains, *server.cnames)
        chain = b"".join(blob.bytes() for blob in certificate.cert_chain_pems)
        (folder / f"{server.name}.pem").write_bytes(chain)
        key = folder / f"{server.name}.key"
        key.touch(mode=0o600)
        key.write_bytes(certificate.private_key_pem.bytes())
