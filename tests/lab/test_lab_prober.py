"""The prober address of each vantage point: routed there, and answered for by no kernel."""

from __future__ import annotations

import pytest

from core.errors import LabError
from tests.lab._probe import Probe, probes
from vantage.lab.lab import Lab

pytestmark = pytest.mark.lab


def test_no_kernel_has_it_and_none_answers_for_it(small_lab: Lab) -> None:
    place = small_lab.place("MUC")
    prober = place.prober()
    assert small_lab.truth()["probers"] == {"MUC": {"ipv4": prober.ipv4, "ipv6": prober.ipv6}}
    held = place.run(["ip", "-oneline", "address"]).stdout
    assert f"{prober.ipv4}/" not in held and f"{prober.ipv6}/" not in held
    assert (prober.device, prober.neighbour, prober.ports) == ("tun0", None, None)
    own = small_lab.plan.addresses["akamai-1"]
    for flight in probes(place, [Probe(target=at, port=443, request="", end_s=1.5) for at in (own.ipv4, own.ipv6)]):
        # The server waits for a ClientHello: its SYN-ACK came once, as a kernel that answered with RST had ended it.
        assert flight.syn_ack and not flight.reset and not flight.segments


def test_a_server_has_none(small_lab: Lab) -> None:
    with pytest.raises(LabError, match="akamai-1 has no prober address"):
        small_lab.place("akamai-1").prober()
