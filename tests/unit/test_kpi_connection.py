"""The record that KPIs are computed from, and the KPIs' own descriptions."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

upshift_native = pytest.importorskip("upshift_native")

from analysis.captures import scan  # noqa: E402
from analysis.captures.connection import Connection, Side  # noqa: E402
from analysis.captures.export import schema  # noqa: E402
from analysis.captures.kpis import ALL, Value  # noqa: E402
from analysis.captures.scan import find_captures, kpi_values  # noqa: E402
from analysis.evidence.rows import refuse_taken  # noqa: E402
from core.errors import UsageError  # noqa: E402
from tests.captures import scan_capture  # noqa: E402
from tests.unit.pcap_writer import ACK, CWR, ECE, SYN, Segment, download, ipv4, pcap  # noqa: E402


def test_every_kpi_has_a_source_and_a_typed_column() -> None:
    assert {kpi.kind for kpi in ALL.values()} <= {float, int, str, bool}
    assert all(kpi.source and kpi.meaning.endswith(".") for kpi in ALL.values())
    assert not any("design, section" in kpi.source for kpi in ALL.values()), "there is no such document"
    assert {kpi.name for kpi in ALL.values()} <= set(schema().names)


def test_a_kpi_named_as_a_column_of_downloads_is_refused() -> None:
    """Its values replaced those of the column: all downloads took as long as the KPI said."""
    with pytest.raises(LookupError, match="KPI last_byte_s: downloads have a column of that name"):
        refuse_taken(["rtt_min", "last_byte_s"])


def test_what_a_kpi_raises_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "_computations", lambda: (("broken", lambda connection: connection.duration_s, float),))
    with pytest.raises(AttributeError, match="the KPI broken: 'NoneType' object has no attribute 'duration_s'"):
        kpi_values(cast("Connection", None))


@pytest.mark.parametrize(
    ("kind", "value"), [(float, "1.5"), (float, True), (int, 1.5), (int, True), (str, 1), (bool, 1)]
)
def test_a_value_of_another_type_is_one_sentence(kind: type, value: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "_computations", lambda: (("mine", lambda _: value, kind),))
    said = rf"{__file__}: the KPI mine gave {value!r} \(.*\), its function promises {kind.__name__}; return"
    with pytest.raises(UsageError, match=said):
        kpi_values(cast("Connection", None))


@pytest.mark.parametrize(
    ("kind", "value"), [(float, 1), (float, np.float64(1.5)), (str, np.str_("a")), (int, np.int64(1))]
)
def test_what_a_column_can_hold_is_kept(kind: type, value: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "_computations", lambda: (("mine", lambda _: value, kind),))
    assert kpi_values(cast("Connection", None)) == {"mine": value}


def test_values_fit_their_columns(shared_data: Path) -> None:
    for capture in ("ndpi_weibo.pcap", "quic_follow_multistream.pcapng", "accecn_handshake.pcap"):
        for connection in scan_capture(shared_data / "captures" / capture).connections:
            for name, value in kpi_values(connection).items():
                assert value is None or type(value) is ALL[name].kind, name


def test_the_record_has_exactly_the_documented_fields(tmp_path: Path) -> None:
    syn = bytes.fromhex("450000280001400040060000c6120001c6120002") + struct.pack(
        ">HHIIBBHHH", 40000, 443, 7, 0, 0x50, 2, 1000, 0, 0
    )
    path = tmp_path / "one.pcap"
    record = struct.pack("<IIII", 1, 2, len(syn), len(syn)) + syn
    path.write_bytes(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 101) + record)
    (fields,) = upshift_native.ConnectionReader(path).next_batch() or []
    joined = {"body_bytes", "socket_drops", "client_cpu_share", "client_run_delay_share", "client_late_share"}
    joined |= {"client_start_ns", "quic_client_lost", "quic_data_blocked", "quic_loss_episodes", "quic_window"}
    assert set(fields) == set(Connection.__slots__) - joined
    assert set(fields["client"]) == set(fields["server"]) == set(Side.__slots__)
    assert fields["syn_ns"] == 1_000_002_000
    assert (fields["client_port"], fields["server_port"]) == (40000, 443)
    sides = {name: Side(**fields[name]) for name in ("client", "server")}
    assert Connection.from_record(fields) == Connection(**(fields | sides))
    assert Connection.from_record(fields | {"series": {"bin_ns": 1}}).series == {"bin_ns": 1}
    with pytest.raises(TypeError, match="unknown field 'colour'"):
        Connection.from_record(fields | {"colour": "red"})
    with pytest.raises(TypeError, match="unknown field 'colour'"):
        Connection.from_record(fields | {"client": fields["client"] | {"colour": "red"}})
    cut = {name: value for name, value in fields["server"].items() if name != "mss"}
    with pytest.raises(TypeError, match="not all that a side has"):
        Connection.from_record(fields | {"server": cut})
    del fields["number"]
    with pytest.raises(TypeError, match="not all"):
        Connection.from_record(fields)


@pytest.mark.parametrize(
    ("content", "said"), [(b"", "is empty"), (b"hello, I am no capture", "neither"), (b"\x1f\x8bgarbage", "neither")]
)
def test_a_file_that_is_no_capture_is_one_sentence(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "bad.pcap"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=said):
        scan_capture(path)


def test_an_engine_of_another_version_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    current = upshift_native.ConnectionReader

    class Older:
        def __init__(self, path: Path, **settings: Any) -> None:
            self._reader = current(path, **settings)

        def next_batch(self) -> list[dict[str, Any]] | None:
            batch = self._reader.next_batch()
            return batch and [{name: record[name] for name in record if name != "number"} for record in batch]

    path = tmp_path / "one.pcap"
    path.write_bytes(pcap([(10**9, ipv4(Segment(time_ns=10**9, from_client=True, seq=0, ack=0, flags=SYN)))]))
    monkeypatch.setattr("analysis.captures.scan.upshift_native.ConnectionReader", Older)
    with pytest.raises(UsageError, match="different versions"):
        scan_capture(path)


def test_captures_are_found_whatever_the_case_of_their_names(tmp_path: Path) -> None:
    names = ["A.PCAP", "B.PcapNG", "C.pcap.GZ", "D.Cap.ZST"]
    for name in [*names, "E.PCAP.txt"]:
        (tmp_path / name).touch()
    assert [path.name for path in find_captures(tmp_path)] == names


def test_captures_are_found_behind_links_to_vantage_points(tmp_path: Path) -> None:
    """A folder of several hosts' vantage points has links to them; `upshift kpis` found no capture in it."""
    home, together = tmp_path / "home" / "vantage" / "MUC", tmp_path / "together" / "vantage"
    (home / "captures").mkdir(parents=True)
    (home / "captures" / "1.pcap").touch()
    together.mkdir(parents=True)
    (together / "MUC").symlink_to("../../home/vantage/MUC", target_is_directory=True)
    assert find_captures(together.parent) == [together / "MUC" / "captures" / "1.pcap"]
    assert find_captures(tmp_path) == [home / "captures" / "1.pcap"]


