"""The limiter's rules on records made by hand; whether they are right about real downloads is for the lab."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path

import pytest

upshift_native = pytest.importorskip("upshift_native")

from analysis.captures.connection import Connection  # noqa: E402
from analysis.captures.kpis import ALL  # noqa: E402
from analysis.captures.limiter import Limiter, judge  # noqa: E402
from analysis.captures.scan import kpi_values  # noqa: E402
from tests.captures import scan_capture  # noqa: E402
from tests.unit.pcap_writer import ACK, PSH, SYN, Segment, ipv4, pcap  # noqa: E402

MS = 1_000_000
RTT_NS = 20 * MS


@pytest.fixture
def empty(tmp_path: Path) -> Connection:
    """A record of a single SYN: nothing in it tells what limited a download."""
    syn = bytes.fromhex("450000280001400040060000c6120001c6120002") + struct.pack(
        ">HHIIBBHHH", 40000, 443, 7, 0, 0x50, 2, 1000, 0, 0
    )
    path = tmp_path / "one.pcap"
    record = struct.pack("<IIII", 1, 2, len(syn), len(syn)) + syn
    path.write_bytes(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 101) + record)
    (found,) = scan_capture(path).connections
    return found


def answer(
    empty: Connection,
    sizes: list[int],
    *,
    busy_bytes: int = 100_000,
    near_window: float = 0.0,
    inflation: float = 1.0,
    losses: dict[int, int] | None = None,
) -> Connection:
    """An answer with so many bytes per round trip; the bottleneck takes `busy_bytes` per round trip."""
    count, losses = len(sizes), losses or {}
    return replace(
        empty,
        syn_ns=0,
        syn_ack_ns=RTT_NS,
        initial_rtt_ns=RTT_NS,
        server=replace(empty.server, flight_count=sum(sizes) // 1000),
        window_scale_accepted=True,
        response_first_ns=100 * MS,
        response_last_ns=100 * MS + count * RTT_NS,
        response_bytes=sum(sizes),
        round_ns=RTT_NS,
        dispersion_ps_per_byte=RTT_NS * 1000 / busy_bytes,
        round_bytes=tuple(sizes),
        round_packets=tuple(size // 1000 for size in sizes),
        round_window_limited=tuple(round(size / 1000 * near_window) for size in sizes),
        round_losses=tuple(losses.get(number, 0) for number in range(count)),
        round_silent_ns=(0,) * count,
        round_rtt_ns=tuple(round(RTT_NS * inflation) if size else 0 for size in sizes),
    )


GROWING = [10_000, 20_000, 40_000, 80_000]


def test_without_an_answer_it_is_unknown(empty: Connection) -> None:
    verdict = judge(empty)
    assert (verdict.limiter, dict(verdict.shares)) == (Limiter.UNKNOWN, {})


def test_a_clock_that_was_set_back_in_the_handshake_tells_no_round_trip(empty: Connection) -> None:
    window = answer(empty, [70_000] * 10, near_window=0.9)
    verdict = judge(replace(window, syn_ack_ns=-5 * MS))
    assert verdict.limiter is Limiter.RECEIVE_WINDOW and "RTT" not in verdict.evidence
    slow = replace(quic(answer(empty, [60_000] * 10)), quic_window=1_000_000)
    assert judge(replace(slow, quic_server_initial_ns=-5 * MS)).limiter is Limiter.UNKNOWN


def test_a_window_limits_where_there_is_no_queue(empty: Connection) -> None:
    window = answer(empty, [60_000] * 10, near_window=0.9)
    assert judge(window).limiter is Limiter.RECEIVE_WINDOW
    assert judge(answer(empty, [100_000] * 10, near_window=0.9, inflation=1.6)).limiter is Limiter.PATH_RATE
    assert judge(answer(empty, [60_000] * 10, near_window=0.1)).limiter is Limiter.SENDER


def test_losses_limit_what_follows(empty: Connection) -> None:
    verdict = judge(answer(empty, GROWING + [50_000] * 12, losses={4: 2}))
    assert verdict.limiter is Limiter.CONGESTION
    assert verdict.shares == {Limiter.CONGESTION: 0.75, Limiter.SLOW_START: 0.25}
    assert "2 losses" in verdict.evidence


def test_slow_start_that_does_not_end(empty: Connection) -> None:
    assert judge(answer(empty, GROWING)).limiter is Limiter.SLOW_START


def test_a_silent_sender_and_a_slow_one(empty: Connection) -> None:
    assert judge(answer(empty, [80_000, 0, 0, 80_000, 0, 0])).limiter is Limiter.SENDER
    assert judge(answer(empty, [20_000] * 10)).limiter is Limiter.SENDER


def test_a_busy_bottleneck(empty: Connection) -> None:
    assert judge(answer(empty, GROWING + [100_000] * 12, inflation=1.5)).limiter is Limiter.PATH_RATE


def test_the_client_comes_first(empty: Connection) -> None:
    window = answer(empty, [60_000] * 10, near_window=0.9)
    verdict = judge(replace(window, client_cpu_share=0.8))
    assert verdict.limiter is Limiter.CLIENT_CPU
    assert verdict.shares == {Limiter.CLIENT_CPU: 0.8, Limiter.RECEIVE_WINDOW: pytest.approx(0.2)}
    starved = replace(window, client_cpu_share=0.1, client_run_delay_share=0.8)
    assert judge(starved).limiter is Limiter.CLIENT_CPU
    sleeping = replace(window, client_cpu_share=0.1, client_run_delay_share=0.5)
    assert judge(sleeping).limiter is Limiter.RECEIVE_WINDOW, "it waited for the network, too"


def test_an_answer_of_no_duration_has_no_shares(empty: Connection) -> None:
    late = replace(answer(empty, [10_000]), client_cpu_share=0.8, client_late_share=0.3)
    verdict = judge(replace(late, response_last_ns=late.response_first_ns))
    assert verdict.limiter is Limiter.CLIENT_CPU and verdict.shares == {}


def test_a_slow_client_behind_a_busy_bottleneck_costs_nothing(empty: Connection) -> None:
    slow = replace(answer(empty, GROWING + [100_000] * 12, inflation=1.5), client_run_delay_share=0.9)
    assert judge(slow).limiter is Limiter.PATH_RATE
    assert judge(replace(slow, client_late_share=0.3)).limiter is Limiter.CLIENT_CPU, "it read the end too late"


def quic(connection: Connection) -> Connection:
    return replace(
        connection,
        protocol="quic",
        syn_ns=None,
        syn_ack_ns=None,
        quic_client_initial_ns=0,
        quic_last_client_initial_ns=0,
        quic_server_initial_ns=RTT_NS,
        round_rtt_ns=(0,) * len(connection.round_bytes),
    )


def test_quic_has_the_client_s_account_for_what_is_encrypted(empty: Connection) -> None:
    slow = quic(answer(empty, [60_000] * 10))
    assert judge(slow).limiter is Limiter.SENDER
    blocked = replace(slow, quic_window=65_536, quic_data_blocked=10)
    assert judge(blocked).limiter is Limiter.RECEIVE_WINDOW
    assert judge(replace(blocked, quic_data_blocked=0)).limiter is Limiter.SENDER, "the server says that it was not"
    lossy = replace(slow, quic_loss_episodes=3)
    assert judge(lossy).limiter is Limiter.CONGESTION
    dropped = judge(replace(lossy, socket_drops=5))
    assert dropped.limiter is Limiter.CLIENT_SOCKET and dropped.shares[Limiter.CLIENT_SOCKET] > 0.5
    assert judge(quic(answer(empty, [100_000] * 10))).limiter is Limiter.PATH_RATE


def test_a_window_that_grew_limits_no_more(empty: Connection) -> None:
    """aioquic by itself doubles its window when half of it is used."""
    for sizes, limiter in (([300_000] * 20, Limiter.SENDER), ([80_000] * 20, Limiter.RECEIVE_WINDOW)):
        found = quic(answer(empty, [40_000, 64_000, *sizes], busy_bytes=1_000_000))
        assert judge(replace(found, quic_window=65_536, quic_data_blocked=1)).limiter is limiter


def test_drops_at_the_socket_limit_what_follows_slow_start(empty: Connection) -> None:
    """Of clients that count no losses, too: of their downloads the socket was the limiter with a share of 0."""
    dropped = replace(quic(answer(empty, GROWING + [60_000] * 12)), socket_drops=1)
    verdict = judge(dropped)
    assert verdict.limiter is Limiter.CLIENT_SOCKET
    assert verdict.shares == {Limiter.CLIENT_SOCKET: 0.75, Limiter.SLOW_START: 0.25}
    assert verdict.evidence == "at least 1 packets dropped at the client's socket"
    busy = judge(replace(dropped, quic_window=65_536, quic_data_blocked=9))
    assert busy.limiter is Limiter.RECEIVE_WINDOW and Limiter.CLIENT_SOCKET not in busy.shares


def test_a_retransmitted_initial_is_no_round_trip(empty: Connection) -> None:
    for size, limiter in ((60_000, Limiter.RECEIVE_WINDOW), (20_000, Limiter.SENDER)):
        slow = replace(quic(answer(empty, [size] * 10)), quic_window=65_536)
        late = replace(slow, quic_last_client_initial_ns=1000 * MS, quic_server_initial_ns=1000 * MS + RTT_NS)
        assert judge(slow).limiter is judge(late).limiter is limiter


@pytest.mark.parametrize("before", ["", "lost", "retry", "probe", "answer lost"])
def test_rounds_of_quic_are_as_long_whatever_came_before_the_answered_initial(tmp_path: Path, before: str) -> None:
    frames: list[tuple[int, bytes]] = []

    def add(ms: float, from_client: bool, payload: bytes) -> None:
        payload = payload[:28] + struct.pack(">H", len(frames)) + payload[30:]  # no packet is like another
        ends = (b"\xc6\x12\x00\x01", b"\xc6\x12\x00\x02")[:: 1 if from_client else -1]
        ports = (40000, 443)[:: 1 if from_client else -1]
        ip = struct.pack(">BBHHHBBH", 0x45, 0, 28 + len(payload), 0, 0x4000, 64, 17, 0) + b"".join(ends)
        frames.append((10**9 + round(ms * MS), ip + struct.pack(">HHHH", *ports, 8 + len(payload), 0) + payload))

    def header(first: int, target: bytes, source: bytes) -> bytes:
        return bytes([first]) + struct.pack(">IB8sB8s", 1, 8, target, 8, source)

    def initial(target: bytes, source: bytes) -> bytes:
        return header(0xC3, target, source) + b"\0" + struct.pack(">H", 0x4000 | 1150) + bytes(1150)

    client, server = b"c" * 8, b"s" * 8
    add(0, True, initial(b"o" * 8, client))
    at_ms = {"lost": 1000.0, "retry": 50.1}.get(before, 0.0)
    if before == "retry":
        add(50, False, header(0xF0, client, b"r" * 8) + bytes(40))
    if at_ms:
        add(at_ms, True, initial((b"r" if before == "retry" else b"o") * 8, client))
    if before == "answer lost":  # the server's Initial was, and not what came right behind it
        add(50, False, header(0xE3, client, server) + struct.pack(">H", 0x4000 | 1150) + bytes(1150))
        at_ms = 300.0
    add(at_ms + 50, False, initial(client, server))
    add(at_ms + 50.2, True, b"\x40" + server + bytes(80))
    if before == "probe":
        add(75, False, b"\x40" + client + bytes(1341))  # of a larger MTU, while the server prepares the body
        add(75.1, True, b"\x40" + server + bytes(26))
    for number in range(40):
        add(at_ms + 100.2 + number, False, b"\x40" + client + bytes(1241))
    add(at_ms + 141, True, b"\x40" + server + bytes(26))
    path = tmp_path / "quic.pcap"
    path.write_bytes(pcap(frames))
    (connection,) = scan_capture(path).connections
    assert connection.quic_retries == (before == "retry")
    assert connection.round_ns == pytest.approx(50 * MS, abs=MS)
    assert list(connection.round_packets) == [40]
    assert kpi_values(connection)["time_to_first_byte"] == pytest.approx((at_ms + 100.2) / 1e3)


class Exchange:
    """A connection on a path of 20 ms, seen at the client, whose windows are not scaled. Every so often the server
    sends a window at once."""

    RTT_MS = 20

    def __init__(self, *, has_timestamps: bool) -> None:
        self.segments: list[Segment] = []
        self.has_timestamps = has_timestamps
        self.asked_ms = [0.0]

    def add(
        self, ms: float, from_client: bool, seq: int, ack: int, length: int = 0, window: int = 65_535, flags: int = ACK
    ) -> None:
        # One tick per ms. The server echoes what left the client a round trip ago at least.
        echoed_ms = max(at_ms for at_ms in self.asked_ms if at_ms <= max(ms - self.RTT_MS, 0) + 1e-6)
        if from_client:
            self.asked_ms.append(ms)
        stamps = b"\x01\x01\x08\x0a" + struct.pack(">II", 1 + int(ms), 0 if from_client else 1 + int(echoed_ms))
        segment = Segment(
            time_ns=10**9 + round(ms * MS),
            from_client=from_client,
            seq=seq,
            ack=ack,
            flags=flags,
            window=window,
            length=length,
            ip_id=len(self.segments) + 1,
            options=stamps if self.has_timestamps else b"",
        )
        self.segments.append(segment)

    def run(
        self, path: Path, *, every_ms: float, closes: bool, is_copied: bool = False, probes: bool = False
    ) -> Connection:
        """Twelve windows. The client reads each at once, or only in time for the next; meanwhile the server may probe
        its window by a byte, as BSD and Windows do."""
        self.add(0, True, 0, 0, flags=SYN)
        self.add(self.RTT_MS, False, 0, 1, flags=SYN | ACK)
        self.add(self.RTT_MS, True, 1, 1)
        self.add(self.RTT_MS, True, 1, 1, 200, flags=ACK | PSH)
        sent, begin_ms = 1, 2.0 * self.RTT_MS
        for _ in range(12):
            edge = sent + 65_535
            for number in range(46):
                length, at_ms = min(1448, edge - sent), begin_ms + number * 0.12
                self.add(at_ms, False, sent, 201, length)
                sent += length
                if number % 2:
                    self.add(at_ms + 0.01, True, 201, sent, window=edge - sent if closes else 65_535)
            if probes:
                self.add(begin_ms + every_ms / 2, False, sent, 201, 1)
                self.add(begin_ms + every_ms / 2 + 0.01, True, 201, sent, window=0)
            if closes:
                self.add(begin_ms + every_ms - self.RTT_MS, True, 201, sent)
            begin_ms += every_ms
        later_ns = (0, 3000) if is_copied else (0,)
        path.write_bytes(pcap([(one.time_ns + later, ipv4(one)) for one in self.segments for later in later_ns]))
        (connection,) = scan_capture(path).connections
        return connection


@pytest.mark.parametrize(
    ("has_timestamps", "every_ms", "closes", "limiter"),
    [
        (True, 20.3, False, Limiter.RECEIVE_WINDOW),
        (True, 400.0, True, Limiter.RECEIVE_WINDOW),  # the silences were the server's
        (True, 400.0, False, Limiter.SENDER),
        (False, 20.3, False, Limiter.RECEIVE_WINDOW),  # the server's, with 0 % of packets near the window
        (False, 400.0, False, Limiter.SENDER),
    ],
)
def test_a_small_window_and_a_closed_one(
    tmp_path: Path, has_timestamps: bool, every_ms: float, closes: bool, limiter: Limiter
) -> None:
    exchange = Exchange(has_timestamps=has_timestamps)
    connection = exchange.run(tmp_path / "one.pcap", every_ms=every_ms, closes=closes)
    assert bool(connection.server.flight_count) is has_timestamps
    assert bool(connection.client.ws_zero_window) is closes
    verdict = judge(connection)
    assert verdict.limiter is limiter, verdict
    assert ("of packets near the window" in verdict.evidence) is has_timestamps
    assert ("with a window per round trip" in verdict.evidence) is not has_timestamps


def test_captured_twice_it_has_the_same_limiter_and_rate(tmp_path: Path) -> None:
    """A mirror port, or all devices at once: up to 200 % of packets were near the window."""
    once, twice = (
        Exchange(has_timestamps=True).run(tmp_path / "one.pcap", every_ms=20.3, closes=False, is_copied=is_copied)
        for is_copied in (False, True)
    )
    assert twice.server.ip_bytes == 2 * once.server.ip_bytes
    assert twice.round_window_limited == once.round_window_limited
    rates = [ALL["mean_throughput"].compute(connection) for connection in (once, twice)]
    assert rates[0] == pytest.approx(rates[1], rel=1e-3)


def test_the_probe_of_a_closed_window_is_no_loss(tmp_path: Path) -> None:
    """Its byte is sent again with the data."""
    exchange = Exchange(has_timestamps=True)
    connection = exchange.run(tmp_path / "one.pcap", every_ms=400.0, closes=True, probes=True)
    assert connection.server.true_retransmission == 11
    assert ", 0 losses or marks" in judge(connection).evidence


def test_without_a_round_trip_nothing_is_said_of_the_window(empty: Connection) -> None:
    unseen = replace(answer(empty, [60_000] * 10), server=empty.server, syn_ack_ns=None)
    assert "window" not in judge(unseen).evidence
    scaling = replace(answer(empty, [60_000] * 10), window_scale_accepted=None)
    assert "window" not in judge(scaling).evidence


@pytest.mark.parametrize("initial_rtt_ns", [None, -5 * MS])
def test_rounds_of_an_unknown_round_trip_tell_nothing(empty: Connection, initial_rtt_ns: int | None) -> None:
    """They take 1 ms, so that slow paths were silent: the server's fault."""
    slow = replace(answer(empty, [1000, 0, 0, 1000, 0, 0]), syn_ns=None, syn_ack_ns=None, initial_rtt_ns=initial_rtt_ns)
    verdict = judge(slow)
    assert (verdict.limiter, dict(verdict.shares)) == (Limiter.UNKNOWN, {})
    assert verdict.evidence == "the round trip of the handshake is not in the capture"
    assert judge(quic(slow)).limiter is Limiter.SENDER
    assert judge(replace(quic(slow), quic_last_client_initial_ns=None)) == verdict


def test_the_columns(empty: Connection) -> None:
    window = answer(empty, [60_000] * 10, near_window=0.9)
    assert ALL["limiter"].compute(window) == "receive_window"
    assert json.loads(str(ALL["limiter_shares"].compute(window))) == {"receive_window": 1.0}
    assert "90% of packets near the window" in str(ALL["limiter_evidence"].compute(window))
