"""Sites of a topology: their hosts, servers and answers, what a crawl should find there, and what it asked for.

A site is a domain that a crawl visits; campaigns do not measure it (they measure a server's `domains`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from vantage.lab.site_kinds import page
from vantage.lab.topology import Server, SiteSpec, Topology
from vantage.server_kind import SiteAnswer, SiteHost

PRIVATE_ADDRESS = "10.18.0.1"
"""What `inside.DOMAIN` and sites of the kind `private_address` resolve to (RFC 1918); no host has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """What a crawl should find at a domain."""

    domain: str
    kind: str
    url: str | None
    """The file that should be found; None if none qualifies."""
    size_bytes: int | None


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


def planted(topology: Topology) -> list[Planted]:
    """What a crawl should find at each site, in the order of the file."""
    return [_planted(topology, site, domain) for site in topology.site for domain in site.domains]


def _planted(topology: Topology, site: SiteSpec, domain: str) -> Planted:
    finds = topology.kind_of(site).finds
    if finds is None:
        return Planted(domain=domain, kind=site.kind, url=None, size_bytes=None)
    url = finds.replace("{domain}", domain)
    parts = urlsplit(url)
    [host] = [host for host in hosts_of_site(topology, site, domain) if host.name == parts.hostname]
    return Planted(domain=domain, kind=site.kind, url=url, size_bytes=host.answers[parts.path].size)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRequest:
    """One request to a site."""

    server: str
    at: float
    """When it arrived [s since the epoch]."""
    client: str
    """Address of the client."""
    method: str
    host: str
    path: str
    """Path and query, as the client wrote them."""
    user_agent: str
    status: int
    """0 if the connection ended without an answer."""
    sent_bytes: int
    """Bytes of the body that were written to the connection; the last few 100 kB may never have arrived."""


def read_access(path: Path, *, server: str) -> Iterator[LoggedRequest]:
    """The requests in a server's log, in the order in which they ended; an incomplete last line is ignored."""
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        if not line.endswith("\n"):
            return
        entry = json.loads(line)
        request = entry["request"]
        yield LoggedRequest(
            server=server,
            at=entry["ts"] - entry["duration"],
            client=request["remote_ip"],
            method=request["method"],
            host=request["host"],
            path=request["uri"],
            user_agent=" ".join(request["headers"].get("User-Agent", [])),
            status=entry["status"],
            sent_bytes=entry["size"],
        )
