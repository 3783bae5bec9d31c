"""The program `iwprobe` as a prober of `survey.programs`, the prober of a run, its controls, and its visit."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from core.errors import PlaceError, UsageError
from core.system.process import require_ours
from survey.access import NotAskedError
from survey.iw.record import IwRecord
from survey.iw.request import Request
from survey.iw.sources import read_names
from survey.iw.visit import IwVisitor
from survey.iw.wire import MOST_ARRIVALS, ProbeReply, ProbeRequest, Scheme, decode, encode, reply_bytes
from survey.programs import ProberPool, ProberProgram
from survey.subjects import Subject
from survey.surveys import Context, Remark, Visit


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """Where the prober's packets leave and arrive."""

    device: str
    """Network device of the namespace that the prober runs in."""
    addresses: Sequence[str]
    """Its own source addresses, at most one of each family; not the namespace's."""
    next_hop: str | None = None
    """Link-layer address that packets are sent to; None: a device without a link layer (TUN)."""
    ports: tuple[int, int] = (32_768, 60_999)
    """First and last source port."""


def find_iwprobe() -> str:
    """Path of the prober: `$UPSHIFT_IWPROBE`, next to our interpreter (where its wheel installs it), or on PATH.

    Raises PlaceError if it is not found, or is a debug build.
    """
    return require_ours("iwprobe", "the prober iwprobe")


def prober(
    attachment: Attachment,
    *,
    packet_rate: float | None = None,
    probe_rate: float | None = None,
    arrivals: int = 0,
) -> ProberProgram[ProbeRequest, ProbeReply]:
    """The program that makes the probes.

    Args:
        attachment: its device and addresses.
        packet_rate: most packets sent per second; None: no limit.
        probe_rate: most probes begun per second, at least 1; None: no limit.
        arrivals: arrivals of segments that each reply has room for (8 bytes each).

    Raises:
        PlaceError: it is not installed.
    """
    if not 0 <= arrivals <= MOST_ARRIVALS:
        raise ValueError(f"arrivals {arrivals} is outside 0 to {MOST_ARRIVALS}")
    argv = [find_iwprobe(), "--device", attachment.device, "--ports", "{}-{}".format(*attachment.ports)]
    argv += [word for address in attachment.addresses for word in ("--address", address)]
    if attachment.next_hop is not None:
        argv += ["--next-hop", attachment.next_hop]
    if packet_rate is not None:
        argv += ["--packet-rate", str(packet_rate)]
    if probe_rate is not None:
        argv += ["--probe-rate", str(probe_rate)]
    if arrivals:
        argv += ["--arrivals", str(arrivals)]
    return ProberProgram(
        argv=argv,
        encode=encode,
        reply_bytes=reply_bytes(arrivals),
        decode=lambda data: decode(data, arrivals),
        greeted=_greeted,
    )


def _greeted(line: bytes) -> None:
    try:
        greeting = json.loads(line)
        fault, remedy = greeting["fault"], greeting["remedy"]
    except (ValueError, KeyError, TypeError):
        raise PlaceError(
            "the prober iwprobe could not be started", remedy="run upshift doctor to see what is missing"
        ) from None
    if fault is not None:
        raise PlaceError(fault, remedy=remedy)


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
            wanted = Request.of(url)
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
    if context.options.ipv6 and own.ipv6 is None:
        raise PlaceError("the prober has no IPv6 address here", remedy="use --isolation netns, or leave --ipv6 out")
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
    async with ProberPool(program, context.start) as probers:
        visitor = IwVisitor(
            # With a rate of packets probes would wait in the pipe for minutes, and who opts out meanwhile be contacted.
            access=context.access if settings.packet_rate is None else replace(context.access, ready=probers.taken),
            ask=probers.ask,
            user_agent=context.user_agent,
            names=read_names(settings.cdn_names),
            scheme=Scheme[settings.scheme.upper()],
            path=settings.path,
            mss=settings.values_of_mss,
            larger_mss=settings.prefixes is None,  # of whose addresses most are dead
            published=settings.votes == "published",
            pipeline=settings.pipeline,
            pacing=settings.pacing,
            limit_ms=min(15_000, round(context.options.timeout * 1000)),
            vantage=settings.vantage,
        )
        yield (await _controlled(context, visitor)).visit


async def _controlled(context: Context, visitor: IwVisitor) -> IwVisitor:
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
