"""Who offers HTTP/3, and where: HTTPS records (RFC 9460) and Alt-Svc header fields (RFC 7838) as endpoints to try.

Servers send much that the grammar of Alt-Svc (RFC 7838, section 3) forbids. A broken entry does not invalidate its
neighbours: it is counted, and parsing continues after the next comma outside quotes.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import unquote_to_bytes

from core.outreach.dns import Service

DEFAULT_MAX_AGE_S = 86_400
"""RFC 7838, section 3.1."""

LONGEST_FIELD = 8_192
"""Longest part of a field value that is parsed [characters]; a hostile server may send more."""

_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_SPACE = re.compile(r"[ \t]*")
_HOST = re.compile(r"[0-9a-z]([0-9a-z_-]*[0-9a-z])?(\.[0-9a-z_]([0-9a-z_-]*[0-9a-z])?)*\.?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """One alternative service."""

    protocol: str
    """ALPN name, percent-decoded; bytes outside ASCII as latin-1."""
    host: str
    """Name or address (without brackets) in lower case; empty for the origin's."""
    port: int
    max_age_s: int = DEFAULT_MAX_AGE_S
    """How long it may be used [s]; 0 withdraws it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AltSvc:
    """A field value."""

    alternatives: tuple[Alternative, ...] = ()
    """Alternatives in the server's order of preference; none if all were withdrawn (`clear`)."""
    broken: int = 0
    """Entries that the grammar does not allow."""

    def http3(self) -> tuple[Alternative, ...]:
        """Those that offer HTTP/3 (RFC 9114, section 3.1.1) and are not withdrawn."""
        return tuple(entry for entry in self.alternatives if entry.protocol == "h3" and entry.max_age_s > 0)


class _BrokenError(Exception):
    """The current entry violates the grammar."""


def parse_alt_svc(text: str) -> AltSvc:
    """Reads one or several field values, comma separated. Never raises: entries that cannot be parsed are counted."""
    text = text[:LONGEST_FIELD]
    alternatives: list[Alternative] = []
    clear, broken = False, 0
    for entry in _entries(text):
        if entry == "clear":  # case-sensitive, and it overrides all other alternatives (RFC 7838, section 3)
            clear = True
        elif entry:
            try:
                alternatives.append(_alternative(entry))
            except _BrokenError:
                broken += 1
    return AltSvc(alternatives=() if clear else tuple(alternatives), broken=broken)


def _entries(text: str) -> list[str]:
    """The parts between commas outside quotes."""
    entries, start, position, quoted = [], 0, 0, False
    while position < len(text):
        character = text[position]
        if quoted and character == "\\":
            position += 1
        elif character == '"':
            quoted = not quoted
        elif character == "," and not quoted:
            entries.append(text[start:position].strip(" \t"))
            start = position + 1
        position += 1
    entries.append(text[start:].strip(" \t"))
    return entries


def _alternative(entry: str) -> Alternative:
    """One alt-value. Raises _BrokenError."""
    name = _TOKEN.match(entry)
    if name is None or not entry.startswith("=", name.end()):
        raise _BrokenError
    authority, position = _quoted(entry, name.end() + 1)
    host, port = _authority(authority)
    max_age_s = DEFAULT_MAX_AGE_S
    while (position := _after_space(entry, position)) < len(entry):
        if entry[position] != ";":
            raise _BrokenError
        position = _after_space(entry, position + 1)
        key = _TOKEN.match(entry, position)
        if key is None or not entry.startswith("=", key.end()):
            raise _BrokenError
        value, position = _value(entry, key.end() + 1)
        if key.group().lower() == "ma":
            if not (value.isascii() and value.isdigit()):
                raise _BrokenError
            max_age_s = min(int(value[:18]), 2**31)  # RFC 9111, section 1.2.2
    protocol = unquote_to_bytes(name.group()).decode("latin-1")
    return Alternative(protocol=protocol, host=host, port=port, max_age_s=max_age_s)


def _after_space(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return position if match is None else match.end()


def _quoted(text: str, position: int) -> tuple[str, int]:
    """A quoted string without its quotes and escapes, and where it ends."""
    match = _QUOTED.match(text, position)
    if match is None:
        raise _BrokenError
    return re.sub(r"\\(.)", r"\1", match.group(1), flags=re.DOTALL), match.end()


def _value(text: str, position: int) -> tuple[str, int]:
    """A parameter's value: token or quoted string."""
    if text.startswith('"', position):
        return _quoted(text, position)
    match = _TOKEN.match(text, position)
    if match is None:
        raise _BrokenError
    return match.group(), match.end()


def _authority(text: str) -> tuple[str, int]:
    """Host and port of `[host]:port`."""
    host, colon, digits = text.rpartition(":")
    if not (colon and digits.isascii() and digits.isdigit() and len(digits) <= 5 and 0 < int(digits) <= 65_535):
        raise _BrokenError
    host = host.lower()
    if host.startswith("[") and host.endswith("]"):
        try:
            return str(ipaddress.IPv6Address(host[1:-1])), int(digits)
        except ValueError:
            raise _BrokenError from None
    if host and not (len(host) <= 254 and _HOST.fullmatch(host)):
        raise _BrokenError
    return host.rstrip("."), int(digits)


MOST_CANDIDATES = 3
"""Most endpoints of one domain; a hostile header may name hundreds."""

HTTPS_PORT = 443


class OfferSource(StrEnum):
    """Source of an endpoint."""

    HTTPS_RECORD = "https_record"
    ALT_SVC = "alt_svc"
    GUESS = "guess"
    """No offer: `--all` tries the domain itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An endpoint that may serve HTTP/3."""

    host: str
    """A name, or a numeric address."""
    port: int
    source: OfferSource
    hints: tuple[str, ...] = ()
    """Addresses that the record gives for use until the name is resolved."""


def of_services(services: Sequence[Service]) -> list[Candidate]:
    """Endpoints of the records that offer h3, best first."""
    return [
        Candidate(
            host=service.target,
            port=service.port or HTTPS_PORT,
            source=OfferSource.HTTPS_RECORD,
            hints=service.ipv4_hints + service.ipv6_hints,
        )
        for service in services
        if "h3" in service.alpn
    ]


def of_alt_svc(domain: str, field: AltSvc) -> list[Candidate]:
    """Endpoints of the alternatives that offer h3, best first."""
    return [
        Candidate(host=entry.host or domain, port=entry.port, source=OfferSource.ALT_SVC) for entry in field.http3()
    ]


def chosen(domain: str, *offers: Sequence[Candidate], guess: bool) -> list[Candidate]:
    """Endpoints to try, each host and port once: the origin's own first, as campaigns ask no other.

    Args:
        domain: the origin.
        offers: most trusted first.
        guess: try the domain itself if nothing is offered.
    """
    endpoints: dict[tuple[str, int], Candidate] = {}
    for endpoint in (endpoint for offer in offers for endpoint in offer):
        endpoints.setdefault((endpoint.host, endpoint.port), endpoint)
    if not endpoints and guess:
        return [Candidate(host=domain, port=HTTPS_PORT, source=OfferSource.GUESS)]
    own_first = sorted(endpoints, key=lambda place: place != (domain, HTTPS_PORT))
    return [endpoints[place] for place in own_first[:MOST_CANDIDATES]]
