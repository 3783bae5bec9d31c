"""Who offers HTTP/3, and where: HTTPS records (RFC 9460) and Alt-Svc (RFC 7838) as endpoints to try."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from core.outreach.dns import Service
from survey.quic.alt_svc import AltSvc

MOST_ENDPOINTS = 3
"""Most endpoints of one domain; a hostile header may name hundreds."""

HTTPS_PORT = 443


class OfferSource(StrEnum):
    """Source of an endpoint."""

    HTTPS_RECORD = "https_record"
    ALT_SVC = "alt_svc"
    GUESS = "guess"
    """No offer: `--all` tries the domain itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """An endpoint that may serve HTTP/3."""

    host: str
    """A name, or a numeric address."""
    port: int
    source: OfferSource
    hints: tuple[str, ...] = ()
    """Addresses that the record gives for use until the name is resolved."""


def of_services(services: Sequence[Service]) -> list[Endpoint]:
    """Endpoints of the records that offer h3, best first."""
    return [
        Endpoint(
            host=service.target,
            port=service.port or HTTPS_PORT,
            source=OfferSource.HTTPS_RECORD,
            hints=service.ipv4_hints + service.ipv6_hints,
        )
        for service in services
        if "h3" in service.alpn
    ]


def of_alt_svc(domain: str, field: AltSvc) -> list[Endpoint]:
    """Endpoints of the alternatives that offer h3, best first."""
    return [Endpoint(host=entry.host or domain, port=entry.port, source=OfferSource.ALT_SVC) for entry in field.http3()]


def chosen(domain: str, *offers: Sequence[Endpoint], guess: bool) -> list[Endpoint]:
    """Endpoints to try, each host and port once.

    Args:
        domain: the origin.
        offers: most trusted first.
        guess: try the domain itself if nothing is offered.
    """
    endpoints: dict[tuple[str, int], Endpoint] = {}
    for endpoint in (endpoint for offer in offers for endpoint in offer):
        endpoints.setdefault((endpoint.host, endpoint.port), endpoint)
    if not endpoints and guess:
        return [Endpoint(host=domain, port=HTTPS_PORT, source=OfferSource.GUESS)]
    return list(endpoints.values())[:MOST_ENDPOINTS]
