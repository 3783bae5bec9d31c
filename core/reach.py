"""Which addresses may be contacted. All code that opens a connection calls this module first.

The allowed prefixes come from the place (a campaign inside the lab may reach the lab only) and from the environment
variable `UPSHIFT_ALLOWED_PREFIXES` (comma separated), which the lab sets for every program that it starts and the test
suite sets for itself. An address must pass both.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterable
from functools import lru_cache

from core.errors import ReachError, UsageError

IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network
IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

ENVIRONMENT_VARIABLE = "UPSHIFT_ALLOWED_PREFIXES"

LAB_PREFIXES: tuple[IPNetwork, ...] = (
    ipaddress.ip_network("198.18.0.0/15"),  # RFC 2544, section C.2.2: benchmarking, never routed
    ipaddress.ip_network("fd00:198:18::/48"),  # RFC 4193: unique local
)
LOOPBACK_PREFIXES: tuple[IPNetwork, ...] = (ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128"))
_UNICAST = ipaddress.IPv6Network("2000::/3")
"""All that IANA gives out of IPv6 (RFC 4291, section 2.5.4); `is_global` calls whatever is reserved global."""

_NO_SERVERS = (
    ipaddress.IPv6Network("3fff::/20"),  # documentation (RFC 9637); Python 3.11 does not know it
    ipaddress.IPv6Network("2002::/16"),  # 6to4 (RFC 3056): not said by IANA, private to Python since its 3.12.4
)
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")  # RFC 6052, section 2.1
ANYWHERE: tuple[IPNetwork, ...] = (ipaddress.ip_network("0.0.0.0/0"), ipaddress.ip_network("::/0"))


@lru_cache(maxsize=64)
def parse_prefixes(text: str, *, where: str) -> tuple[IPNetwork, ...]:
    """Prefixes from a comma-separated list. Raises UsageError for a part that is not a prefix."""
    prefixes = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        try:
            prefixes.append(ipaddress.ip_network(part))
        except ValueError as error:
            raise UsageError(
                f"{part!r} is not an IP prefix ({error})", where=where, remedy="write prefixes as 198.18.0.0/15"
            ) from None
    return tuple(prefixes)


def is_allowed(address: str | IPAddress, prefixes: Iterable[IPNetwork]) -> bool:
    """Whether the address lies in one of the prefixes; an IPv4-mapped IPv6 address counts as its IPv4 address."""
    ip = unmapped(address)
    return any(ip.version == prefix.version and ip in prefix for prefix in prefixes)


def unmapped(address: str | IPAddress) -> IPAddress:
    """The parsed address; for an IPv4-mapped IPv6 address, the IPv4 address."""
    ip = ipaddress.ip_address(address) if isinstance(address, str) else address
    return ip.ipv4_mapped or ip if isinstance(ip, ipaddress.IPv6Address) else ip


def embedded(address: str | IPAddress) -> ipaddress.IPv4Address | None:
    """The IPv4 address to which a NAT64 (RFC 6052) or 6to4 (RFC 3056) address leads; None for any other."""
    ip = unmapped(address)
    if isinstance(ip, ipaddress.IPv4Address):
        return None
    return ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF) if ip in _NAT64 else ip.sixtofour


def unmapped_prefix(prefix: IPNetwork) -> IPNetwork:
    """A prefix; if it is one of IPv4-mapped IPv6 addresses, that of the IPv4 addresses."""
    mapped = prefix.network_address.ipv4_mapped if isinstance(prefix, ipaddress.IPv6Network) else None
    return prefix if mapped is None or prefix.prefixlen < 96 else ipaddress.IPv4Network((mapped, prefix.prefixlen - 96))


def _is_public(ip: IPAddress) -> bool:
    """Whether IANA's registries call it globally reachable unicast, and what it leads to as well."""
    if not ip.is_global or ip.is_multicast:
        return False
    inner = embedded(ip)
    if inner is not None and not _is_public(inner):
        return False
    return ip.version == 4 or ip in _NAT64 or (ip in _UNICAST and not is_allowed(ip, _NO_SERVERS))


def environment_prefixes() -> tuple[IPNetwork, ...] | None:
    """The prefixes that the environment allows, or None if it sets no limit."""
    text = os.environ.get(ENVIRONMENT_VARIABLE)
    return None if text is None else parse_prefixes(text, where=ENVIRONMENT_VARIABLE)


def check_address(address: str | IPAddress, allowed: Iterable[IPNetwork] = ANYWHERE) -> None:
    """Raises ReachError unless both `allowed` and the environment permit this address.

    Call it before the first packet: it is the only protection against contacting a host because of a wrong DNS answer.
    """
    ip = unmapped(address)
    limits = environment_prefixes()
    for prefixes, origin in ((allowed, "this place"), (limits, ENVIRONMENT_VARIABLE)):
        if prefixes is ANYWHERE or prefixes is None:
            continue
        named = tuple(prefixes)
        if not is_allowed(ip, named):
            shown = ", ".join(map(str, named)) or "nothing"
            raise ReachError(
                f"{address} is outside what may be contacted ({origin} allows {shown})",
                remedy="while a lab is active, only lab addresses may be contacted",
            )


def check_host(host: str) -> None:
    """Raises ReachError for a host that a library will look up and contact, unless the environment permits it.

    While the environment sets a limit, only addresses and `localhost` pass: a name would need a look-up first.
    """
    if environment_prefixes() is None:
        return
    try:
        check_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        remedy = "while a lab is active, only lab addresses may be contacted"
        raise ReachError(f"{host} is no address, and {ENVIRONMENT_VARIABLE} is set", remedy=remedy) from None


def is_everything(prefixes: Iterable[IPNetwork]) -> bool:
    """Whether they are all of IPv4 or of IPv6, even if in parts: then they name no private address as meant."""
    named = tuple(prefixes)
    families = ([prefix for prefix in named if prefix.version == version] for version in (4, 6))
    merged = (prefix for own in families for prefix in ipaddress.collapse_addresses(own))  # type: ignore[type-var]
    return any(prefix.prefixlen == 0 for prefix in merged)


def check_named(address: str | IPAddress, named: Iterable[IPNetwork]) -> None:
    """Raises ReachError for an address that is not public, unless a prefix names it more narrowly than everything.

    `0.0.0.0/0` does not name 10.0.0.1, and neither do its two halves: a wrong or hostile DNS answer must not lead a
    campaign on the Internet into its own network.
    """
    ip = unmapped(address)
    if _is_public(ip):
        return
    narrow = [prefix for prefix in named if prefix.version == ip.version and prefix.prefixlen > 0]
    if is_everything(narrow) or not is_allowed(ip, narrow):
        raise ReachError(
            f"{address} is not a public address", remedy="name its prefix in allowed_prefixes if it is meant"
        )


def check_public(address: str) -> None:
    """Raises ReachError for an address that is not public. For code that contacts hosts from untrusted input.

    Private, loopback, link-local, shared, reserved, documentation and multicast addresses (IANA's special-purpose
    registries, RFC 6890) are refused, and IPv6 addresses that lead to one of them in IPv4 or that nobody was given,
    unless the environment sets a lab's prefixes: then only these may be contacted.
    """
    ip = unmapped(address)
    if environment_prefixes() is None and not _is_public(ip):
        raise ReachError(f"{address} is not a public address")
    check_address(ip)