def test_a_directory_without_captures_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("none")
    with pytest.raises(UsageError, match="holds no captures"):
        find_captures(tmp_path)


@pytest.mark.parametrize(
    ("name", "segments"), [("zeek_206_example_a.pcap", 87), ("http2_follow_multistream.pcapng", 36)]
)
def test_segments_with_sack_blocks_are_counted(shared_data: Path, name: str, segments: int) -> None:
    """As many as `tcpdump -nn -r FILE | grep -c 'sack [0-9]'` finds; these files have no D-SACK."""
    sides = [
        side
        for found in scan_capture(shared_data / "captures" / name).connections
        for side in (found.client, found.server)
    ]
    assert sum(side.sack_segments for side in sides) == segments
    assert sum(side.dsack_blocks for side in sides) == 0


def test_data_packets_with_an_ecn_field_are_counted(shared_data: Path) -> None:
    """In the lab's capture all data was ECT (RFC 3168), except what was sent again; pure ACKs were not."""
    for connection in scan_capture(shared_data / "captures" / "lab_app.rcv.pcap.zst").connections:
        server = connection.server
        assert server.ecn_data_packets == server.ect0_packets + server.ect1_packets + server.ce_packets
        assert server.data_packets - 5 < server.ecn_data_packets <= server.data_packets < server.packets
        share = kpi_values(connection)["ect_share"]
        assert isinstance(share, float) and share > 0.99


