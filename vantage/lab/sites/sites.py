"""Sites of a topology: their hosts, servers and answers.

A site is a domain that a crawl visits; campaigns do not measure it (they measure a server's `domains`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from vantage.lab.site_kinds import Answer, SiteKind
from vantage.lab.topology import Server, Site, Topology

PRIVATE_ADDRESS = "10.18.0.1"
"""What `inside.DOMAIN` and sites of the kind `private_address` resolve to (RFC 1918); no host has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A name of a site."""

    name: str
    server: str | None
    """None: the name has a private address, and no server."""
    answers: Mapping[str, Answer]
    """Path -> answer; other paths do not exist."""
    certificate: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """What a crawl should find at a domain."""

    domain: str
    kind: SiteKind
    url: str | None
    """The file that should be found; None if none qualifies."""
    size_bytes: int | None


def hosts(topology: Topology) -> list[Host]:
    """Every name of every site."""
    return [host for site in topology.site for domain in site.domains for host in hosts_of_site(site, domain)]


def hosts_of(topology: Topology, server: Server) -> list[Host]:
    """The hosts of all sites on a server."""
    return [host for host in hosts(topology) if host.server == server.name]


def hosts_of_site(site: Site, domain: str) -> Iterator[Host]:
    """The hosts of one of a site's domains."""
    kind = site.table

    def filled(table: Mapping[str, Answer]) -> dict[str, Answer]:
        return {path: _filled(answer, domain, site.leads_to) for path, answer in table.items()}

    if kind.pages or kind.private:
        answers = filled(kind.pages)
        yield Host(name=domain, server=site.server, answers=answers, certificate=kind.certificate)
    if kind.www:
        yield Host(name=f"www.{domain}", server=site.server, answers=filled(kind.www))
    if kind.files:
        yield Host(name=f"files.{domain}", server=site.other_server, answers=filled(kind.files))
    if kind.inside:
        yield Host(name=f"inside.{domain}", server=None, answers={})


def _filled(answer: Answer, domain: str, away: str | None) -> Answer:
    def fill(text: str) -> str:
        return text.replace("{domain}", domain).replace("{away}", away or "")

    location = None if answer.location is None else fill(answer.location)
    return replace(answer, text=fill(answer.text), location=location)


def need_site_server(topology: Topology, server: Server) -> bool:
    """Whether the server has sites that need our own server program (`sites/server.py`)."""
    return any(site.server == server.name and site.table.needs_site_server for site in topology.site)


def planted(topology: Topology) -> list[Planted]:
    """What a crawl should find at each site, in the order of the file."""
    found = []
    for site in topology.site:
        for domain in site.domains:
            url, size = None, None
            if site.table.finds is not None:
                host, path = site.table.finds
                url = f"https://{host + '.' if host else ''}{domain}{path}"
                size = (site.table.www if host else site.table.pages)[path].size
            found.append(Planted(domain=domain, kind=site.kind, url=url, size_bytes=size))
    return found
