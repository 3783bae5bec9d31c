"""Controls: servers whose window is known, which tell whether a vantage point can measure at all.

A network that passes only some packets per round trip makes every window look small. The IW-in-the-wild paper left
two vantage points out that saw a window of 1 everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from core.errors import UsageError
from survey.iw.objects import Wanted
from survey.iw.record import IwRecord
from survey.subjects import Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """A server, and its window."""

    subject: Subject
    segments: int


def parse_controls(texts: Sequence[str]) -> list[Control]:
    """Controls from `URL=IW`. Raises UsageError."""
    found = []
    for text in texts:
        url, _, segments = text.rpartition("=")
        try:
            wanted = Wanted.of(url)
        except ValueError:
            wanted = None
        if wanted is None or not (segments.isascii() and segments.isdecimal() and 1 <= int(segments) <= 4_096):
            raise UsageError(
                f"{text[:80]!r} is not a control", where="--control", remedy="write URL=IW, IW in segments from 1"
            )
        found.append(Control(subject=Subject(domain=wanted.host, url=url), segments=int(segments)))
    return found


def fault(control: Control, record: IwRecord) -> str | None:
    """What is wrong with the measurement of a control, None if it is right."""
    if record.iw_segments == control.segments:
        return None
    seen = record.iw_segments or record.iw_kind or record.failure or record.verdict
    return f"{control.subject.url} was measured as {seen}, not {control.segments}"