def test_published_definitions(shared_data: Path) -> None:
    connections = scan_capture(shared_data / "captures" / "ndpi_rtsp_sll.pcap").connections
    connection = next(found for found in connections if found.server.data_packets)
    values: dict[str, Value] = kpi_values(connection)
    assert values["throughput_published"] == connection.server.ip_bytes * 8 / connection.duration_s / 1e6
    assert connection.response_last_ns is not None and connection.response_last_ns <= connection.last_ns
    until_last_data_s = (connection.response_last_ns - connection.first_ns) / 1e9
    assert connection.response_ip_bytes is not None
    assert connection.response_bytes < connection.response_ip_bytes <= connection.server.ip_bytes
    assert values["mean_throughput"] == connection.response_ip_bytes * 8 / until_last_data_s / 1e6
    marked = (
        connection.server.ws_retransmission
        + connection.server.ws_fast_retransmission
        + connection.server.ws_spurious_retransmission
    )
    assert values["retransmission_rate_packets"] == marked / connection.server.packets


def answered(tmp_path: Path, *data: tuple[bool, int, int, int]) -> Connection:
    """A connection with data at these times: (from the client, place among its sender's bytes, length, ms)."""
    segments = [
        Segment(time_ns=10**9, from_client=True, seq=0, ack=0, flags=SYN),
        Segment(time_ns=10**9 + 10**6, from_client=False, seq=0, ack=1, flags=SYN | ACK),
    ]
    for from_client, at, size, ms in data:
        ack = 301 if not from_client else 1
        time_ns = 10**9 + ms * 10**6
        segments.append(Segment(time_ns=time_ns, from_client=from_client, seq=1 + at, ack=ack, length=size))
    path = tmp_path / "answered.pcap"
    path.write_bytes(pcap([(segment.time_ns, ipv4(segment)) for segment in segments]))
    (connection,) = scan_capture(path).connections
    return connection


@pytest.mark.parametrize(
    ("echo", "syn_ack_ms", "rtt_ms", "known_ms"),
    [
        (1, 1020, 20, None),  # the first SYN-ACK was lost; Linux answers the second SYN with the first one's TSval
        (1001, 1020, 20, 20),  # the first SYN was lost
        (1, 1500, 1500, 1500),  # too soon to answer the second SYN
        (1, 1500, None, None),
    ],
)
def test_a_syn_ack_that_may_answer_either_syn_tells_no_round_trip(
    tmp_path: Path, echo: int, syn_ack_ms: int, rtt_ms: int | None, known_ms: int | None
) -> None:
    """The lost SYN-ACK made a handshake of 1,020 ms on a path of 20."""

    def at(ms: int, from_client: bool, echo: int, **rest: int) -> Segment:
        stamps = b"\x01\x01\x08\x0a" + struct.pack(">II", 1 + ms, echo)
        return Segment(time_ns=10**9 + ms * 10**6, from_client=from_client, options=stamps, **rest)

    segments = [
        at(0, True, 0, seq=0, ack=0, flags=SYN),
        at(1000, True, 0, seq=0, ack=0, flags=SYN),
        at(syn_ack_ms, False, echo, seq=0, ack=1, flags=SYN | ACK),
        at(syn_ack_ms, True, syn_ack_ms + 1, seq=1, ack=1),
        at(syn_ack_ms, True, syn_ack_ms + 1, seq=1, ack=1, length=300),
    ]
    if rtt_ms is not None:
        answer_ms = syn_ack_ms + rtt_ms
        segments += [
            at(answer_ms, False, syn_ack_ms + 1, seq=1, ack=301, length=1000),
            at(answer_ms, True, answer_ms + 1, seq=301, ack=1001),
            at(answer_ms, False, syn_ack_ms + 1, seq=1001, ack=301, length=1000),
            at(answer_ms + rtt_ms, False, answer_ms + 1, seq=2001, ack=301, length=1000),
        ]
    path = tmp_path / "syns.pcap"
    path.write_bytes(pcap([(segment.time_ns, ipv4(segment)) for segment in segments]))
    (connection,) = scan_capture(path).connections
    assert kpi_values(connection)["handshake_rtt"] == known_ms


