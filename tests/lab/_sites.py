"""What a crawl should find at the sites of a topology, and what their servers logged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from vantage.lab.lab import Lab
from vantage.lab.sites import hosts_of_site
from vantage.lab.topology import SiteSpec, Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """What a crawl should find at a domain."""

    domain: str
    kind: str
    url: str | None
    """The file that should be found; None if none qualifies."""
    size_bytes: int | None


def planted_sites(topology: Topology) -> list[Planted]:
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


def logged_requests(lab: Lab) -> list[LoggedRequest]:
    """Requests to sites so far, by time of arrival. A request that is still being answered is not included."""
    requests = [
        request
        for server in lab.topology.server
        for request in read_access(lab.folder.access_log(server.name), server=server.name)
    ]
    return sorted(requests, key=lambda request: request.at)
