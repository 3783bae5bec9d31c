"""`iwprobe` and servers that reset, are silent, slow or late, do not speak TLS, say too little, or break rules."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from survey.iw.votes import ProbeResult
from survey.iw.wire import Note, ProbeReply, ProbeRequest, ProbeVerdict, Scheme
from tests.lab import _iw_rogues as rogues
from tests.lab import _iw_servers as servers
from tests.lab._iw_world import DEVICE, PROBER_ADDRESSES, IwWorld, asked, server_address
from tests.lab.noise import Noise, host_noise, measured

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("root")]

PROGRAM, ROGUES = Path(servers.__file__), Path(rogues.__file__)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IwWorld]:
    world = IwWorld(tmp_path_factory.mktemp("iw") / "world", (10, 100))
    pem, key = world.folder / "cert.pem", world.folder / "key.pem"
    try:
        with (
            running(world, PROGRAM, str(pem), str(key)),
            running(world, ROGUES, DEVICE, world.client_mac, PROBER_ADDRESSES[0]),
        ):
            yield world
    finally:
        world.close()


@contextmanager
def running(world: IwWorld, script: Path, *arguments: str) -> Iterator[None]:
    """A program in the servers' namespace."""
    argv = [*world.server.enter, sys.executable, str(script), *arguments]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        try:
            assert program.stdout is not None and program.stdout.readline() == b"ready\n"
            yield
        finally:
            program.kill()


def request(port: int, *, window: int = 10, mss: int = 536, limit_ms: int = 15_000, path: str = "/") -> ProbeRequest:
    scheme = Scheme.HTTPS if port in (servers.THINKS, servers.TLS_1_2, servers.NAGLE, servers.NOT_TLS) else Scheme.HTTP
    return ProbeRequest(
        address=server_address(window),
        port=port,
        mss=mss,
        host="iw.test",
        scheme=scheme,
        path=path,
        user_agent="",
        limit_ms=limit_ms,
    )


def test_manners(world: IwWorld) -> None:
    ports = (servers.RESETS, servers.SILENT, servers.CLOSES, servers.BYTE_BY_BYTE, servers.THINKS, servers.NOT_TLS)
    replies = asked(world, [request(port, limit_ms=10_000 if port == servers.THINKS else 3_000) for port in ports])
    seen: dict[int, ProbeReply] = dict(zip(ports, replies, strict=True))
    assert [reply.verdict for reply in replies] == [
        ProbeVerdict.RESET,
        ProbeVerdict.NO_DATA,
        ProbeVerdict.NO_DATA,
        ProbeVerdict.LOWER_BOUND,
        ProbeVerdict.LATE,
        ProbeVerdict.LIMITED,
    ], seen
    assert seen[servers.SILENT].total_us >= 3_000_000 and seen[servers.SILENT].requests == 1, "it was acknowledged"
    assert seen[servers.NOT_TLS].notes & Note.TLS_FAILED and seen[servers.NOT_TLS].flight_segments == 10


def test_tls_1_2_takes_one_round_more(world: IwWorld) -> None:
    for _ in range(5):
        reply, held_back = asked(world, [request(port, mss=1200) for port in (servers.TLS_1_2, servers.NAGLE)])
        if reply.verdict != ProbeVerdict.LATE:
            break  # a server that gets no processor for a fifth of a second is late, too
    assert (held_back.verdict, held_back.tls_version) == (ProbeVerdict.LATE, 12)
    assert (reply.verdict, reply.flight_segments, reply.tls_version) == (ProbeVerdict.LIMITED, 10, 12)
    assert 0 < reply.handshake_bytes < reply.flight_bytes


def test_a_window_less_one_byte_a_window_and_one_byte_more(world: IwWorld) -> None:
    sizes = (5_359, 5_360, 5_361)
    replies = asked(world, [request(servers.SIZED, path=f"/{size}") for size in sizes])
    assert [reply.verdict for reply in replies] == [
        ProbeVerdict.LOWER_BOUND,
        ProbeVerdict.LOWER_BOUND,
        ProbeVerdict.LIMITED,
    ]
    assert [reply.flight_segments for reply in replies] == [10, 10, 10]


def test_a_pause_before_the_body_makes_no_window_smaller(world: IwWorld) -> None:
    """Linux keeps what is less than a third of the window until an ACK comes (tcp_tso_should_defer): there were 9."""
    cells = [(mss, number * mss - 10) for mss in (64, 128) for number in range(1, 10)]
    plain = [request(servers.PAUSES, mss=mss, path=f"/{size}") for mss, size in cells]
    replies = asked(world, [replace(one, ack_delay_ms=40) for one in plain])
    assert [(reply.verdict, reply.flight_segments) for reply in replies] == [(ProbeVerdict.LIMITED, 10)] * len(cells)


def test_a_server_without_window_scaling(world: IwWorld) -> None:
    world.server.run("sysctl", "-qw", "net.ipv4.tcp_window_scaling=0")
    try:
        bound, limited = asked(world, [request(servers.NOT_TLS, window=100, mss=mss) for mss in (1200, 536)])
    finally:
        world.server.run("sysctl", "-qw", "net.ipv4.tcp_window_scaling=1")
    assert (bound.verdict, bound.server_scale) == (ProbeVerdict.WINDOW_BOUND, None)
    assert 65_535 - 1200 < bound.flight_bytes <= 65_535
    assert (limited.verdict, limited.flight_segments) == (ProbeVerdict.LIMITED, 100)


