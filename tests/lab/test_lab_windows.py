"""Initial windows that a lab plants, counted by raw packets: the payload segments of a flight without any ACK."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.lab import noise
from tests.lab._flight import Flight
from tests.lab._probe import Probe, get, probes
from tests.topologies import UNFIT, server, topology
from vantage.lab.lab import Lab, open_lab

pytestmark = pytest.mark.lab

VANTAGES = ("V", "W", "P")
WINDOWS = (1, 10, 100)
MSS = (64, 1200)
NEAR = "rtt_ms = 20, rate_mbit = 500"
EXACT = f"windows = {list(WINDOWS)}\nplain_http = true"
PATHS = f"V = {{ {NEAR} }}, W = {{ {NEAR}, initcwnd = 7, drop = [0, 2, 6] }}, P = {{ {UNFIT} }}"
SENDER = 'web_server = "sender"\ninitcwnd = 2000'
TAILORED = f"V = {{ {NEAR}, first = 64000 }}, W = {{ {NEAR}, first = 83000 }}, P = {{ {NEAR} }}"
POPULATION = (
    "population = [{ hosts = 4096, initcwnd = 10 }, { hosts = 1024, initcwnd = 4 }, { hosts = 1, initcwnd = 25 }]"
)


def text() -> str:
    def with_paths(text: str, paths: str) -> str:
        return text[: text.index("paths = ")] + f"paths = {{ {paths} }}\n"

    def made(name: str, more: str) -> str:
        return server(name, f"www.{name}.example", more=more, vantages=VANTAGES, size="1 MB", path=NEAR)

    return topology(
        "windows",
        made("caddy", EXACT),
        made("nginx", f'web_server = "nginx"\n{EXACT}\n{POPULATION}'),
        made("sender", f'web_server = "sender"\nwindows = {list(WINDOWS)}'),
        with_paths(made("paths", 'web_server = "nginx"\nplain_http = true'), PATHS),
        with_paths(made("bytes", SENDER), TAILORED),
        made("paced", 'web_server = "sender"\ninitcwnd = 32').replace(NEAR, "rtt_ms = 100, rate_mbit = 500"),
        made("far", SENDER).replace(NEAR, "rtt_ms = 100, rate_mbit = 500"),
        made("largest", 'web_server = "nginx"\nplain_http = true\nwindows = [4000]'),
        made("unscaled", 'web_server = "sender"\ninitcwnd = 64\nwithout = ["window_scaling"]'),
        vantages=VANTAGES,
    )


@pytest.fixture(scope="module")
def lab(lab_host: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    path = tmp_path_factory.mktemp("windows") / "windows.toml"
    path.write_text(text())
    with open_lab(path) as found:
        yield found


def of(lab: Lab, name: str, path: str, *, window: int | None = None, mss: int = 1200, close: bool = False) -> Probe:
    domain = f"www.{name}.example" if window is None else f"iw-{window}.www.{name}.example"
    own = next(path["addresses"] for path in lab.truth()["paths"] if path["domain"] == domain)
    return Probe(target=own["ipv4"], request=get(path, domain, close=close), mss=mss)


def size_of(first: str, mss: int) -> int:
    return int(first) if first != "rfc3390" else {64: 256, 128: 512, 536: 2144, 1200: 3600}[mss]


def is_limited(flight: Flight) -> bool:
    return flight.ended_s is not None and flight.more and not flight.fin and not flight.reset


@pytest.mark.parametrize("kind", ["caddy", "nginx", "sender"])
def test_each_window_is_exact_at_each_segment_size(lab: Lab, kind: str) -> None:
    cells = [(window, mss) for window in WINDOWS for mss in MSS]
    found = probes(lab.place("V"), [of(lab, kind, "/a.bin", window=window, mss=mss) for window, mss in cells])
    for (window, mss), flight in zip(cells, found, strict=True):
        assert is_limited(flight), (window, mss, flight)
        assert len(flight.segments) == window, (window, mss, flight)
        # Caddy's head is a piece of its own, and so not a full segment.
        if kind != "caddy":
            assert (flight.size, flight.largest) == (window * mss, mss), (window, mss, flight)


def test_addresses_of_windows_promise_no_quic(lab: Lab) -> None:
    quic = {path["domain"]: path["quic"] for path in lab.truth()["paths"]}
    for domain in (f"{window}www.{kind}.example" for kind in ("caddy", "nginx") for window in ("", "iw-10.")):
        ask = ["curl", "-sSI", "--cacert", str(lab.ca_file), f"https://{domain}/a.bin"]
        head = lab.place("V").run(ask).check(doing="asking").stdout.lower()
        assert ('alt-svc: h3=":443"' in head) == quic[domain], domain


def test_the_largest_window(lab: Lab) -> None:
    [flight] = probes(lab.place("V"), [of(lab, "largest", "/a.bin", window=4000, mss=64)])
    assert (len(flight.segments), flight.size) == (4000, 256_000) and is_limited(flight), flight


def test_over_ipv6(lab: Lab) -> None:
    probe = of(lab, "sender", "/a.bin", window=100, mss=64)
    own = next(path for path in lab.truth()["paths"] if path["addresses"]["ipv4"] == probe.target)["addresses"]
    [flight] = probes(lab.place("V"), [Probe(target=own["ipv6"], request=probe.request, mss=64)])
    assert is_limited(flight) and len(flight.segments) == 100, flight


def test_a_path_has_its_own_window_and_its_drops_are_those_segments(lab: Lab) -> None:
    [flight] = probes(lab.place("W"), [of(lab, "paths", "/a.bin", mss=536)])
    # Segment 0 is lost, so the first one that comes again fills that hole.
    assert [offset // 536 for offset, _, _ in flight.segments if offset] == [1, 3, 4, 5], flight
    [flight] = probes(lab.place("V"), [of(lab, "paths", "/a.bin", mss=536)])
    assert len(flight.segments) == 10 and is_limited(flight), flight


def test_two_packets_per_round_trip_make_every_window_one(lab: Lab) -> None:
    """Where a busy host lets a server answer only a round trip later, two segments pass."""

    def measure() -> tuple[list[Flight], list[noise.Noise]]:
        with noise.host_noise() as noises:
            return probes(lab.place("P"), [of(lab, "paths", "/a.bin", mss=mss) for mss in MSS]), noises

    def wrong(found: tuple[list[Flight], list[noise.Noise]]) -> list[str]:
        return [str(flight) for flight in found[0] if len(flight.segments) != 1 or not is_limited(flight)]

    noise.measured(measure, wrong, excuse=lambda found: found[1][0].excuse)


def test_every_address_of_a_population_has_its_blocks_window(lab: Lab) -> None:
    document = lab.truth()["populations"]
    assert [(part["hosts"], part["initcwnd"]) for part in document] == [(4096, 10), (1024, 4), (1, 25)]
    cells = []
    for part in document:
        prefix = ipaddress.ip_network(part["prefix"])
        cells += [(str(prefix[index]), part["initcwnd"]) for index in {0, prefix.num_addresses // 3, -1}]
    asked = [Probe(target=address, request=get("/a.bin", address), mss=128) for address, _ in cells]
    found = probes(lab.place("V"), asked)
    assert [(len(flight.segments), is_limited(flight)) for flight in found] == [(window, True) for _, window in cells]


def test_windows_in_bytes_are_exact_at_each_segment_size(lab: Lab) -> None:
    cells = [("105000", 64), ("105000", 536), ("105000", 1200), ("14600", 1200), ("4380", 536)]
    cells += [("rfc3390", mss) for mss in (64, 128, 536, 1200)]
    asked = [of(lab, "bytes", f"/x?size=1000000&first={first}", mss=mss) for first, mss in cells]
    for (first, mss), flight in zip(cells, probes(lab.place("V"), asked), strict=True):
        assert flight.size == size_of(first, mss) and is_limited(flight), (first, mss, flight.size, flight)


def test_a_window_in_bytes_may_depend_on_the_vantage_point(lab: Lab) -> None:
    for name, size in (("V", 64_000), ("W", 83_000)):
        [flight] = probes(lab.place(name), [of(lab, "bytes", "/a.bin")])
        assert flight.size == size and is_limited(flight), flight
    planted = [path for path in lab.truth()["paths"] if path["server"] == "bytes"]
    assert [(path["vantage"], path["initial_window"]) for path in planted[:2]] == [("V", 64_000), ("W", 83_000)]


def test_answers_around_the_window(lab: Lab) -> None:
    mss, window = 64, 10
    sizes = [(window - 1) * mss, window * mss, window * mss + 1]
    asked = [of(lab, "sender", f"/x?answer={size}", window=window, mss=mss, close=True) for size in sizes]
    less, equal, more = probes(lab.place("V"), asked)
    assert (less.size, less.fin, less.more) == (sizes[0], True, False), less
    assert (equal.size, equal.more) == (sizes[1], False), equal
    assert (more.size, is_limited(more)) == (sizes[1], True), more


def test_a_server_without_window_scaling_stops_at_our_window(lab: Lab) -> None:
    [flight] = probes(lab.place("V"), [of(lab, "unscaled", "/a.bin")])
    assert 64_000 < flight.size <= 65_535 < 64 * 1200, flight


def test_failures_and_pages_of_the_sender(lab: Lab) -> None:
    asked = [of(lab, "sender", f"/x?fail={how}&size=90", window=10) for how in ("reset", "close", "drip")]
    reset, close, drip = probes(lab.place("V"), asked)
    assert reset.reset and not reset.segments, reset
    assert close.fin and not close.segments, close
    assert len(drip.segments) > 1 and drip.largest < 1200, drip
    name, host = "/" + "a" * 1000, "www.sender.example"
    curl = ["curl", "-sS", "-o", "-", "-w", "%{http_code}"]
    place = lab.place("V")
    page = place.run([*curl, f"http://{host}{name}"]).stdout
    assert name in page and page.endswith("404")
    moved = place.run([*curl, "-D", "-", f"http://{host}/?location=/x.bin"]).stdout
    assert "Location: /x.bin" in moved and "Set-Cookie: " in moved and moved.endswith("302")
    assert place.run([*curl, f"http://{host}/a.bin?cc=nonsense"]).stdout.endswith("400")
    assert place.run([*curl, f"http://{host}/x?answer=20"]).stdout.endswith("400")


@pytest.mark.measures
def test_a_window_in_bytes_is_spread_over_the_round_trips_that_the_server_believes_in(lab: Lab) -> None:
    """105,000 bytes over 1.5 round trips, the handshake's ACK delayed: a paced sender waits longer if we do."""
    expected_ms = {0.0: 157, 0.05: 228, 0.1: 308}
    path = "/x?size=1000000&first=105000&pace=1.5"

    def measure() -> tuple[list[Flight], list[noise.Noise]]:
        with noise.host_noise() as noises:
            asked = [replace(of(lab, "far", path), ack_delay_s=delay) for delay in expected_ms]
            return probes(lab.place("V"), asked), noises

    def wrong(measured: tuple[list[Flight], list[noise.Noise]]) -> list[str]:
        said = []
        for (delay_s, expected), flight in zip(expected_ms.items(), measured[0], strict=True):
            assert flight.size == 105_000 and is_limited(flight), (delay_s, flight)
            if abs(flight.span_s * 1000 - expected) > 0.06 * expected:
                said.append(f"{delay_s} s later: {flight.span_s * 1000:.0f} ms instead of {expected}")
        return said

    noise.measured(measure, wrong, excuse=lambda measured: measured[1][0].excuse)


