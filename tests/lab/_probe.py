"""Runs `_flight.py` in a place."""

from __future__ import annotations

import ipaddress
import itertools
import json
import sys
from dataclasses import asdict
from pathlib import Path

from tests.lab import _flight
from tests.lab._flight import Asked, Flight
from upshift.system.place import Place

_SCRIPT = Path(_flight.__file__)
_ports = itertools.count(20_001)


def get(path: str, host: str) -> str:
    """A request."""
    return f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"


def probe(
    place: Place,
    target: str,
    *,
    request: str,
    mss: int = 1200,
    port: int = 80,
    scale: bool = True,
    ack_delay_s: float = 0.0,
    end_s: float = 4.0,
) -> Flight:
    """The first flight that the server sends to the place's prober."""
    prober = place.prober()
    source = prober.ipv4 if ipaddress.ip_address(target).version == 4 else prober.ipv6
    assert source is not None
    asked = Asked(
        source=source,
        target=target,
        device=prober.device,
        neighbour=prober.neighbour,
        request=request,
        mss=mss,
        port=port,
        sport=next(_ports),
        scale=scale,
        ack_delay_s=ack_delay_s,
        end_s=end_s,
    )
    done = place.run([sys.executable, str(_SCRIPT)], stdin=json.dumps(asdict(asked)))
    return _flight.read(done.check(doing="probing").stdout)