@pytest.mark.measures  # half a second of silence is an answer
def test_servers_that_break_the_rules(world: IwWorld) -> None:
    """Each ends in time, with a cause; what is not of the flight changes nothing of it."""
    expected: dict[rogues.Manner, tuple[ProbeVerdict, int]] = {
        rogues.garbage_after_the_flight: (ProbeVerdict.LOWER_BOUND, 10),
        rogues.garbage_before_the_next_segment: (ProbeVerdict.LIMITED, 10),
        rogues.never_stops: (ProbeVerdict.LOWER_BOUND, 10),
        rogues.never_answers_but_acknowledges: (ProbeVerdict.NO_DATA, 0),
        rogues.outside_the_window: (ProbeVerdict.NO_DATA, 0),
        rogues.partly_outside_the_window: (ProbeVerdict.LIMITED, 10),
        rogues.no_window: (ProbeVerdict.WINDOW_BOUND, 978),
        rogues.resets_elsewhere: (ProbeVerdict.LIMITED, 10),
        rogues.deaf: (ProbeVerdict.NO_DATA, 0),
        rogues.ignores_the_mss: (ProbeVerdict.LIMITED, 10),
    }
    assert set(expected) == set(rogues.MANNERS)
    limit_ms = 6_000

    def ask() -> tuple[dict[rogues.Manner, ProbeReply], Noise]:
        with host_noise() as noise:
            replies = asked(world, [rogue_request(manner, limit_ms) for manner in expected])
        return dict(zip(expected, replies, strict=True)), noise[0]

    def others(found: tuple[dict[rogues.Manner, ProbeReply], Noise]) -> list[str]:
        return [
            f"{manner.__name__}: {reply}"
            for manner, reply in found[0].items()
            if (reply.verdict, reply.flight_segments) != expected[manner]
        ]

    # A server that gets no processor for half a second is silent for too long.
    seen, _ = measured(ask, others, excuse=lambda found: found[1].excuse)
    for manner, reply in seen.items():
        assert reply.total_us < limit_ms * 1000 + 500_000, (manner.__name__, reply)
        assert reply.received_bytes < 600_000 + 1_500, (manner.__name__, reply)
    assert seen[rogues.deaf].requests == 3 and seen[rogues.deaf].notes & Note.HELD_UP
    assert seen[rogues.never_answers_but_acknowledges].requests == 1
    assert seen[rogues.ignores_the_mss].notes & Note.MSS_IGNORED
    assert seen[rogues.ignores_the_mss].flight_bytes == 10_000


def rogue_request(manner: rogues.Manner, limit_ms: int) -> ProbeRequest:
    address = rogues.address_of(manner)
    return ProbeRequest(address=address, port=80, mss=rogues.MSS, host="iw.test", user_agent="", limit_ms=limit_ms)


def test_lost_syn_acks_make_the_first_window_one_and_such_a_probe_does_not_vote(world: IwWorld) -> None:
    """Windows of 10, 10 and 1 where none, one and two SYN-ACKs are lost: Linux, tcp_init_cwnd."""
    ports = (servers.SIZED, servers.SYN_ACK_LOST, servers.SYN_ACK_LOST_TWICE)
    server = world.server
    # They go to a device that leads nowhere: the kernel gives up where a packet filter tells it of a drop.
    server.run("ip", "link", "add", "nowhere", "type", "veth", "peer", "dead-end")
    server.run("ip", "link", "set", "dead-end", "up")
    server.run("ip", "link", "set", "nowhere", "up")
    hook = f"type filter hook egress device {DEVICE} priority 0;"
    server.run("nft", f"add table netdev lost; add chain netdev lost out {{ {hook} }}")
    for lost, port in list(enumerate(ports))[1:]:
        what = f"tcp sport {port} tcp flags & (syn | ack) == syn | ack limit rate 1/day burst {lost} packets"
        server.run("nft", f"add rule netdev lost out {what} fwd to nowhere")
    try:
        replies = asked(world, [request(port, path="/100000") for port in ports])
    finally:
        server.run("nft", "delete table netdev lost")
        server.run("ip", "link", "delete", "nowhere")
    assert [(reply.verdict, reply.flight_segments) for reply in replies] == [
        (ProbeVerdict.LIMITED, 10),
        (ProbeVerdict.LIMITED, 10),
        (ProbeVerdict.LIMITED, 1),
    ], replies
    assert [ProbeResult.of(reply).is_vote for reply in replies] == [True, True, False]
    late = replies[2]
    # SYN-ACKs after 1 s and 2 s more; then the first segment's timer starts at 3 s (RFC 6298, section 5.7).
    assert late.handshake_us is not None and 2_900_000 < late.handshake_us < 4_000_000
    assert late.retransmission_us is not None and late.retransmission_us > 2_500_000
