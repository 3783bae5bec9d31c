"""The lab `cdn-iw`, counted by raw packets: every window, and one segment from the unfit vantage point."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab._probe import Probe, get, probes
from vantage.lab.lab import Lab, open_lab

pytestmark = pytest.mark.lab
MSS = 1200


@pytest.fixture(scope="module")
def lab(lab_host: Path) -> Iterator[Lab]:
    with open_lab("cdn-iw") as found:
        yield found


def asked(lab: Lab) -> list[Probe]:
    targets = lab.targets()
    assert len(targets) == 12 and all(target.server_ip for target in targets)
    requests = [get(target.url.partition(target.domain)[2], target.domain) for target in targets]
    pairs = zip(targets, requests, strict=True)
    return [Probe(target=target.server_ip or "", request=request, mss=MSS) for target, request in pairs]


def test_every_window_is_there(lab: Lab) -> None:
    planted = {path["domain"]: path for path in lab.truth()["paths"] if path["vantage"] == "MUC"}
    for target, flight in zip(lab.targets(), probes(lab.place("MUC"), asked(lab)), strict=True):
        path = planted[target.domain]
        size = path["initial_window"] * (MSS if path["initial_window_unit"] == "segments" else 1)
        assert (flight.size, flight.more, flight.fin) == (size, True, False), (target.domain, flight)


def test_the_unfit_vantage_point_sees_one_segment_of_each(lab: Lab) -> None:
    found = probes(lab.place("SYD"), asked(lab))
    assert [(len(flight.segments), flight.more) for flight in found] == [(1, True)] * 12, found
