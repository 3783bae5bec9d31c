"""nginx with HTTP/3: what it serves, and that as it comes it sends 64 KiB of an answer per round trip.

The whole table of clients and servers is in `test_clients_and_servers.py`, for `make soak`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from analysis.captures.limiter import Limiter
from analysis.measures.limiters import limiter_of
from core.domain import Outcome
from tests.lab.campaigns import ALL, Bench, Measured, open_bench
from tests.lab.test_quic_servers import ask_h3, ask_tcp, request
from tests.topologies import server, topology
from vantage.servers.nginx import NGINX, STREAM_BUFFER_BYTES

pytestmark = pytest.mark.lab

RTT_S = 0.06
BYTES = 1_000_000
FAR = f"rtt_ms = {RTT_S * 1e3:g}, rate_mbit = 100"
BY_NGINX = 'quic_server = "nginx"\n'
TOPOLOGY = topology(
    "nginx3",
    server("asis", "asis.example", size="1 MB", path=FAR, more=BY_NGINX + 'web_server = "nginx"'),
    server("wide", "wide.example", size="1 MB", path=FAR, more=BY_NGINX + 'quic_stream_buffer = "4 MB"'),
    server("edge", "edge.example", size="300 kB", more=BY_NGINX + "edge = { rtt_ms = 2, rate_mbit = 400 }"),
)


def need_nginx() -> None:
    """Skips where `make setup` had no network and the system's nginx has no HTTP/3."""
    assert NGINX.quic is not None
    if (missing := NGINX.quic.missing()) is not None:
        pytest.skip(missing)


@pytest.fixture(scope="module")
def bench(lab_host: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    need_nginx()
    folder = tmp_path_factory.mktemp("nginx3")
    (folder / "nginx3.toml").write_text(TOPOLOGY, encoding="utf-8")
    with open_bench(folder / "nginx3.toml", folder) as bench:
        yield bench


def test_it_serves_the_same_over_three_versions_of_http(bench: Bench, tmp_path: Path) -> None:
    lab = bench.lab
    with closing(lab.place("V")) as here:
        for name in ("asis", "edge"):
            address, domain = lab.plan.addresses[name].ipv4, f"{name}.example"
            asked = [request(domain, "/a.bin"), request(domain, "/a.bin", "HEAD"), request(domain, "/none.bin")]
            quic, tcp = ask_h3(here, address, asked), ask_tcp(here, address, asked[:1], tmp_path / "body")
            assert quic[0]["sha256"] == tcp[0]["sha256"] == lab.sha256(domain)
            told = dict(quic[0]["headers"])
            assert (told["server"], told["content-type"]) == ("nginx", "application/octet-stream")
            assert [one["status"] for one in quic] == [200, 200, 404] and dict(quic[1]["headers"])["content-length"]
            if name == "edge":
                assert told["x-cache"] == "MISS" and dict(tcp[0]["headers"])["x-cache"] == "HIT"
        ask = ["curl", "-sSI", "--cacert", str(here.ca_file), "-w", "%{http_version}", "https://asis.example/a.bin"]
        head = here.run(ask).check(doing="asking over TCP").stdout
        assert head.endswith("\n2") and 'alt-svc: h3=":443"; ma=2592000' in head
        [record] = here.run(["kdig", f"@{here.nameservers[0]}", "+short", "HTTPS", "asis.example"]).stdout.splitlines()
        assert "h3,h2" in record


def test_lab_json_says_what_it_is(bench: Bench) -> None:
    paths = {path["server"]: path for path in bench.lab.truth()["paths"]}
    fields = ("quic_server", "quic_congestion_control", "quic_initial_window_packets", "quic_stream_buffer_bytes")
    assert [paths["asis"][field] for field in fields] == ["nginx", "reno", 109, STREAM_BUFFER_BYTES]
    assert paths["wide"]["quic_stream_buffer_bytes"] == 4_000_000
    assert paths["asis"]["quic_server_version"].startswith("nginx/1.26.")


@pytest.mark.measures
def test_as_it_comes_it_sends_64_kib_per_round_trip(bench: Bench) -> None:
    """So it is slower than TCP, and its sender is the limit; with 4 MB it is faster."""

    def check(found: Measured) -> list[str]:
        rows = {d.configuration: d for d in found.downloads if not d.is_warmup}
        assert all(d.outcome == Outcome.OK and d.treatment_ok for d in rows.values()), rows
        tcp_s, quic_s = (rows[name].last_byte_s or 0.0 for name in ("ALL", "quiche"))
        rounds = quic_s / RTT_S - 2
        print(f"{rows['ALL'].domain}: TCP {tcp_s:.3f} s, QUIC {quic_s:.3f} s, {rounds:.1f} round trips of the body")
        if rows["ALL"].domain == "wide.example":
            return [] if quic_s < 0.8 * tcp_s else [f"with 4 MB {quic_s:.3f} s, TCP {tcp_s:.3f} s"]
        (limiter,) = (limiter_of(record) for record in found.of("quiche"))
        least = BYTES / STREAM_BUFFER_BYTES
        wrong = [] if least - 1 < rounds < least + 1.5 else [f"{rounds:.1f} round trips for {least:.1f} buffers"]
        return wrong + ([] if limiter is Limiter.SENDER and quic_s > 1.5 * tcp_s else [f"{limiter}, {quic_s:.3f} s"])

    configurations: dict[str, Mapping[str, str] | str] = {"ALL": ALL, "quiche": "quiche"}
    for domain in ("asis.example", "wide.example"):
        bench.judge(partial(bench.measure, domain, configurations, domain=domain), check)
