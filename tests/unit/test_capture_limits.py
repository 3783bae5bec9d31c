"""The IP bytes of a capture, whole or cut, and a capture that is packed."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from downloader.execution.capture import ip_bytes
from downloader.limits.captures import pack
from tests.captures import scan_capture
from tests.unit.pcap_writer import download, ipv4, pcap


def frames() -> list[tuple[int, bytes]]:
    return [(segment.time_ns, ipv4(segment)) for segment in download(packets=50)]


def test_the_sum_is_the_engines(tmp_path: Path) -> None:
    path = tmp_path / "a.pcap"
    path.write_bytes(pcap(frames(), nanoseconds=False, snap=96))
    (connection,) = scan_capture(path).connections
    assert ip_bytes(path) == connection.client.ip_bytes + connection.server.ip_bytes > 50_000


@pytest.mark.thorough
def test_a_cut_capture_counts_its_whole_packets(tmp_path: Path) -> None:
    """At every length: never more than the whole one, and growing; nothing is no error."""
    path = tmp_path / "a.pcap"
    whole = pcap(frames()[:6], nanoseconds=False)
    found = []
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        found.append(ip_bytes(path))
    assert found[0] == found[24] == 0 and found == sorted(found)
    assert len(set(found)) == 7, "one step per packet"
    path.write_bytes(b"no capture at all, but longer than a header")
    assert ip_bytes(path) == 0


def test_a_packed_capture_reads_the_same(tmp_path: Path) -> None:
    path = tmp_path / "a.pcap"
    path.write_bytes(pcap(frames()))
    packed = pack(path)
    assert packed == tmp_path / "a.pcap.zst" and packed.stat().st_size < path.stat().st_size
    assert sorted(tmp_path.iterdir()) == [path, packed]
    plain, again = scan_capture(path), scan_capture(packed)
    assert again == dataclasses.replace(plain, path=packed)


def test_a_damaged_packed_capture_is_known_as_damaged(tmp_path: Path) -> None:
    path = tmp_path / "a.pcap"
    path.write_bytes(pcap(frames()))
    packed = pack(path)
    packed.write_bytes(packed.read_bytes()[: packed.stat().st_size // 2])
    assert scan_capture(packed).truncated


@pytest.mark.parametrize("content", [b"", b"\xd4\xc3\xb2\xa1"])
def test_nothing_to_pack(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.pcap"
    path.write_bytes(content)
    assert pack(path).exists() and ip_bytes(path) == 0
