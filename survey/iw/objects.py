"""What to request, so that a server has enough data to fill its window.

An object of a list is large enough. Without one: `/`, then a redirect within the domain, then a path of 1,000 letters
that an error page may repeat.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from urllib.parse import urljoin, urlsplit

from survey.iw.wire import COOKIE_BYTES, HOST_BYTES, PATH_BYTES, Reply, Scheme

LONG_PATH = "/" + "a" * 1_000

PORTS = {Scheme.HTTP: 80, Scheme.HTTPS: 443}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One object at a server."""

    scheme: Scheme
    host: str
    port: int
    path: str = "/"
    cookie: str = ""

    @classmethod
    def of(cls, url: str) -> Wanted:
        """The object of an http or https URL. Raises ValueError for another one, or one that is too long."""
        parts = urlsplit(url)
        scheme = Scheme[parts.scheme.upper()] if parts.scheme in ("http", "https") else None
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        host = (parts.hostname or "").rstrip(".")
        if scheme is None or not host:
            raise ValueError("not an http or https URL")
        if len(path) > PATH_BYTES or len(host) > HOST_BYTES or not (path.isascii() and path.isprintable()):
            raise ValueError("the URL is too long, or has characters that must be percent-encoded")
        if " " in path or not host.isascii():
            raise ValueError("the URL has characters that must be percent-encoded")
        return cls(scheme=scheme, host=host, port=parts.port or PORTS[scheme], path=path)

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme.name.lower()}://{host}{port}{self.path}"


class ObjectCandidates:
    """The objects of one server, in the order in which they are tried.

    Args:
        first: the object of the list, or `/`.
        is_listed: whether the list names this object; then no other one is tried.
    """

    def __init__(self, first: Wanted, *, is_listed: bool) -> None:
        self.wanted = first
        self._steps = [] if is_listed else ["redirect", "long"]

    def more(self, reply: Reply) -> bool:
        """Goes on to the next object after an answer that was too short; False if there is none.

        False also where the answer had more than was sent: it is long enough, and the rest was lost on its way.
        """
        if reply.content_length is not None and reply.content_length > reply.flight_bytes:
            return False
        while self._steps:
            step = self._steps.pop(0)
            if step == "long":
                self.wanted = replace(self.wanted, path=LONG_PATH)
                return True
            if (target := redirect(self.wanted, reply)) is not None:
                self.wanted = target
                return True
        return False


def redirect(wanted: Wanted, reply: Reply) -> Wanted | None:
    """Where a redirect within the domain leads, with its cookie; None if there is none.

    Another scheme or port would be another server, and is not followed.
    """
    if not (300 <= reply.http_status < 400 and reply.location):
        return None
    try:
        target = Wanted.of(urljoin(wanted.url, reply.location))
    except ValueError:
        return None
    cookie = reply.set_cookie if len(reply.set_cookie) <= COOKIE_BYTES and reply.set_cookie.isascii() else ""
    target = replace(target, cookie=cookie if cookie.isprintable() else "")
    if (target.scheme, target.port) != (wanted.scheme, wanted.port) or not _same_domain(wanted.host, target.host):
        return None
    return target if target != wanted else None


def _same_domain(one: str, other: str) -> bool:
    """Whether one host lies within the other."""
    return one == other or one.endswith(f".{other}") or other.endswith(f".{one}")
