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
from tests.captures import scan_capture  # noqa: E402

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
    assert judge(replace(slow, quic_server_initial_ns=-5 * MS)).limiter is Limiter.SENDER


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


def test_the_columns(empty: Connection) -> None:
    window = answer(empty, [60_000] * 10, near_window=0.9)
    assert ALL["limiter"].compute(window) == "receive_window"
    assert json.loads(str(ALL["limiter_shares"].compute(window))) == {"receive_window": 1.0}
    assert "90% of packets near the window" in str(ALL["limiter_evidence"].compute(window))
