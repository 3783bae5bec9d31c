"""Rules for a target's URL, domain and numbers, so that a campaign can download it."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit


def host_and_port(url: str, *, schemes: Sequence[str] = ("https",)) -> tuple[str, int]:
    """Host (without brackets) and port of a URL.

    Raises:
        ValueError: the URL has another scheme, user information, port 0, no host, or one that ends in a dot.
    """
    parts = urlsplit(url)
    if parts.scheme not in schemes or not parts.hostname:
        raise ValueError(f"the URL is not {' or '.join(schemes)}://HOST/...")
    if "@" in parts.netloc:
        raise ValueError("the URL has user information (NAME@HOST)")
    if parts.port == 0:
        raise ValueError("the URL has port 0")
    if parts.hostname.endswith("."):
        raise ValueError("the host of the URL ends in a dot")
    return parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)


def url_fault(url: str) -> str | None:
    """Why a URL cannot be downloaded, None if it can (http too: campaigns are stricter)."""
    if not url.isascii() or not url.isprintable() or " " in url:
        return "the URL has characters that must be percent-encoded"
    try:
        host_and_port(url, schemes=("https", "http"))
    except ValueError as error:
        return str(error)
    return None


def domain_fault(domain: str) -> str | None:
    """Why a domain cannot be used, None if it can."""
    if not domain or not domain.isprintable() or len(domain) > 253:
        return "the domain is empty, too long, or has control characters"
    return "the domain ends in a dot" if domain.endswith(".") else None


def _address_fault(text: str) -> str | None:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return f"server_ip {text[:60]!r} is not an IP address"
    return None


def _at_least_1(name: str) -> Callable[[int], str | None]:
    return lambda number: None if number >= 1 else f"{name} {number} is not a whole number above 0"


FAULTS: Mapping[str, Callable[[Any], str | None]] = {
    "domain": domain_fault,
    "url": url_fault,
    "server_ip": _address_fault,
    "rank": _at_least_1("rank"),
    "size_bytes": _at_least_1("size_bytes"),
}
"""Column -> why a value of it cannot be used, None if it can."""
