"""Factors: transport options of the kernel, one file each, as pure values. To add one, add a file; `ecn.py` shows how.

A factor defines its levels, the kernel settings of each level, how a connection proves that a level was in use, and
when the option took effect. It changes nothing itself: `downloader.campaign.configurations` merges the settings of
all factors, and the place in which a campaign runs applies them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from core.domain import Configuration, Dose, Handshake, Refutation, Setting, TreatmentReason, Wire
from core.errors import UsageError
from core.registry import Registry

ON_OFF = ("off", "on")
"""The levels of a plain switch."""

Carried = bool | int | None
"""An option in a SYN: whether it was there, or its value; False and None: it was not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """What a factor changes in all configurations of a campaign, because of a level that one of them has."""

    configurations: Sequence[Configuration]
    note: str
    """For the user, before the campaign starts: what was changed, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """A factor. Each file in this folder has one, and the registry finds it there."""

    name: str
    """Its name in campaign files and tables, e.g. `window_scaling`."""
    label: str
    """Short name for configurations that a permutation makes, e.g. `WS`."""
    help: str
    """One sentence: what it does, and the source that defines it."""
    levels: tuple[str, ...]
    """The levels that a permutation combines."""
    default: str
    """The level of every configuration that does not set the factor."""
    settings: Callable[[str], tuple[Setting, ...]]
    """(canonical level) -> kernel settings. Include *every* setting that *any* level of the factor changes, except
    those of another factor: a missing one would be inherited from the previous download."""
    proof: Callable[[str, Wire], Refutation | None]
    """(canonical level, connection) -> None if the packets had the requested option, else the reason.
    The *first* SYN counts. It is also a reason if the client requested the option and the server did not accept it."""
    dose: Dose | None = None
    """When the option took effect: a speed-up of 1 means little in runs in which it could not. None if unknown."""
    canonical: Callable[[str], str | None] | None = None
    """(text) -> canonical level, or None for an unknown one; default: the levels are exactly `levels`."""
    prepare: Callable[[Sequence[Configuration]], Preparation | None] | None = None
    """(configurations over TCP, warm-ups among them) -> those that are measured instead, in the same order, so that
    nothing but the factor differs; None if no level needs that. Explicit levels of other factors are kept, so it may be
    called again."""
    most_syn_window: Callable[[str, int], int | None] | None = None
    """(canonical level, MSS) -> the largest window that the first SYN can announce because of this level [bytes]; None:
    no limit of its own. For factors that check this window."""
    accepts: str = ""
    """The accepted levels in words, if `levels` does not list them all."""

    @property
    def accepted(self) -> str:
        """The accepted levels in words."""
        return self.accepts or ", ".join(self.levels)

    def parse(self, level: str, *, where: str | None = None) -> str:
        """The canonical level. Raises UsageError that lists the accepted ones."""
        text = level.strip().lower()
        canonical = self.canonical(text) if self.canonical else (text if text in self.levels else None)
        if canonical is None:
            raise UsageError(
                f"{self.name} has no level {level!r}", where=where, remedy=f"accepted are: {self.accepted}"
            )
        return canonical


def option_proof(
    option: str, *, requested: bool, wire: Wire, carried: Callable[[Handshake], tuple[Carried, Carried]]
) -> Refutation | None:
    """The proof of an option that a client puts into its SYN and that holds if the SYN-ACK has it too.

    Args:
        option: its name in the detail, e.g. `SACK`.
        requested: whether the level requests it.
        carried: the option in SYN and SYN-ACK of a handshake.
    """
    offered, agreed = carried(wire.client)
    if _is_there(offered) != requested:
        detail = f"the first SYN {'did not offer' if requested else 'offered'} {option}, against what was asked"
        return Refutation(reason=TreatmentReason.WRONG_OFFER, detail=detail)
    if requested and not wire.client.synack_seen:
        return Refutation(reason=TreatmentReason.NO_SYN_ACK, detail="no SYN-ACK was captured")
    if wire.server is None or not wire.server.synack_seen:
        if requested and not _is_there(agreed):
            detail = (
                f"the client offered {option}, and the SYN-ACK did not agree: the server refused, or the path stripped"
            )
            return Refutation(reason=TreatmentReason.REFUSED_OR_STRIPPED, detail=detail)
        return None
    return _two_ends(option, (offered, agreed), carried(wire.server))


def _two_ends(option: str, client: tuple[Carried, Carried], server: tuple[Carried, Carried]) -> Refutation | None:
    """The verdict from the handshake at both ends, each as (SYN, SYN-ACK); the client's offer is as requested."""
    (offered, agreed), (arrived, answered) = client, server
    if _is_there(offered) and not _is_there(agreed):
        if not _is_there(arrived):
            return Refutation(
                reason=TreatmentReason.STRIPPED, detail=f"{option} was removed from the SYN on its way to the server"
            )
        if _is_there(answered):
            return Refutation(
                reason=TreatmentReason.STRIPPED, detail=f"{option} was removed from the SYN-ACK on its way back"
            )
        return Refutation(
            reason=TreatmentReason.SERVER_REFUSED, detail=f"the server was offered {option} and did not agree"
        )
    if arrived != offered or (_is_there(offered) and answered != agreed):
        detail = (
            f"{option} was rewritten on the way: SYN {_words(offered)}, at the server {_words(arrived)}; "
            f"SYN-ACK of the server {_words(answered)}, at the client {_words(agreed)}"
        )
        return Refutation(reason=TreatmentReason.REWRITTEN, detail=detail)
    return None


def _is_there(value: Carried) -> bool:
    return value is not None and value is not False  # 0 is a valid window scale


def _words(value: Carried) -> str:
    return str(value) if type(value) is int else "with it" if value is True else "without it"


ALL = Registry(__name__, Factor)
