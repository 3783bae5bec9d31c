"""`iwprobe` and servers that reset, are silent, slow, late, do not speak TLS, or have too little to say."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from survey.iw.wire import Note, Reply, Request, Scheme, Verdict
from tests.lab import _iw_servers as servers
from tests.lab._iw_world import IwWorld, asked, server_address

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("root")]

PROGRAM = Path(servers.__file__)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IwWorld]:
    world = IwWorld(tmp_path_factory.mktemp("iw") / "world", (10, 100))
    pem, key = world.folder / "cert.pem", world.folder / "key.pem"
    with subprocess.Popen(
        [*world.server.enter, sys.executable, str(PROGRAM), str(pem), str(key)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as program:
        assert program.stdout is not None and program.stdout.readline() == b"ready\n"
        yield world
        program.kill()
    world.close()


def request(port: int, *, window: int = 10, mss: int = 536, limit_ms: int = 15_000, path: str = "/") -> Request:
    scheme = Scheme.HTTPS if port in (servers.THINKS, servers.TLS_1_2, servers.NAGLE, servers.NOT_TLS) else Scheme.HTTP
    return Request(
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
    replies = asked(world, [request(port, limit_ms=3_000) for port in ports])
    seen: dict[int, Reply] = dict(zip(ports, replies, strict=True))
    assert [reply.verdict for reply in replies] == [
        Verdict.RESET,
        Verdict.NO_DATA,
        Verdict.NO_DATA,
        Verdict.LOWER_BOUND,
        Verdict.LATE,
        Verdict.LIMITED,
    ], seen
    assert seen[servers.SILENT].total_us >= 3_000_000 and seen[servers.SILENT].requests == 1, "it was acknowledged"
    assert seen[servers.NOT_TLS].notes & Note.TLS_FAILED and seen[servers.NOT_TLS].flight_segments == 10


def test_tls_1_2_takes_one_round_more(world: IwWorld) -> None:
    reply, held_back = asked(world, [request(port, mss=1200) for port in (servers.TLS_1_2, servers.NAGLE)])
    assert (held_back.verdict, held_back.tls_version) == (Verdict.LATE, 12)
    assert (reply.verdict, reply.flight_segments, reply.tls_version) == (Verdict.LIMITED, 10, 12)
    assert 0 < reply.handshake_bytes < reply.flight_bytes


def test_a_window_less_one_byte_a_window_and_one_byte_more(world: IwWorld) -> None:
    sizes = (5_359, 5_360, 5_361)
    replies = asked(world, [request(servers.SIZED, path=f"/{size}") for size in sizes])
    assert [reply.verdict for reply in replies] == [Verdict.LOWER_BOUND, Verdict.LOWER_BOUND, Verdict.LIMITED]
    assert [reply.flight_segments for reply in replies] == [10, 10, 10]


def test_a_server_without_window_scaling(world: IwWorld) -> None:
    world.server.run("sysctl", "-qw", "net.ipv4.tcp_window_scaling=0")
    try:
        bound, limited = asked(world, [request(servers.NOT_TLS, window=100, mss=mss) for mss in (1200, 536)])
    finally:
        world.server.run("sysctl", "-qw", "net.ipv4.tcp_window_scaling=1")
    assert (bound.verdict, bound.server_scale) == (Verdict.WINDOW_BOUND, None)
    assert 65_535 - 1200 < bound.flight_bytes <= 65_535
    assert (limited.verdict, limited.flight_segments) == (Verdict.LIMITED, 100)
