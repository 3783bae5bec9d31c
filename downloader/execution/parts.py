"""Where the time of a measurement run goes, part by part: what is not download is our own, and is to be small."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum

from downloader.client import ClientResult


class Part(StrEnum):
    """A part of an attempt's time; each moment belongs to one."""

    LOOK_UP = "look_up"
    CAPTURE_START = "capture_start"
    SETTINGS = "settings"
    """Writing the kernel settings of a configuration."""
    SET_UP = "set_up"
    """From the call of a client to its first packet."""
    DOWNLOAD = "download"
    """From the first packet to the last byte of the body; of a download that is not whole, to the client's end."""
    CLIENT_END = "client_end"
    """From the last byte to the client's end: hash, document, close."""
    PAUSE = "pause"
    """Pauses of quirks."""
    SETTLE = "settle"
    """Until no packet is in flight any more."""
    CAPTURE_END = "capture_end"
    JOURNAL = "journal"
    PACKING = "packing"
    """Reading the capture and compressing it, or dropping it."""
    REST = "rest"


class Parts:
    """The parts of one attempt, in seconds.

    Args:
        clock: gives seconds, from any origin.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self.seconds = dict.fromkeys(Part, 0.0)

    @contextmanager
    def on(self, part: Part) -> Iterator[None]:
        """The block is of this part."""
        began = self._clock()
        try:
            yield
        finally:
            self.seconds[part] += self._clock() - began

    def called(self, result: ClientResult, seconds: float) -> None:
        """A client was called, for so long."""
        set_up = min(result.setup_s or 0.0, seconds)
        download = seconds - set_up if result.last_byte_s is None else min(result.last_byte_s, seconds - set_up)
        self.seconds[Part.SET_UP] += set_up
        self.seconds[Part.DOWNLOAD] += download
        self.seconds[Part.CLIENT_END] += seconds - set_up - download

    def end(self) -> dict[str, float]:
        """Part -> seconds, to the microsecond; what belongs to no other part is `REST`."""
        self.seconds[Part.REST] += max(0.0, self._clock() - self._began - sum(self.seconds.values()))
        return {part.value: round(seconds, 6) for part, seconds in self.seconds.items()}
