"""Formats, link layers and what is skipped; a capture cut anywhere; swapped directions; shifted sequence numbers."""

from __future__ import annotations

import gzip
import random
import struct
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

upshift_native = pytest.importorskip("upshift_native")

from analysis.captures.connection import Connection  # noqa: E402
from analysis.captures.scan import kpi_values  # noqa: E402
from tests.captures import scan_capture  # noqa: E402
from tests.cells import examples  # noqa: E402
from tests.unit.pcap_writer import Segment, download, ipv4, pcap, pcapng  # noqa: E402

MAC = bytes(12)
LINKS = {
    "ethernet": (1, MAC + b"\x08\x00"),
    "vlan": (1, MAC + b"\x81\x00\x00\x05\x08\x00"),
    "qinq": (1, MAC + b"\x88\xa8\x00\x05\x81\x00\x00\x06\x08\x00"),
    "raw": (101, b""),
    "raw as tcpdump numbers it": (12, b""),
    "sll": (113, bytes(14) + b"\x08\x00"),
    "sll2": (276, b"\x08\x00" + bytes(18)),
    "loopback, little endian": (0, b"\x02\x00\x00\x00"),
    "loopback, big endian": (0, b"\x00\x00\x00\x02"),
    "loopback of OpenBSD": (108, b"\x00\x00\x00\x02"),
}
NOISY = settings(deadline=None, max_examples=examples(12), suppress_health_check=[HealthCheck.function_scoped_fixture])


def frames(segments: list[Segment], prefix: bytes = b"") -> list[tuple[int, bytes]]:
    return [(10**18 + segment.time_ns, prefix + ipv4(segment)) for segment in segments]


def scan(path: Path, content: bytes) -> tuple[Connection, ...]:
    path.write_bytes(content)
    return scan_capture(path).connections


def test_every_link_layer_gives_the_same_record(tmp_path: Path) -> None:
    expected = scan(tmp_path / "c", pcap(frames(download())))
    assert len(expected) == 1
    for name, (link, prefix) in LINKS.items():
        for padding in (b"", b"\x00" * 7):
            content = [(time, frame + padding) for time, frame in frames(download(), prefix)]
            assert scan(tmp_path / "c", pcap(content, link=link)) == expected, name


@pytest.mark.parametrize("order", ["<", ">"])
def test_byte_orders_and_time_units(tmp_path: Path, order: str) -> None:
    expected = scan(tmp_path / "c", pcap(frames(download())))
    for nanoseconds in (True, False):
        assert scan(tmp_path / "c", pcap(frames(download()), order=order, nanoseconds=nanoseconds)) == expected
    blocks = [(0, time, frame) for time, frame in frames(download())]
    for resolution in (6, 9, 0x80 | 32):
        found = scan(tmp_path / "c", pcapng(blocks, links=[(101, resolution)], order=order))[0]
        assert abs(found.last_ns - expected[0].last_ns) <= 1
        assert found.server.ip_bytes == expected[0].server.ip_bytes


def test_interfaces_have_their_own_link_type_and_clock(tmp_path: Path) -> None:
    plain = frames(download())
    prefixes = [b"", MAC + b"\x08\x00"]
    blocks = [(n % 2, time, prefixes[n % 2] + frame) for n, (time, frame) in enumerate(plain)]
    assert scan(tmp_path / "c", pcapng(blocks, links=[(101, 9), (1, 6)])) == scan(tmp_path / "d", pcap(plain))


def test_a_packet_without_a_time_ends_the_capture(tmp_path: Path) -> None:
    """It counted at 1970, so that its connection lasted for decades."""
    blocks = [(0, time, frame) for time, frame in frames(download())]
    frame = blocks[10][2]
    body = struct.pack("<I", len(frame)) + frame + bytes(-len(frame) % 4)
    simple = struct.pack("<II", 3, len(body) + 12) + body + struct.pack("<I", len(body) + 12)
    path = tmp_path / "c"
    path.write_bytes(pcapng(blocks[:10], links=[(101, 9)]) + simple + pcapng(blocks[11:], links=[(101, 9)]))
    capture = scan_capture(path)
    assert capture.truncated and "a packet has no time" in capture.warnings[0]
    whole = scan(tmp_path / "d", pcapng(blocks[:10], links=[(101, 9)]))
    assert capture.connections == tuple(replace(connection, truncated=True) for connection in whole)


