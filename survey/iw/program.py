"""The program `iwprobe` as a prober of `survey.programs`."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from core.errors import PlaceError
from core.system.process import refuse_debug_build
from survey.iw.wire import MOST_ARRIVALS, Reply, Request, decode, encode, reply_bytes
from survey.programs import Program


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
    beside = Path(sys.executable).parent / "iwprobe"
    installed = str(beside) if beside.is_file() else shutil.which("iwprobe")
    path = os.environ.get("UPSHIFT_IWPROBE") or installed
    if path is None:
        raise PlaceError("the prober iwprobe is not installed", remedy="run: make setup")
    if (fault := refuse_debug_build("the prober iwprobe", path)) is not None:
        what, _, remedy = fault.rpartition("; ")
        raise PlaceError(what, remedy=remedy)
    return path


def prober(
    attachment: Attachment,
    *,
    packet_rate: float | None = None,
    probe_rate: float | None = None,
    arrivals: int = 0,
    allow: Sequence[str] = (),
) -> Program[Request, Reply]:
    """The program that makes the probes.

    Args:
        attachment: its device and addresses.
        packet_rate: most packets sent per second; None: no limit.
        probe_rate: most probes begun per second, at least 1; None: no limit.
        arrivals: arrivals of segments that each reply has room for (8 bytes each).
        allow: prefixes that may be contacted, besides those that the environment allows; empty: all.

    Raises:
        PlaceError: it is not installed.
    """
    if not 0 <= arrivals <= MOST_ARRIVALS:
        raise ValueError(f"arrivals {arrivals} is outside 0 to {MOST_ARRIVALS}")
    argv = [find_iwprobe(), "--device", attachment.device, "--ports", "{}-{}".format(*attachment.ports)]
    argv += [word for address in attachment.addresses for word in ("--address", address)]
    argv += [word for prefix in allow for word in ("--allow", prefix)]
    if attachment.next_hop is not None:
        argv += ["--next-hop", attachment.next_hop]
    if packet_rate is not None:
        argv += ["--packet-rate", str(packet_rate)]
    if probe_rate is not None:
        argv += ["--probe-rate", str(probe_rate)]
    if arrivals:
        argv += ["--arrivals", str(arrivals)]
    return Program(
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
