"""What a probe requests: one object at a server, from its URL."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from survey.iw.wire import HOST_BYTES, PATH_BYTES, Scheme

PORTS = {Scheme.HTTP: 80, Scheme.HTTPS: 443}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One object at a server."""

    scheme: Scheme
    host: str
    port: int
    path: str = "/"
    cookie: str = ""

    @classmethod
    def of(cls, url: str) -> Request:
        """The object of an http or https URL. Raises ValueError for another one, or one that is too long."""
        parts = urlsplit(url)
        scheme = Scheme[parts.scheme.upper()] if parts.scheme in ("http", "https") else None
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        host = (parts.hostname or "").rstrip(".")
        if scheme is None or not host:
            raise ValueError("not an http or https URL")
        if len(path) > PATH_BYTES or len(host) > HOST_BYTES:
            raise ValueError(f"the URL has a path of more than {PATH_BYTES} bytes, or a host of more than {HOST_BYTES}")
        if not all("!" <= letter <= "~" for letter in host + path):
            raise ValueError("the URL has characters that must be percent-encoded")
        return cls(scheme=scheme, host=host, port=parts.port or PORTS[scheme], path=path)

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme.name.lower()}://{host}{port}{self.path}"
