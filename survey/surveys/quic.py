"""`upshift survey quic`: which domains serve HTTP/3."""

from __future__ import annotations

import ssl
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from core.outreach import arguments
from survey.quic.candidates import HTTPS_PORT
from survey.quic.record import NOT_ASKED, QuicCause, QuicRecord, figures
from survey.surveys import Context, Survey, Visit


@dataclass(frozen=True, slots=True, kw_only=True)
class QuicSettings:
    """The survey's own options."""

    everything: Annotated[
        bool, typer.Option("--all", help="Also probe domains that offer h3 neither in DNS nor by Alt-Svc.")
    ] = False
    unpadded: Annotated[
        bool, typer.Option("--unpadded", help="Also send a probe that is too small: servers must not answer it.")
    ] = False
    probes: Annotated[int, typer.Option(min=1, max=10, help="Probes to a server that does not answer.")] = 2
    handshakes: Annotated[
        int, typer.Option(min=1, max=1000, help="Handshakes at the same time (with servers that answered).")
    ] = 16
    ca: arguments.Certificates = None

    @property
    def trusted(self) -> Path | None:
        """Certificates to trust: the given ones, else those of SSL_CERT_FILE (a lab) or the system; None: aioquic's."""
        system = ssl.get_default_verify_paths().cafile
        return self.ca or (Path(system) if system else None)


_MISDIRECTED = 421
"""This connection is not for that host (RFC 9110, section 15.5.20)."""


def _visits(context: Context) -> AbstractAsyncContextManager[Visit]:
    from survey.quic.visit import visits

    return visits(context)


def supports(record: QuicRecord) -> bool | None:
    """The `quic` column of a target: None if nobody knows, as the server was not reached, its headers were not read,
    another host than its own was asked, or it speaks HTTP/3 but has no answer to a HEAD of its start page. Campaigns
    ask the URL's own host at its own port, whatever Alt-Svc names."""
    is_offered = record.alt_svc_h3 is not None  # or known not to be
    if record.cause in NOT_ASKED or (record.cause == QuicCause.NO_CANDIDATE and not is_offered):
        return None
    if record.cause == QuicCause.HTTP_ERROR and record.http_status != _MISDIRECTED:
        return None
    origin = record.origin or record.domain
    if record.host not in (None, origin) or origin.rpartition(":")[2].isdecimal():
        return None
    return record.cause == QuicCause.OK and record.port in (None, HTTPS_PORT)


QUIC = Survey(
    name="quic",
    help="""Find out which domains serve HTTP/3: offers, forced version negotiation, then a handshake and a HEAD.

    Offers are HTTPS records, and the Alt-Svc headers that the crawl saw (INPUT: targets). After an
    interruption, the same command resumes from its ledger.
    """,
    record=QuicRecord,
    visits=_visits,
    figures=figures,
    settings=QuicSettings,
    targets={"quic": supports},
    outcome=lambda record: str(record.cause),
    good=lambda outcome: outcome not in NOT_ASKED,
    defaults={"timeout": 3.0, "per_address": 4},
    unplanned=("handshakes",),
    check=lambda settings: arguments.check_certificates(settings.trusted),
)
