"""`--metrics`: where the page of metrics is served. How it is: `page_server`, which takes longer to import."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from core.errors import UsageError

_REMEDY = "write unix:PATH or 127.0.0.1:PORT"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the page is served: a socket file, or a port of a loopback address."""

    path: Path | None = None
    address: str = ""
    port: int = 0


def parse_endpoint(text: str) -> Endpoint:
    """The value of `--metrics`.

    Raises:
        UsageError: it is neither a socket file nor a port of this host's loopback addresses.
    """
    if text.startswith("unix:"):
        if not text.removeprefix("unix:"):
            raise UsageError("no path after unix:", where="--metrics", remedy=_REMEDY)
        return Endpoint(path=Path(text.removeprefix("unix:")))
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(f"{text!r} names no port", where="--metrics", remedy=_REMEDY)
    host = "127.0.0.1" if host == "localhost" else host.removeprefix("[").removesuffix("]")
    try:
        local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        raise UsageError(f"{host!r} is not an IP address", where="--metrics", remedy=_REMEDY) from None
    if not local:
        raise UsageError(
            f"{host} is not a loopback address, and metrics are served to this host only",
            where="--metrics",
            remedy=_REMEDY,
        )
    return Endpoint(address=host, port=int(port))
