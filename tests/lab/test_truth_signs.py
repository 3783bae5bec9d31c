"""Who is faster on a clean path is what the round trips of the protocols give, with each QUIC server of the lab.

Paths from 3 to 200 ms, each to a server that has its QUIC from `quiche` and to one that has it from `caddy`, without
loss and with a queue of at least one bandwidth-delay product. For each of them one campaign (ALL, aioquic and quiche
after a warm-up), and the model of `analysis.measures.truth` with what the servers say of their QUIC: two round trips
before the first byte in place of three, their initial window and packet size. Proven are

- quiche/ALL: the median speed-up is on the side of 1 where the model's is, wherever the model's is 1 % away from it;
- quiche/aioquic: the model makes no difference between two QUIC clients, so quiche is not slower;
- at least 95 % of handshakes take at most 1.3 times their round trips + 15 ms.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator

import pytest

from analysis.measures import truth
from core.domain import Outcome
from tests.cells import Repeats, cells
from tests.lab.campaigns import ALL, Bench, Measured, open_bench
from tests.topologies import server, topology

pytestmark = [pytest.mark.lab, pytest.mark.measures]

SERVERS = ("quiche", "caddy")
RATE_MBIT = 30
SIZES = {3: "1 MB", 10: "1 MB", 20: "1 MB", 40: "1 MB", 70: "500 kB", 100: "500 kB", 150: "200 kB", 200: "200 kB"}
"""File by round-trip time [ms]: large enough for several rounds, small enough for a few seconds per cell."""
CLEAR = 0.01
"""Differences below this are no sign."""
SAME = 0.005
"""Two medians this close are a tie."""


def domain_of(ms: int, quic_server: str) -> str:
    return f"ms{ms}.{quic_server}.example"


TOPOLOGY = topology(
    "signs",
    *(
        server(
            f"{kind}-{ms}",
            domain_of(ms, kind),
            size=size,
            path=f"rtt_ms = {ms}, rate_mbit = {RATE_MBIT}",
            more=f'quic_server = "{kind}"',
        )
        for kind in SERVERS
        for ms, size in SIZES.items()
    ),
    seed=14,
)


@pytest.fixture(scope="module")
def bench(lab_host: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("signs")
    path = folder / "signs.toml"
    path.write_text(TOPOLOGY, encoding="utf-8")
    with open_bench(path, folder) as bench:
        yield bench


def expected(path: truth.LabPath, size_bytes: int) -> float:
    """The model's speed-up of QUIC over TCP with large windows."""
    common = {"size_bytes": size_bytes, "rtt_s": path.rtt_ms / 1e3, "rate_mbit": path.rate_mbit, "window_bytes": None}
    tcp_s = truth.download_time(**common, initial_window=path.initcwnd, mtu=path.mtu)  # type: ignore[arg-type]
    quic_s = truth.download_time(
        **common,  # type: ignore[arg-type]
        initial_window=path.quic_initial_window_packets,
        mtu=path.quic_packet_bytes,
        stack=truth.QUIC,
    )
    return tcp_s / quic_s


def speed_up(found: Measured, config: str, vs: str) -> float:
    """Median over the runs."""
    times = {(d.configuration, d.iteration): d.last_byte_s for d in found.downloads}
    ratios = []
    for iteration in {iteration for _, iteration in times}:
        first_s, second_s = times[vs, iteration], times[config, iteration]
        assert first_s and second_s
        ratios.append(first_s / second_s)
    return statistics.median(ratios)


def wrong_signs(found: Measured, domain: str) -> list[str]:
    lab = found.data.folders[0].lab
    assert lab is not None
    path = next(path for path in truth.paths(lab) if path.domain == domain)
    assert path.clean
    wrong = []
    for download in found.downloads:
        assert download.outcome == Outcome.OK and download.treatment_ok, download
    over_tcp, model = speed_up(found, "quiche", "ALL"), expected(path, found.downloads[0].body_bytes)
    over_quic = speed_up(found, "quiche", "aioquic")
    print(f"{domain}: quiche/ALL {over_tcp:.3f}, model {model:.3f}; quiche/aioquic {over_quic:.3f}")
    slow = [f"{d.configuration} {d.connect_s} {d.tls_s}" for d in found.downloads if d.slow_handshake is not False]
    if len(slow) > 0.05 * len(found.downloads):
        wrong.append(f"{domain}: {len(slow)} of {len(found.downloads)} handshakes are slow: {', '.join(slow)}")
    if abs(model - 1) > CLEAR and (over_tcp > 1) != (model > 1):
        wrong.append(f"{domain}: quiche/ALL is {over_tcp:.3f}, the model has {model:.3f}")
    if over_quic < 1 - SAME:
        wrong.append(f"{domain}: quiche/aioquic is {over_quic:.3f}, and both need the same round trips")
    return wrong


@cells("quic_server", every=SERVERS, quick=SERVERS[:1])
@cells("ms", every=SIZES, quick=[40])
def test_the_faster_one_needs_fewer_round_trips(bench: Bench, ms: int, quic_server: str, repeats: Repeats) -> None:
    domain, times = domain_of(ms, quic_server), repeats(quick=3, soak=5)
    configurations = {"ALL": ALL, "aioquic": "aioquic", "quiche": "quiche"}
    bench.judge(
        lambda: bench.measure(domain, configurations, domain=domain, times=times), lambda one: wrong_signs(one, domain)
    )