def test_throughput_has_bytes_and_time_of_the_same_span(tmp_path: Path) -> None:
    """Of three answers the first has the most bytes: those of the others came after its last data packet."""
    data, came, ms = [], 0, 2
    for number, packets in enumerate((100, 90, 90)):
        data.append((True, 300 * number, 300, ms))
        data += [(False, came + 1000 * n, 1000, ms + 10 + n) for n in range(packets)]
        came, ms = came + 1000 * packets, ms + 10 + packets + 5
    connection = answered(tmp_path, *data)
    assert (connection.response_bytes, connection.response_ip_bytes) == (100_000, 40 + 100 * 1040)
    assert connection.server.ip_bytes == 40 + 280 * 1040
    assert kpi_values(connection)["mean_throughput"] == pytest.approx((40 + 100 * 1040) * 8 / 0.111 / 1e6)


def ipv6(segment: Segment) -> bytes:
    ends = [bytes.fromhex("20010db8" + "00" * 11 + end) for end in ("01", "02")]
    rest = ipv4(segment)[20:]
    source, target = ends if segment.from_client else reversed(ends)
    return struct.pack(">IHBB", 6 << 28, len(rest), 6, 64) + source + target + rest


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("ticks", [0, 250, None])
def test_what_was_captured_twice_without_ids_is_no_retransmission(
    tmp_path: Path, version: int, ticks: int | None
) -> None:
    """A mirror port, or all devices at once. What is sent again has a later TSval, if there are timestamps at all."""
    frames = []
    for segment in download(packets=100):
        for copy in (0, 1):
            now_ns = 10**9 + segment.time_ns + copy * 1000
            stamp = struct.pack(">BBBBII", 1, 1, 8, 10, now_ns // 10**6 + copy * (ticks or 0), 1)
            options = segment.options + (b"" if ticks is None else stamp)
            one = replace(segment, time_ns=now_ns, options=options, ip_id=0)
            frames.append((now_ns, ipv4(one) if version == 4 else ipv6(one)))
    path = tmp_path / "twice.pcap"
    path.write_bytes(pcap(frames))
    (connection,) = scan_capture(path).connections
    values = kpi_values(connection)
    seen = [values[name] for name in ("true_duplicates", "true_retransmissions", "client_losses")]
    assert seen == ([0, 101, 2] if ticks else [101, 0, 0])
    assert (values["retransmission_rate"] == 0) is not bool(ticks)


@pytest.mark.parametrize(("version", "first"), [(4, 0), (6, 0), (4, 4)])
@pytest.mark.parametrize("later_us", [1, 100, 350])
def test_captured_twice_it_has_the_same_figures(tmp_path: Path, version: int, first: int, later_us: int) -> None:
    """The copies come up to three packets later: all throughput was doubled, and the handshake had no round trip.

    From the fifth packet on, the first of the answer, none comes next to its copy.
    """
    names: tuple[str, ...] = ("mean_throughput", "client_losses", "transfer", "limiter", "ce_packets")
    names += ("syn_packets", "handshake_rtt", "rtt_min") if first == 0 else ()
    names += ("retransmission_rate", "retransmitted_bytes", "true_retransmissions", "true_reordered")

    def values(copies: tuple[int, ...]) -> list[Value]:
        frames = []
        for number, segment in enumerate(download(packets=100, lose=frozenset({20, 21}))[first:], start=first + 1):
            for copy in copies:
                now_ns = 10**9 + segment.time_ns + copy * 1000
                stamp = struct.pack(">BBBBII", 1, 1, 8, 10, 1 + segment.time_ns // 10**6, 1)
                one = replace(segment, time_ns=now_ns, options=segment.options + stamp, ip_id=number)
                packet = bytearray(ipv4(one) if version == 4 else ipv6(one))
                packet[1] |= (3 if version == 4 else 3 << 4) * (number % 5 == 0 and number > 10)  # CE
                frames.append((now_ns, bytes(packet)))
        path = tmp_path / "twice.pcap"
        path.write_bytes(pcap(sorted(frames)))
        (connection,) = scan_capture(path).connections
        found = kpi_values(connection)
        return [found[name] for name in names]

    assert values((0, later_us)) == values((0,))


@pytest.mark.parametrize("length", [22, 23, 24, 25, 31, 53, 54, 57, 69, 85, 86, 1400])
def test_a_late_close_notify_ends_no_answer(tmp_path: Path, length: int) -> None:
    """The server sends it when it gets to it; a client that has the body does not wait for it."""
    data = [(True, 0, 300, 2), (False, 0, 1400, 12), (False, 1400, 1400, 13), (False, 2800, length, 23)]
    connection = answered(tmp_path, *data)
    assert connection.response_bytes == 2800 + length
    assert connection.response_last_ns == 10**9 + (13 if length in (23, 24, 31, 53, 57, 69, 85) else 23) * 10**6


@pytest.mark.parametrize("behind", [0, 1, 2])
def test_what_only_the_handshake_tells_is_unknown_without_it(tmp_path: Path, behind: int) -> None:
    """A capture that begins behind the SYN, or the SYN-ACK, of a connection with ECN."""
    segments = [
        replace(one, time_ns=10**9 + one.time_ns, flags=one.flags | {0: ECE | CWR, 1: ECE}.get(number, 0))
        for number, one in enumerate(download())
    ]
    path = tmp_path / "begun.pcap"
    path.write_bytes(pcap([(one.time_ns, ipv4(one)) for one in segments[behind:]]))
    (connection,) = scan_capture(path).connections
    values = kpi_values(connection)
    names = ("ecn", "acc_ecn", "ece_segments", "cwr_segments")
    assert [values[name] for name in names] == ([None] * 4 if behind else [True, False, 0, 0])
    hello = (values["client_hello_bytes"], values["client_hello_datagrams"])
    assert hello == ((100, 1) if behind < 2 else (None, None))
    assert (values["limiter"] == "unknown") is bool(behind)


def quic_download() -> list[tuple[int, bytes]]:
    """Times [ns] and IP packets: round trips of 20 ms, the answer's 40 datagrams from 41 to 80 ms."""

    def datagram(ms: float, from_client: bool, payload: bytes) -> tuple[int, bytes]:
        ends = (b"\xc6\x12\x00\x01", b"\xc6\x12\x00\x02")[:: 1 if from_client else -1]
        ports = (40000, 443)[:: 1 if from_client else -1]
        ip = struct.pack(">BBHHHBBH", 0x45, 0, 28 + len(payload), 0, 0x4000, 64, 17, 0) + b"".join(ends)
        return 10**9 + round(ms * 10**6), ip + struct.pack(">HHHH", *ports, 8 + len(payload), 0) + payload

    def initial(target: bytes, source: bytes) -> bytes:
        head = struct.pack(">BIB8sB8sB", 0xC3, 1, 8, target, 8, source, 0)
        return head + struct.pack(">H", 0x4000 | 1150) + bytes(1150)

    client, server = b"c" * 8, b"s" * 8
    return [
        datagram(0, True, initial(b"o" * 8, client)),
        datagram(20, False, initial(client, server)),
        datagram(21, True, initial(server, client)),
        datagram(21.1, True, b"\x40" + server + bytes(80)),
        *(datagram(41 + number, False, b"\x40" + client + bytes([number]) + bytes(1240)) for number in range(40)),
        datagram(81, True, b"\x40" + server + bytes(26)),
    ]


@pytest.mark.parametrize("behind", [0, 1])
def test_what_only_the_first_initial_tells_is_unknown_without_it(tmp_path: Path, behind: int) -> None:
    """A capture that begins with the server's Initial: the client's second one was taken for its first, so the
    handshake took 0.1 ms, and the round trip before it counted as none in `mean_throughput`."""
    frames = quic_download()
    path = tmp_path / "begun.pcap"
    path.write_bytes(pcap(frames[behind:]))
    (connection,) = scan_capture(path).connections
    values = kpi_values(connection)
    names = ("handshake", "time_to_first_byte", "handshake_rtt")
    assert [values[name] for name in names] == ([None] * 3 if behind else [0.0211, 0.041, 20])
    since_ms = 20 if behind else 0
    of_server = sum(len(packet) for _, packet in frames if packet[15] == 2)
    assert values["mean_throughput"] == pytest.approx(of_server * 8 / (80 - since_ms) / 1e3)


@pytest.mark.parametrize("batch", [1, 30])
def test_what_is_captured_twice_counts_once(tmp_path: Path, batch: int) -> None:
    """A capture at `any` has each packet at the VLAN's interface and at the one below it, packet by packet or in
    batches: twice the throughput and the ClientHello, and another limiter."""
    once, twice = quic_download(), list[tuple[int, bytes]]()
    for at in [*range(4), *range(4, len(once), batch)]:
        frames = once[at : at + (batch if at >= 4 else 1)]
        twice += [*frames, *((frames[-1][0], packet) for _, packet in frames)]
    values = []
    for name, frames in (("once.pcap", once), ("twice.pcap", twice)):
        (tmp_path / name).write_bytes(pcap(frames))
        (connection,) = scan_capture(tmp_path / name).connections
        values.append(kpi_values(connection))
    of_capture = {f"{what}_from_{end}" for what in ("packets", "ip_bytes") for end in ("client", "server")}
    assert {name for name in values[0] if values[0][name] != values[1][name]} == of_capture | {"throughput_published"}


@pytest.mark.parametrize(("at", "ends_ms"), [(1400, 23), (0, 14), (2800, 14)])
def test_what_the_client_had_ends_no_answer(tmp_path: Path, at: int, ends_ms: int) -> None:
    """A tail loss probe comes when the server does not know that the client has everything; a lost packet is missed."""
    data = [(True, 0, 300, 2), (False, 0, 1400, 13), (False, 2800, 1400, 14), (False, at, 1400, 23)]
    connection = answered(tmp_path, *data)
    assert connection.response_last_ns == 10**9 + ends_ms * 10**6
    assert len(connection.round_bytes) == len(connection.round_losses) == (6 if ends_ms == 23 else 1)


def test_the_window_at_the_request_is_the_one_of_the_first_data(tmp_path: Path) -> None:
    """Scaled, and neither that of the SYN nor that of a later segment."""

    def packet(source: int, target: int, flags: int, window: int, *, options: bytes = b"", data: bytes = b"") -> bytes:
        header = struct.pack(
            ">HHIIBBHHH", source, target, 8 if source == 40000 and flags != 2 else 7, 1, (5 + len(options) // 4) << 4,
            flags, window, 0, 0,
        )  # fmt: skip
        body = header + options + data
        ip = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(body), 1, 0, 64, 6, 0)
        ends = [bytes([198, 18, 0, 1]), bytes([198, 18, 0, 2])]
        return ip + b"".join(ends if source == 40000 else reversed(ends)) + body

    scale = bytes([3, 3, 7, 1])
    packets = [
        packet(40000, 80, 2, 64_240, options=scale),
        packet(80, 40000, 0x12, 65_160, options=scale),
        packet(40000, 80, 0x10, 500),
        packet(40000, 80, 0x18, 502, data=b"GET / HTTP/1.1\r\n\r\n"),
        packet(40000, 80, 0x10, 2_000),
    ]
    path = tmp_path / "one.pcap"
    found = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 101)
    for number, one in enumerate(packets):
        found += struct.pack("<IIII", 1, number, len(one), len(one)) + one
    path.write_bytes(found)
    [connection] = scan_capture(path).connections
    values = kpi_values(connection)
    assert (values["request_window"], values["request_window_segments"]) == (502 << 7, (502 << 7) // 1460)
    assert values["largest_window"] == 2_000 << 7
