"""`upshift survey options`: which TCP options servers negotiate, one handshake each."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Annotated

import typer

from survey.options.prober import WANTED
from survey.options.record import OptionsRecord, figures
from survey.surveys import Context, Survey, Visit


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionsSettings:
    """The survey's own options."""

    port: Annotated[
        list[int] | None,
        typer.Option(
            min=1, max=65535, help="TCP port; may be repeated: the next is tried if the handshake fails. [443, 80]"
        ),
    ] = None
    again_after: Annotated[
        float,
        typer.Option(min=0, help="Repeat the handshake after this time if no option was negotiated [s]; 0: never."),
    ] = 3.0
    probers: Annotated[int, typer.Option(min=1, max=64, help="Processes that make handshakes.")] = 1

    @property
    def ports(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(self.port or (443, 80)))


def _visits(context: Context) -> AbstractAsyncContextManager[Visit]:
    from survey.options.visit import visits

    return visits(context)


def _negotiated(name: str) -> Callable[[OptionsRecord], bool | None]:
    return lambda record: getattr(record, name) if record.outcome == "ok" else None


OPTIONS = Survey(
    name="options",
    help="""TCP handshake with every domain's server: ECN, SACK, window scaling, timestamps, SYN retransmissions.

    A handshake is closed by RST; no data is sent. After an interruption, the same command resumes from its ledger.
    """,
    record=OptionsRecord,
    visits=_visits,
    figures=figures,
    settings=OptionsSettings,
    targets={name: _negotiated(name) for name in ("ecn", "sack", "window_scaling")},
    defaults={"rate": 1000.0},
    unplanned=("probers",),
    contact=False,  # a bare handshake carries no contact address
    kernel=WANTED,
    visits_per_place=4,
)
