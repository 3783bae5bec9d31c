"""What the lab's servers serve: seeded random files, start pages, and certificates."""

from __future__ import annotations

import hashlib
import html
import json
import os
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vantage.lab import sites
from vantage.lab.topology import Server, Topology
from vantage.server_kind import SiteHost

if TYPE_CHECKING:
    import trustme


def file_bytes(topology: Topology, server: Server, path: str, size: int) -> bytes:
    """The content of a file: random bytes (not compressible), the same in every lab."""
    return random.Random(topology.seed_of("content", server.name, path)).randbytes(size)


def write_content(topology: Topology, folder: Path) -> Mapping[str, str]:
    """Writes every server's files below `folder`/SERVER; returns URL path by server, `SERVER/path`, to SHA-256.

    A file that already has the right content is kept.
    """
    hashes: dict[str, str] = {}
    folder.mkdir(parents=True, exist_ok=True)
    for server in topology.server:
        root = folder / server.name
        for file in server.files:
            data = file_bytes(topology, server, file.path, file.size_bytes)
            target = root / file.path.removeprefix("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
            hashes[server.name + file.path] = hashlib.sha256(data).hexdigest()
        if server.domains:
            (root / "index.html").write_text(start_page(server), encoding="utf-8")
    (folder / "sha256.json").write_text(json.dumps(hashes, indent=1), encoding="utf-8")
    return hashes


def write_sites(hosts: Sequence[SiteHost], folder: Path) -> None:
    """Writes what sites serve as plain files: `folder`/HOST/PATH. Large files are sparse and take no disk space."""
    for host in hosts:
        for path, answer in host.answers.items():
            if answer.status != 200 or answer.location is not None:
                continue
            target = folder / host.name / (path.removeprefix("/") or "index.html")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(answer.text, encoding="utf-8")
            if answer.size is not None:
                os.truncate(target, answer.size)


def start_page(server: Server) -> str:
    """A page that links to the server's files, so that a crawler finds them."""
    links = "".join(
        f'<li><a href="{html.escape(file.path)}">{html.escape(file.path)}</a></li>\n' for file in server.files
    )
    title = html.escape(server.domains[0])
    return f'<!doctype html>\n<html lang="en"><title>{title}</title>\n<h1>{title}</h1>\n<ul>\n{links}</ul>\n</html>\n'


def write_certificates(topology: Topology, folder: Path) -> None:
    """Writes `ca.pem`, and `NAME.pem` and `NAME.key` for each server's domains and each host of a site.

    Keys never leave the folder.
    """
    import trustme

    authority = trustme.CA(organization_name=f"Upshift lab {topology.name}")
    folder.mkdir(parents=True, exist_ok=True)
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    for server in topology.server:
        if server.domains:
            _issue(authority, folder, server.name, [*server.domains, *server.cnames, *server.window_names])
    for host in sites.hosts(topology):
        if host.server is not None:
            _issue(authority, folder, host.name, [host.name if host.certificate else "another.example"])


def _issue(authority: trustme.CA, folder: Path, name: str, domains: Sequence[str]) -> None:
    certificate = authority.issue_cert(*domains)
    (folder / f"{name}.pem").write_bytes(b"".join(blob.bytes() for blob in certificate.cert_chain_pems))
    key = folder / f"{name}.key"
    key.touch(mode=0o600)
    key.write_bytes(certificate.private_key_pem.bytes())
