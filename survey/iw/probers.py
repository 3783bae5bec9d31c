"""The prober of a run, its controls, and its visit."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from core.errors import PlaceError, UsageError
from survey.access import NotAskedError
from survey.iw.cdn import read_names
from survey.iw.objects import Wanted
from survey.iw.program import Attachment, prober
from survey.iw.record import IwRecord
from survey.iw.visit import Visitor
from survey.iw.wire import Scheme
from survey.programs import Programs
from survey.subjects import Subject
from survey.survey import Context, Remark, Visit


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """A server, and its window."""

    subject: Subject
    segments: int


def parse_controls(texts: Sequence[str]) -> list[Control]:
    """Controls from `URL=IW`. Raises UsageError."""
    controls = []
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
        controls.append(Control(subject=Subject(domain=wanted.host, url=url), segments=int(segments)))
    return controls


def fault(control: Control, record: IwRecord) -> str | None:
    """What is wrong with the measurement of a control, None if it is right."""
    if record.iw_segments == control.segments:
        return None
    measured = record.iw_segments or record.iw_kind or record.failure or record.verdict
    return f"{control.subject.url} was measured as {measured}, not {control.segments}"


ARRIVALS = 512
"""Arrivals kept of a flight where pacing is judged: our window has room for 437 segments of 1200 bytes."""


@asynccontextmanager
async def visits(context: Context) -> AsyncIterator[Visit]:
    """The visit, and the program that probes."""
    settings, own = context.settings, context.prober
    if own is None:
        raise PlaceError("there is no address for the prober here", remedy="run it in a lab, or as root")
    addresses = tuple(address for address in (own.ipv4, own.ipv6) if address is not None)
    attachment = Attachment(device=own.device, addresses=addresses, next_hop=own.neighbour)
    if own.ports is not None:
        attachment = replace(attachment, ports=own.ports)
    program = prober(
        attachment,
        packet_rate=settings.packet_rate,
        # Turns are granted at the rate, and collect in the prober's pipe while it has no CPU or holds packets back.
        # A little more than the rate, so that what has collected is worked off.
        probe_rate=1.04 * context.options.rate + 1,
        arrivals=ARRIVALS if settings.pacing else 0,
    )
    async with Programs(program, context.start) as probers:
        visitor = Visitor(
            access=context.access,
            ask=probers.ask,
            user_agent=context.user_agent,
            names=read_names(settings.cdn_names),
            scheme=Scheme[settings.scheme.upper()],
            path=settings.path,
            mss=settings.values_of_mss,
            published=settings.votes == "published",
            pipeline=settings.pipeline,
            pacing=settings.pacing,
            limit_ms=min(15_000, round(context.options.timeout * 1000)),
            vantage=settings.vantage,
        )
        yield (await _controlled(context, visitor)).visit


async def _controlled(context: Context, visitor: Visitor) -> Visitor:
    """The visitor, with what the controls tell about this vantage point."""
    controls = parse_controls(context.settings.control or ())
    faults = []
    for control in controls:
        record = IwRecord(domain=control.subject.domain)
        try:
            record = await replace(visitor, pacing=False).visit(control.subject, record)
        except NotAskedError as error:
            record.failure = error.failure
        faults += [sentence] if (sentence := fault(control, record)) is not None else []
    if faults:
        sentence = f"this vantage point is unfit, its results are marked: {'; '.join(faults)}"
        context.remarks.append(Remark("unfit", faults, sentence))
    return replace(visitor, vantage_fit=not faults) if controls else visitor
