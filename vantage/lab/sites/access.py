"""Access logs of the sites' servers, which all kinds of server write in Caddy's format."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """One request to a site."""

    server: str
    at: float
    """When it arrived [s since the epoch]."""
    client: str
    """Address of the client."""
    method: str
    host: str
    path: str
    """With the query, as the client wrote it."""
    user_agent: str
    status: int
    """0 if the connection ended without an answer."""
    sent_bytes: int
    """Of the body: written to the connection, of which the last few 100 kB may never have arrived."""


def read_access(path: Path, *, server: str) -> Iterator[Access]:
    """The requests in a server's log, in the order in which they ended; an incomplete last line is ignored."""
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        if not line.endswith("\n"):
            return
        entry = json.loads(line)
        request = entry["request"]
        yield Access(
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
