"""Both QUIC clients against QUIC servers that are none of ours, over a path of 40 ms: aioquic's, and Caddy's quic-go.

A file of 20 MB arrives whole, and the handshake takes one round trip: at most 1.3 RTT + 15 ms.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core.system import process
from tests.lab.noise import Noise, host_noise, measured
from tests.topologies import server, topology
from vantage.lab.lab import Lab, open_lab

pytestmark = [pytest.mark.lab, pytest.mark.measures, pytest.mark.soak]

SERVER = str(Path(__file__).with_name("_h3_server.py"))
CLIENTS = {
    "quiche": (process.find_program("h3get") or "h3get",),
    "aioquic": (sys.executable, "-m", "downloader.programs.aioquic_get"),
}
SERVERS = {"aioquic": "quic = false", "quic-go": 'quic_server = "caddy"'}
"""Server -> what its topology entry says; aioquic's is started by the test."""
EACH = [(server, client) for server in SERVERS for client in CLIENTS]
BYTES = 20_000_000
RTT_S = 0.04
TIMES = 3


@pytest.fixture(scope="module")
def lab(lab_host: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Where Caddy leaves UDP port 443 alone, aioquic's server serves the same file there."""
    path = tmp_path_factory.mktemp("foreign") / "foreign.toml"
    properties = f"rtt_ms = {1e3 * RTT_S:g}, rate_mbit = 100"
    servers = [
        server(name, f"{name}.example", size="20 MB", path=properties, more=more) for name, more in SERVERS.items()
    ]
    path.write_text(topology("foreign", *servers))
    with open_lab(path) as lab:
        keys = lab.folder.root / "certificates"
        arguments = [lab.plan.addresses["aioquic"].ipv4, str(keys / "aioquic.pem"), str(keys / "aioquic.key")]
        arguments.append(str(lab.folder.content / "aioquic" / "a.bin"))
        place = lab.place("aioquic")
        with place.start([sys.executable, SERVER, *arguments], stdout=True) as child:
            assert child.stdout is not None and child.stdout.readline() == "ready\n"
            yield lab
        place.close()


def download(lab: Lab, name: str, client: str, max_bytes: int | None = None) -> dict[str, Any]:
    """The client's document."""
    target = next(target for target in lab.targets() if target.domain == f"{name}.example")
    place = lab.place("V")
    argv = [*CLIENTS[client], "--url", target.url, "--address", str(target.server_ip), "--ca", str(place.ca_file)]
    argv += ["--budget-s", "60", "--allow", "198.18.0.0/15"]
    argv += [] if max_bytes is None else ["--max-bytes", str(max_bytes)]
    try:
        found: dict[str, Any] = json.loads(place.run(argv, timeout_s=90).check(doing="downloading").stdout)
    finally:
        place.close()
    return found


@pytest.mark.parametrize(("name", "client"), EACH)
def test_a_large_file_arrives_whole(lab: Lab, name: str, client: str) -> None:
    found = download(lab, name, client)
    assert (found["outcome"], found["failure"], found["http_status"]) == ("ok", None, 200), found
    assert (found["body_bytes"], found["body_sha256"]) == (BYTES, lab.sha256(f"{name}.example"))
    print(f"{client} from {name}: {BYTES * 8 / 1e6 / found['last_byte_s']:.1f} Mbit/s")


@pytest.mark.parametrize(("name", "client"), EACH)
def test_the_handshake_takes_one_round_trip(lab: Lab, name: str, client: str) -> None:
    def measure() -> tuple[list[float], Noise]:
        with host_noise() as noise:
            taken = [download(lab, name, client, max_bytes=1)["connect_s"] for _ in range(TIMES)]
        return taken, noise[0]

    def wrong(found: tuple[list[float], Noise]) -> list[str]:
        middle_s = statistics.median(found[0])
        said = f"{client} to {name}: {1e3 * middle_s:.1f} ms, RTT {1e3 * RTT_S:g} ms"
        print(said)
        return [] if RTT_S <= middle_s <= 1.3 * RTT_S + 0.015 else [said]

    measured(measure, wrong, excuse=lambda found: found[1].excuse)
