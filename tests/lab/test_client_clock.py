"""Where a client's clock starts: at its first packet in the capture, whatever it had to load before."""

from __future__ import annotations

import statistics
from contextlib import closing
from pathlib import Path

import pytest
import trustme

from analysis.captures.connection import Connection
from core.domain import Outcome
from downloader import clients
from downloader.client import ClientResult, DownloadRequest
from downloader.execution.calls import Caller
from downloader.execution.capture import Capture
from tests.captures import scan_capture
from tests.cells import Repeats
from tests.lab.noise import Noise, host_noise, measured
from tests.topologies import server, topology
from vantage.lab.lab import Lab, open_lab

pytestmark = [pytest.mark.lab, pytest.mark.measures]

CLIENTS = tuple(clients.ALL.values())
AUTHORITIES = 600
"""Four times those of a system's bundle: what loads them takes 20 ms longer with most clients."""
MOST_BEFORE_PACKET_S = 0.0002
LEAST_BY_BUNDLE_S = 0.002

TOPOLOGY = topology("client-clock", server("s", "www.s.example", size="100 kB", path="rtt_ms = 4, rate_mbit = 100"))

Results = dict[tuple[str, str], list[ClientResult]]
"""(client, bundle) -> its downloads."""


def bundles(own: Path, folder: Path) -> dict[str, Path]:
    """The lab's authority alone, and as the last of many."""
    many = folder / "many.pem"
    others = [trustme.CA(organization_name=f"other {number}").cert_pem.bytes() for number in range(AUTHORITIES - 1)]
    many.write_bytes(b"".join([*others, own.read_bytes()]))
    return {"one": own, "many": many}


def download(lab: Lab, folder: Path, rounds: int) -> tuple[Results, list[Connection], Noise]:
    """Every client with each bundle in turn, several times, and what tcpdump saw of it."""
    [target] = lab.targets()
    results: Results = {}
    with (
        host_noise() as noise,
        closing(lab.place("V")) as place,
        Caller(place, list(CLIENTS), lambda: None) as caller,
    ):
        [address] = caller.resolve(target.domain, family="ipv4").addresses
        trusted = bundles(lab.ca_file, folder)
        path = folder / "all.pcap"
        path.unlink(missing_ok=True)
        capture = Capture.start(place, path, address=address, port=443)
        with place.measuring():
            for number in range(rounds + 1):
                for client in CLIENTS:
                    for name, ca_file in trusted.items():
                        request = DownloadRequest(
                            url=target.url,
                            address=address,
                            port=443,
                            ca_file=ca_file,
                            budget_s=20.0,
                            max_bytes=None,
                            user_agent="upshift-test",
                            allowed=tuple(map(str, place.allowed_prefixes)),
                        )
                        result = caller.download(client, request)
                        assert result.outcome is Outcome.OK, result.failure_detail
                        if number:  # the first one waits for its interpreter
                            results.setdefault((client.name, name), []).append(result)
        capture.finish()
        capture.close()
    return results, list(scan_capture(path).connections), noise[0]


def faults(results: Results, connections: list[Connection]) -> list[str]:
    """What is wrong: a clock that starts before the first packet, or a download that takes as long as its bundle."""
    first_s: dict[tuple[str, int], list[float]] = {}  # a port may be used again
    dearer = 0
    for found in connections:
        first_s.setdefault((found.protocol, found.client_port), []).append(found.first_ns / 1e9)
    wrong = []
    for client in CLIENTS:
        one, many = results[client.name, "one"], results[client.name, "many"]
        before = [
            min((at - r.started_at for at in first_s[client.transport, r.local_port or 0]), key=abs)
            for r in (*one, *many)
        ]
        early_s = statistics.median(before)
        # Smallest ones: what else a processor does only adds, and its two speeds differ by more than any bundle.
        took_s = [min(r.last_byte_s or 0 for r in x) for x in (one, many)]
        setup_s = [min(r.setup_s or 0 for r in x) for x in (one, many)]
        shown = (
            f"{client.name}: packet {early_s * 1e3:.3f} ms after the clock (worst {max(before) * 1e3:.3f}), "
            f"last byte {took_s[0] * 1e3:.2f} or {took_s[1] * 1e3:.2f} ms, "
            f"set-up {setup_s[0] * 1e3:.2f} or {setup_s[1] * 1e3:.2f} ms"
        )
        print(shown)
        is_early = min(before) < 0 or early_s > MOST_BEFORE_PACKET_S
        loading_s = setup_s[1] - setup_s[0]
        dearer += loading_s > LEAST_BY_BUNDLE_S
        # A clock that starts too early has all of it; two downloads of a client in Python differ by 2 ms by chance.
        if is_early or took_s[1] - took_s[0] > max(LEAST_BY_BUNDLE_S, loading_s / 2):
            wrong.append(shown)
    if 2 * dearer <= len(CLIENTS):  # quinn reads them in less than a millisecond
        wrong.append(f"{AUTHORITIES} authorities are too few: only {dearer} clients take longer to set up")
    return wrong


def test_the_clock_starts_with_the_first_packet_and_not_with_the_certificates(
    lab_host: Path, tmp_path: Path, repeats: Repeats
) -> None:
    (tmp_path / "lab.toml").write_text(TOPOLOGY)
    with open_lab(tmp_path / "lab.toml") as lab:
        measured(
            lambda: download(lab, tmp_path, repeats(quick=5, soak=15)),
            lambda found: faults(found[0], found[1]),
            excuse=lambda found: found[2].excuse,
        )