@pytest.mark.measures
def test_pacing_spreads_the_flight_by_the_believed_round_trip(lab: Lab) -> None:
    """Ten segments at once, then trains of two: (N-10)/N x RTT / ratio, 34.4 ms; pace=S: S x RTT."""
    queries = {"": (0, 3), "pace=on": (34.4, 5), "pace=1.5": (150, 12), "pace=on&cc=bbr": (24.1, 5)}

    def measure() -> tuple[list[Flight], list[noise.Noise]]:
        with noise.host_noise() as noises:
            asked = [of(lab, "paced", f"/x?size=1000000&{query}") for query in queries]
            return probes(lab.place("V"), asked), noises

    def wrong(measured: tuple[list[Flight], list[noise.Noise]]) -> list[str]:
        found, _ = measured
        said = []
        for (query, (expected_ms, within_ms)), flight in zip(queries.items(), found, strict=True):
            assert len(flight.segments) == 32 and is_limited(flight), (query, flight)
            span_ms = flight.span_s * 1000
            if abs(span_ms - expected_ms) > within_ms:
                said.append(f"{query!r}: {span_ms:.1f} ms instead of {expected_ms}")
            if query and flight.segments[9][2] * 1000 > within_ms:
                said.append(f"{query!r}: the first ten took {flight.segments[9][2] * 1000:.1f} ms")
        return said

    noise.measured(measure, wrong, excuse=lambda measured: measured[1][0].excuse)
