"""Runs `_flight.py` in a place."""

from __future__ import annotations

import ipaddress
import itertools
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from core.system.place import Place
from tests.lab import _flight
from tests.lab._flight import Asked, Flight

_SCRIPT = Path(_flight.__file__)
_numbers = itertools.count()


@dataclass(frozen=True, kw_only=True)
class Probe:
    """What to probe; see `Asked`."""

    target: str
    request: str
    mss: int = 1200
    port: int = 80
    scale: bool = True
    ack_delay_s: float = 0.0
    end_s: float = 4.0


def get(path: str, host: str, *, close: bool = False) -> str:
    """A request."""
    return f"GET {path} HTTP/1.1\r\nHost: {host}\r\n{'Connection: close' if close else 'Accept: */*'}\r\n\r\n"


def probes(place: Place, asked: Sequence[Probe]) -> list[Flight]:
    """The first flights that servers send to the place's prober, one after another."""
    prober = place.prober()
    documents = []
    for probe in asked:
        source = prober.ipv4 if ipaddress.ip_address(probe.target).version == 4 else prober.ipv6
        assert source is not None
        ends = {"source": source, "device": prober.device, "neighbour": prober.neighbour}
        documents.append(
            asdict(Asked(**asdict(probe), **ends, sport=(prober.ports or (20_001,))[0] + next(_numbers) % 8000))
        )
    done = place.run([sys.executable, str(_SCRIPT)], stdin=json.dumps(documents), timeout_s=10.0 + 10.0 * len(asked))
    return [_flight.read(found) for found in json.loads(done.check(doing="probing").stdout)]
