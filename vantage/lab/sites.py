"""What the lab's servers serve: files, start pages, certificates; and sites.

A site is a domain that a crawl visits; campaigns do not measure it (they measure a server's `domains`). Files are
random bytes from the topology's seed.
"""

from __future__ import annotations

import html
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from vantage.lab.site_kinds import page
from vantage.lab.topology import Server, SiteSpec, Topology
from vantage.server_kind import SiteAnswer, SiteHost

if TYPE_CHECKING:
    import trustme


PRIVATE_ADDRESS = "10.18.0.1"
"""What `inside.DOMAIN` and sites of the kind `private_address` resolve to (RFC 1918); no host has it."""


def hosts(topology: Topology) -> list[SiteHost]:
    """Every name of every site."""
    return [host for site in topology.site for domain in site.domains for host in hosts_of_site(topology, site, domain)]


def hosts_of(topology: Topology, server: Server) -> list[SiteHost]:
    """The hosts of all sites on a server."""
    return [host for host in hosts(topology) if host.server == server.name]


def hosts_of_site(topology: Topology, site: SiteSpec, domain: str) -> Iterator[SiteHost]:
    """The hosts of one of a site's domains."""
    kind = topology.kind_of(site)

    def filled(table: Mapping[str, SiteAnswer]) -> dict[str, SiteAnswer]:
        return {path: _filled(answer, domain, site.leads_to) for path, answer in table.items()}

    if kind.pages or kind.private:
        answers = filled(kind.pages)
        yield SiteHost(name=domain, server=site.server, answers=answers, certificate=kind.certificate)
    if kind.www:
        yield SiteHost(name=f"www.{domain}", server=site.server, answers=filled(kind.www))
    if kind.files:
        yield SiteHost(name=f"files.{domain}", server=site.other_server, answers=filled(kind.files))
    if kind.inside:
        yield SiteHost(name=f"inside.{domain}", server=None, answers={})


def _filled(answer: SiteAnswer, domain: str, away: str | None) -> SiteAnswer:
    def fill(text: str) -> str:
        return text.replace("{domain}", domain).replace("{away}", away or "")

    text = page(answer.links) if answer.links else answer.text
    location = None if answer.location is None else fill(answer.location)
    return replace(answer, text=fill(text), links=(), location=location)


def need_site_server(topology: Topology, server: Server) -> bool:
    """Whether the server has sites that need our own server program (`vantage/programs/site_server.py`)."""
    return any(site.server == server.name and topology.kind_of(site).needs_site_server for site in topology.site)


def file_bytes(topology: Topology, server: Server, path: str, size: int) -> bytes:
    """The content of a file: random bytes (not compressible), the same in every lab."""
    return random.Random(topology.seed_of("content", server.name, path)).randbytes(size)


def write_content(topology: Topology, folder: Path) -> None:
    """Writes every server's files, and its start page, below `folder`/SERVER."""
    for server in topology.server:
        root = folder / server.name
        for file in server.files:
            target = root / file.path.removeprefix("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file_bytes(topology, server, file.path, file.size_bytes))
        if server.domains:
            (root / "index.html").write_text(start_page(server), encoding="utf-8")


def write_sites(hosts: Sequence[SiteHost], folder: Path) -> None:
    """Writes what sites serve as plain files: `folder`/HOST/PATH. Large files are sparse and take no disk space."""
    for host in hosts:
        for path, answer in host.answers.items():
            if not answer.is_file:
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
    for host in hosts(topology):
        if host.server is not None:
            _issue(authority, folder, host.name, [host.name if host.certificate else "another.example"])


def _issue(authority: trustme.CA, folder: Path, name: str, domains: Sequence[str]) -> None:
    certificate = authority.issue_cert(*domains)
    (folder / f"{name}.pem").write_bytes(b"".join(blob.bytes() for blob in certificate.cert_chain_pems))
    key = folder / f"{name}.key"
    key.touch(mode=0o600)
    key.write_bytes(certificate.private_key_pem.bytes())
