"""The server kind `smoltcp`: another make of TCP, on addresses that its node's kernel does not have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab._probe import Probe, get, probes
from tests.topologies import server, topology
from vantage.lab.lab import Lab, open_lab

pytestmark = pytest.mark.lab
TEXT = topology("stack", server("s", "www.stack.example", more='web_server = "smoltcp"', size="1 MB"))


@pytest.fixture(scope="module")
def lab(lab_host: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    path = tmp_path_factory.mktemp("stack") / "stack.toml"
    path.write_text(TEXT)
    with open_lab(path) as found:
        yield found


def test_it_starts_with_2048_bytes_at_any_segment_size(lab: Lab) -> None:
    own = lab.plan.addresses["s"]
    cells = [(target, mss) for target in (own.ipv4, own.ipv6) for mss in (64, 128, 536, 1200)]
    asked = [Probe(target=target, request=get("/a.bin", "www.stack.example"), mss=mss) for target, mss in cells]
    for (target, mss), flight in zip(cells, probes(lab.place("V"), asked), strict=True):
        assert flight.ended_s is not None and flight.more and not flight.reset, (target, mss, flight)
        assert (flight.size, flight.largest) == (2048, mss), (target, mss, flight)
    [path] = lab.truth()["paths"]
    assert (path["initial_window"], path["initial_window_unit"]) == (2048, "bytes")


def test_its_addresses_are_not_the_kernels_and_downloads_are_whole(lab: Lab) -> None:
    own = lab.plan.addresses["s"]
    assert own.ipv4 not in lab.place("s").run(["ip", "address"]).stdout
    [target] = lab.targets()
    assert (target.url, target.quic) == ("http://www.stack.example/a.bin", False)
    for family in ("-4", "-6"):
        done = lab.place("V").run(["sh", "-c", f"curl -sS {family} {target.url} | sha256sum"])
        assert done.stdout.split()[:1] == [lab.sha256(target.domain)], done
    missing = lab.place("V").run(["curl", "-sS", "-w", "%{http_code}", "http://www.stack.example/none"])
    assert missing.stdout.endswith("404"), missing
