"""Sites of a topology: which hosts they make, on which server, with which answers.

A site is a domain that a crawl visits; it is nothing that a campaign measures (those are a server's `domains`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from upshift.config import STRICT
from vantage.lab.site_kinds import KINDS, Answer, Kind, SiteKind

if TYPE_CHECKING:
    from vantage.lab.topology import Server, Topology

PRIVATE_ADDRESS = "10.18.0.1"
"""What `inside.DOMAIN` and sites of the kind `private_address` resolve to (RFC 1918); nobody is there."""

MOST = 1000
NUMBER = "{n}"
_URL = re.compile(r"https://[a-z0-9.-]+/[A-Za-z0-9._/-]*")

_Require = Callable[[bool, str, str, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One `[[site]]` of a topology, or `count` of the same kind."""

    __pydantic_config__ = STRICT

    kind: SiteKind
    domain: str
    """With `{n}` in it where there are several: their number, from 1."""
    server: str | None = None
    """Who serves it; none where the kind has no server."""
    count: int | None = None
    other_server: str | None = None
    """Who serves `files.DOMAIN` (kinds `leaves_address`, `other_address`)."""
    leads_to: str | None = None
    """URL of a file on another domain (kinds `leaves_domain`, `other_domain`)."""

    @property
    def domains(self) -> list[str]:
        return [self.domain.replace(NUMBER, str(number)) for number in range(1, (self.count or 1) + 1)]

    @property
    def table(self) -> Kind:
        return KINDS[self.kind]


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
    """What a crawl should make of a domain."""

    domain: str
    kind: SiteKind
    url: str | None
    """The file that is to be found, None where there is none by the rules."""
    size_bytes: int | None


def hosts(topology: Topology) -> list[Host]:
    """Every name of every site."""
    return [host for site in topology.site for domain in site.domains for host in _hosts(site, domain)]


def hosts_of(topology: Topology, server: Server) -> list[Host]:
    """The hosts of sites that a server has."""
    return [host for host in hosts(topology) if host.server == server.name]


def _hosts(site: Site, domain: str) -> Iterator[Host]:
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


def is_rough(topology: Topology, server: Server) -> bool:
    """Whether the server is our own program, as it has sites that Caddy cannot serve."""
    return any(site.server == server.name and site.table.rough for site in topology.site)


def speaks_quic(topology: Topology, server: Server) -> bool:
    """Whether HTTP/3 is answered: by Caddy only."""
    return server.quic and server.fault is None and not is_rough(topology, server)


def planted(topology: Topology) -> list[Planted]:
    """What a crawl should make of each site, in the order of the file."""
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


def check_sites(topology: Topology, domains: set[str], is_domain: Callable[[str], bool], require: _Require) -> None:
    """Refuses sites that cannot be. `domains` are the names that are taken; the sites' are added."""
    for number, site in enumerate(topology.site):
        at = f"site.{number}"
        _check_fields(topology, site, at, require)
        for name in site.domains:
            require(is_domain(name), f"{at}.domain", f"{name!r} is no domain", "use www.name.example")
        # A name that does not resolve has no host, and is taken all the same.
        for name in dict.fromkeys([*site.domains, *(h.name for d in site.domains for h in _hosts(site, d))]):
            require(name not in domains, f"{at}.domain", f"{name} stands twice in the file", "use another name")
            domains.add(name)
    for server in topology.server:
        good = not is_rough(topology, server) or (not server.domains and server.edge is None)
        what = "it has sites that only our own program can serve (docs/design/lab.md), so it cannot be measured"
        require(good, f"server.{server.name}.domains", what, "give these sites a server of their own")


def _check_fields(topology: Topology, site: Site, at: str, require: _Require) -> None:
    """The fields that a site's kind needs are there, the others are not, and each makes sense."""
    servers = {server.name: server for server in topology.server}
    kind = site.table
    what = f"{site.domain!r} and count do not fit"
    several = site.count is not None
    require((NUMBER in site.domain) == several, f"{at}.domain", what, "several sites have {n} in it, and a count")
    good = site.count is None or 1 <= site.count <= MOST
    require(good, f"{at}.count", f"{site.count} is out of range", f"use 1 to {MOST}")
    for field, value, needed in (
        ("server", site.server, bool(kind.pages)),
        ("other_server", site.other_server, bool(kind.files)),
        ("leads_to", site.leads_to, kind.leads_away),
    ):
        what = f"a site of the kind {site.kind} {'needs one' if needed else 'has none'}"
        require((value is not None) == needed, f"{at}.{field}", what, "add it" if needed else "leave it out")
    for field, name in (("server", site.server), ("other_server", site.other_server)):
        if name is not None:
            known = f"known are: {', '.join(servers)}"
            require(name in servers, f"{at}.{field}", f"there is no server {name!r}", known)
            good = servers[name].fault is None
            require(good, f"{at}.{field}", f"{name} fails on purpose", "use a server without a fault")
    good = site.other_server is None or site.other_server != site.server
    require(good, f"{at}.other_server", "it is the site's own server", "name another one")
    good = site.leads_to is None or bool(_URL.fullmatch(site.leads_to))
    require(good, f"{at}.leads_to", f"{site.leads_to!r} is no URL", "use https://www.name.example/file.bin")
