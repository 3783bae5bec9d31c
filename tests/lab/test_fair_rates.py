"""TCP and QUIC are measured alike: equal deliveries have equal rates, and a capture shows the whole handshake.

One server (`_steady_server.py`) sends one file at one pace over both transports, on a path of 100 ms. Proven are, for
each QUIC client against requests

- `delivery_rate` differs by less than 1 %, and is that of the server's pace;
- `mean_throughput` and `goodput` end with the data of the server, `throughput_published` with the connection;
- `handshake` of QUIC is one round trip, though aioquic's first 1-RTT packet is coalesced behind two others;
- a post-quantum ClientHello takes two datagrams, the usual one takes one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from analysis.captures.connection import Connection
from analysis.captures.kpis import Value
from analysis.captures.scan import kpi_values
from core.domain import Transport
from downloader.client import Client
from downloader.clients import ALL as CLIENTS
from downloader.execution.capture import Capture
from tests.captures import scan_capture
from tests.lab.noise import Noise, host_noise, measured
from tests.topologies import server, topology
from vantage.lab.lab import Lab, open_lab

pytestmark = [pytest.mark.lab, pytest.mark.measures]

RTT_MS = 100
BODY, CHUNK, INTERVAL_S = 200_000, 2_500, 0.02
PACE_MBIT = CHUNK * 8 / INTERVAL_S / 1e6
PORT = 8443
TOPOLOGY = topology(
    "fair", server("s", "www.s.example", more="quic = false", path=f"rtt_ms = {RTT_MS}, rate_mbit = 20")
)
STEADY = str(Path(__file__).with_name("_steady_server.py"))
ASKED: dict[str, tuple[Client, list[str]]] = {
    **{name: (client, []) for name, client in CLIENTS.items()},
    "post-quantum": (CLIENTS["quiche"], ["--post-quantum", "1"]),
}

_ROUND_TRIPS = {Transport.TCP: 3, Transport.QUIC: 2}
"""Before the first byte: handshakes with TLS 1.3, and the request."""

Seen = dict[str, dict[str, Value]]


@pytest.fixture(scope="module")
def lab(lab_host: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    path = tmp_path_factory.mktemp("fair") / "fair.toml"
    path.write_text(TOPOLOGY, encoding="utf-8")
    with open_lab(path) as lab:
        yield lab


@pytest.fixture(scope="module")
def seen(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """The KPIs of one download each; again if the host was busy and it shows."""
    folder = tmp_path_factory.mktemp("captures")

    def once() -> tuple[Seen, Noise]:
        with host_noise() as noise:
            found = downloads(lab, folder)
        return found, noise[0]

    return measured(once, lambda found: wrong_times(found[0]), excuse=lambda found: found[1].excuse)[0]


def downloads(lab: Lab, folder: Path) -> Seen:
    """One download by each client from the steady server."""
    address = lab.plan.addresses["s"].ipv4
    keys = [str(lab.folder.root / "certificates" / f"s.{end}") for end in ("pem", "key")]
    steady = [sys.executable, STEADY, address, str(PORT), *keys, str(BODY), str(CHUNK), str(INTERVAL_S)]
    found = {}
    with closing(lab.place("s")) as there, closing(lab.place("V")) as here, there.start(steady, stdout=True) as child:
        assert child.stdout is not None and child.stdout.readline() == "ready\n"
        for name, (client, more) in ASKED.items():
            path = folder / f"{name}.pcap"
            command = [*client.command()]
            command += ["--url", f"https://www.s.example:{PORT}/a.bin", "--address", address, "--port", str(PORT)]
            capture = Capture.start(here, path, address=address, port=PORT)
            said = here.run([*command, "--ca", str(lab.ca_file), *more]).check(doing=name).stdout
            assert capture.finish() == 0
            capture.close()
            document = json.loads(said)
            assert (document["outcome"], document["body_bytes"]) == ("ok", BODY), document
            found[name] = values_of(path)
    return found


def values_of(path: Path) -> dict[str, Value]:
    connection: Connection
    (connection,) = scan_capture(path).connections
    return kpi_values(replace(connection, body_bytes=BODY))


def number(values: dict[str, Value], name: str) -> float:
    value = values[name]
    assert isinstance(value, int | float), name
    return float(value)


def wrong_times(seen: Seen) -> list[str]:
    """Rates and handshakes that are not those of the path and of the server's pace."""
    wrong = []
    for client, values in seen.items():
        rate, handshake_s = number(values, "delivery_rate"), number(values, "handshake")
        first_byte_s, least_s = (
            number(values, "time_to_first_byte"),
            _ROUND_TRIPS[ASKED[client][0].transport] * RTT_MS / 1e3,
        )
        print(f"{client}: {rate:.4f} Mbit/s, handshake {handshake_s:.4f} s, first byte after {first_byte_s:.4f} s")
        if abs(rate / number(seen["requests"], "delivery_rate") - 1) >= 0.01 or abs(rate / PACE_MBIT - 1) >= 0.02:
            wrong.append(f"{client} delivered at {rate:.4f} Mbit/s, the server sent at {PACE_MBIT} Mbit/s")
        if not RTT_MS / 1e3 <= handshake_s < 1.3 * RTT_MS / 1e3 + 0.015:
            wrong.append(f"{client}: a handshake of {handshake_s:.4f} s")
        if not least_s <= first_byte_s < least_s + 0.06:
            wrong.append(f"{client}: first byte after {first_byte_s:.4f} s")
    return wrong


def test_equal_deliveries_have_equal_rates(seen: Seen) -> None:
    assert not wrong_times(seen)


def test_rates_end_with_the_data(seen: Seen) -> None:
    for values in seen.values():
        took_s = BODY * 8 / number(values, "goodput") / 1e6
        assert took_s == pytest.approx(number(values, "time_to_first_byte") + number(values, "transfer"), rel=1e-6)
        # Without what the server sends afterwards: acknowledgements, close_notify, FIN, a probe for a lost tail.
        ip_bytes, counted = number(values, "ip_bytes_from_server"), number(values, "mean_throughput") * took_s * 1e6 / 8
        assert 0.97 * ip_bytes < counted <= ip_bytes * (1 + 1e-6), values
        # That of all bytes, to the end of the connection: QUIC may close at once, and then it is the larger one.
        ended_s = ip_bytes * 8 / number(values, "throughput_published") / 1e6
        assert took_s < ended_s * (1 + 1e-6), values


def test_a_client_hello_takes_one_packet_and_a_post_quantum_one_two(seen: Seen) -> None:
    sizes = {
        name: (number(values, "client_hello_bytes"), values["client_hello_datagrams"]) for name, values in seen.items()
    }
    assert sizes.pop("post-quantum") == (2400, 2)
    for name, (size, packets) in sizes.items():
        # RFC 9000, section 14.1: a client's first datagram has 1,200 bytes or more.
        least, most = (300, 600) if ASKED[name][0].transport is Transport.TCP else (1200, 1252)
        assert packets == 1 and least <= size <= most, (name, size, packets)