def test_compressed_files_are_streams(tmp_path: Path) -> None:
    content = pcap(frames(download()))
    expected = scan(tmp_path / "c", content)
    assert scan(tmp_path / "c", gzip.compress(content[:100]) + gzip.compress(content[100:])) == expected
    with pa.BufferOutputStream() as stream:
        with pa.CompressedOutputStream(stream, "zstd") as compressor:
            compressor.write(content)
        packed = stream.getvalue().to_pybytes()
    assert scan(tmp_path / "c", packed) == expected
    for compressed in (packed, gzip.compress(content)):
        for cut in (20, len(compressed) * 2 // 3, len(compressed) - 1):
            path = tmp_path / "cut.pcap.gz"
            path.write_bytes(compressed[:cut])
            assert scan_capture(path).truncated


def test_fragments_and_icmp_quotes_are_skipped(tmp_path: Path) -> None:
    packet = ipv4(Segment(time_ns=0, from_client=True, seq=1, ack=0, length=64))
    first = packet[:6] + b"\x20\x00" + packet[8:]
    later = packet[:6] + b"\x00\x08" + packet[8:]
    quote = struct.pack(">BBHHHBBH", 0x45, 0, 56, 0, 0, 64, 1, 0) + bytes(8) + b"\x03\x01" + bytes(6) + packet[:28]
    path = tmp_path / "c.pcap"
    path.write_bytes(pcap([(1, first), (2, later), (3, quote), (4, b"\x45"), (5, b"")]))
    capture = scan_capture(path)
    assert capture.connections == ()
    assert capture.packets == 5
    assert capture.skipped == {"not_ip": 2, "fragments": 2, "other": 1, "unknown_link": 0}


def test_ipv6_with_extension_headers(tmp_path: Path) -> None:
    tcp = ipv4(Segment(time_ns=0, from_client=True, seq=1, ack=0, length=10))[20:]
    ends = bytes.fromhex("fd00019800180000000000000000000" + "1" + "fd00019800180000000000000000000" + "2")
    hops, target, atomic = b"\x3c\x00" + bytes(6), b"\x2c\x00" + bytes(6), b"\x06\x00\x00\x00" + bytes(4)
    chain = hops + target + atomic
    packet = struct.pack(">IHBB", 0x60000000, len(chain) + len(tcp), 0, 64) + ends + chain + tcp
    connection = scan(tmp_path / "c", pcap([(1, packet)]))[0]
    assert connection.client_ip == "fd00:198:18::1"
    assert (connection.client.ip_bytes, connection.client.payload_bytes) == (len(packet), 10)


def test_tso_length_and_merged_packets(tmp_path: Path) -> None:
    segments = download(packets=4)
    big = Segment(time_ns=60_000_000, from_client=False, seq=segments[-1].ack, ack=1101, length=9000)
    packet = ipv4(big)
    content = [*frames(segments), (10**18 + big.time_ns, packet[:2] + b"\x00\x00" + packet[4:])]
    connection = scan(tmp_path / "c", pcap(content))[0]
    assert connection.gro
    assert connection.server.largest_payload == 9000
    assert not scan(tmp_path / "c", pcap(frames(segments)))[0].gro


def test_port_reuse_and_repeated_syns(tmp_path: Path) -> None:
    syn = download()[0]
    again = Segment(time_ns=10**9, from_client=True, seq=syn.seq, ack=0, flags=syn.flags, options=syn.options)
    other = [Segment(**{**fields(s), "time_ns": s.time_ns + 2 * 10**9}) for s in download(base=500_000)]
    connections = scan(tmp_path / "c", pcap(frames([syn, again, *download()[1:], *other])))
    assert [c.client.syn_packets for c in connections] == [2, 1]


def fields(segment: Segment) -> dict[str, object]:
    return {name: getattr(segment, name) for name in Segment.__slots__}


@NOISY
@given(cut=st.integers(min_value=0, max_value=10_000))
def test_a_capture_cut_anywhere_keeps_what_came_before(tmp_path: Path, cut: int) -> None:
    packets = frames(download(packets=8))
    whole = pcap(packets)
    cut = 4 + cut % (len(whole) - 4)
    path = tmp_path / "cut.pcap"
    path.write_bytes(whole[:cut])
    capture = scan_capture(path)
    ends = [len(pcap(packets[:n])) for n in range(len(packets) + 1)]
    complete = max(sum(end <= cut for end in ends) - 1, 0)
    assert capture.packets == complete
    assert capture.truncated == (cut not in ends) == bool(capture.warnings)
    assert all(c.truncated == capture.truncated for c in capture.connections)
    assert sum(c.client.packets + c.server.packets for c in capture.connections) == complete


@NOISY
@given(k=st.integers(min_value=1, max_value=60_000))
def test_sequence_numbers_may_wrap(tmp_path: Path, k: int) -> None:
    lost = frozenset({3, 4, 17})
    here = scan(tmp_path / "c", pcap(frames(download(lose=lost))))
    # 0 is "unset" for Wireshark: a sum that hits it exactly is another case (docs/design/kpi-engine.md).
    base = 2**32 - k - (k % 1000 == 1)
    assert scan(tmp_path / "c", pcap(frames(download(base=base, lose=lost)))) == here


@NOISY
@given(seed=st.integers(min_value=0, max_value=1000))
def test_swapped_addresses_change_the_addresses_only(tmp_path: Path, seed: int) -> None:
    lost = frozenset(random.Random(seed).sample(range(30), 5))
    straight = frames(download(lose=lost))
    swapped = [(time, frame[:12] + frame[16:20] + frame[12:16] + frame[20:]) for time, frame in straight]
    one, other = scan(tmp_path / "c", pcap(straight))[0], scan(tmp_path / "c", pcap(swapped))[0]
    assert (one.client_ip, one.server_ip) == (other.server_ip, other.client_ip)
    assert kpi_values(one) == kpi_values(other)
    assert one.server.true_retransmission == 5
    assert one.server.retransmitted_bytes == 5000


def test_time_that_goes_back_is_counted(tmp_path: Path) -> None:
    segments = download()
    jumbled = [*segments[:10], segments[11], segments[10], *segments[12:]]
    connection = scan(tmp_path / "c", pcap(frames(jumbled)))[0]
    assert connection.backwards_packets == 1
    assert connection.duration_s == scan(tmp_path / "c", pcap(frames(segments)))[0].duration_s


def test_a_clock_that_is_set_back_gives_no_negative_kpi_and_no_wrong_rate(tmp_path: Path) -> None:
    packets = frames(download())
    rates = ("mean_throughput", "goodput")
    right = kpi_values(replace(scan(tmp_path / "c", pcap(packets))[0], body_bytes=40_000))
    for step in range(1, len(packets)):
        content = [(time - 10**10 * (number >= step), frame) for number, (time, frame) in enumerate(packets)]
        values = kpi_values(replace(scan(tmp_path / "c", pcap(content))[0], body_bytes=40_000))
        assert {name for name, value in values.items() if isinstance(value, float) and value < 0} == set(), step
        assert {values[name] for name in rates} <= {None, *(right[name] for name in rates)}, step


def test_what_a_snap_length_cuts_off_a_syn_is_unknown(tmp_path: Path) -> None:
    options = b"\x02\x04\x03\xe8\x04\x02\x08\x0a" + bytes(8) + b"\x01\x03\x03\x07"  # as Linux sends them
    syns = [Segment(**{**fields(segment), "options": options}) for segment in download()[:2]]
    packets = frames([*syns, *download()[2:]])
    expected = kpi_values(scan(tmp_path / "c", pcap(packets))[0])
    names = ("sack", "timestamps", "mss_client", "window_scale_server", "largest_window", "request_window_segments")
    assert all(expected[name] for name in names)
    for length in range(40, 40 + len(options)):
        values = kpi_values(scan(tmp_path / "c", pcap(packets, snap=length))[0])
        assert {values[name] for name in names if values[name] != expected[name]} == {None}, length
    assert kpi_values(scan(tmp_path / "c", pcap(packets, snap=length + 1))[0]) == expected
