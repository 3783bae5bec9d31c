"""The kind `Factor`: a transport knob of the kernel, as a pure value.

A factor says which levels it has, which kernel settings make a level, and how a SYN and its SYN-ACK prove that a level
was in force. It touches nothing itself: `downloader.campaign.apply` merges the settings of all factors, and the place
in which a campaign runs applies them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from upshift.domain import Handshake, Setting
from upshift.errors import UsageError

ON_OFF = ("off", "on")
"""The levels of a plain switch."""

NO_SYNACK = "no SYN-ACK was captured"
"""Reason of a proof that needs the server's answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """One file in `downloader/factors` holds one of these; the registry finds it there."""

    name: str
    """As campaign files and tables write it, e.g. `window_scaling`."""
    label: str
    """Short name for configurations that a permutation makes, e.g. `WS`."""
    help: str
    """One sentence: what it does, and the source that defines it."""
    levels: tuple[str, ...]
    """The levels that a permutation combines."""
    default: str
    """The level of every configuration that does not name the factor."""
    settings: Callable[[str], tuple[Setting, ...]]
    """(canonical level) -> what the kernel must be told. Name *every* setting that *any* level of the factor touches,
    except those that another factor owns: a level that leaves one out would inherit it from the download before."""
    proof: Callable[[str, Handshake], str | None]
    """(canonical level, handshake) -> None where the wire carried what was asked, else the reason why it did not.
    The *first* SYN counts. A client that asked as told, and a server that did not agree, is a reason too."""
    canonical: Callable[[str], str | None] | None = None
    """(text) -> canonical level, or None where there is no such level; left out, the levels are exactly `levels`."""
    accepts: str = ""
    """The accepted levels in words, where `levels` does not list them all."""

    @property
    def accepted(self) -> str:
        """The accepted levels in words."""
        return self.accepts or ", ".join(self.levels)

    def parse(self, level: str, *, where: str | None = None) -> str:
        """The canonical level. Raises UsageError that lists the accepted ones."""
        text = level.strip().lower()
        found = self.canonical(text) if self.canonical else (text if text in self.levels else None)
        if found is None:
            raise UsageError(
                f"{self.name} has no level {level!r}", where=where, remedy=f"accepted are: {self.accepted}"
            )
        return found


def option_proof(option: str, *, asked: bool, syn: bool, synack: bool | None) -> str | None:
    """The proof of an option that a client puts into its SYN and that holds if the SYN-ACK has it too.

    Args:
        option: what it is called in the reason, e.g. `SACK`.
        asked: whether the level wants it.
        syn, synack: whether the SYN and the SYN-ACK carried it; None where no SYN-ACK was captured.
    """
    if syn != asked:
        return f"the first SYN {'did not offer' if asked else 'offered'} {option}, against what was asked"
    if asked and synack is None:
        return NO_SYNACK
    if asked and not synack:
        return f"the client offered {option}, the server did not agree"
    return None
