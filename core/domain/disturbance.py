"""What makes a measurement run void, or the time of a download wrong."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class VoidReason(StrEnum):
    """Why an attempt of a measurement run does not count. The vocabulary is closed, like `Failure`."""

    INTERRUPTED = "interrupted"
    """The campaign was stopped or killed during the run; not an error of the place."""
    EMULATOR_LATE = "emulator_late"
    """The path emulator delivered packets late."""
    EMULATOR_LOST = "emulator_lost"
    """The path emulator lost packets that it was not programmed to drop."""
    HOST_DROPPED = "host_dropped"
    """The host, or a device of the lab, dropped packets outside the path."""
    PORT_REUSED = "port_reused"
    """Two downloads of the run had the same client port, so their packets cannot be told apart."""
    SLOT_ENDED = "slot_ended"
    """The run took longer than its worst case, and the vantage point's slot ended."""
    UNKNOWN = "unknown"
    """Only in files of older versions, which stored a text instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbance:
    """Why a measurement run is void."""

    reason: VoidReason
    detail: str
    """One clause of text, with the numbers."""


class HostDisturbance(StrEnum):
    """How the host falsified one download whose options were as requested. The vocabulary is closed, like `Failure`."""

    CLIENT_LATE = "client_late"
    """By the capture, the last byte arrived well before the client read it: the client waited for a processor."""
