"""`iwprobe` against real kernels and Caddy: windows, verdicts, modes, over IPv4, IPv6 and TLS."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import pytest

from core.errors import PlaceError
from survey.iw.probers import Attachment, prober
from survey.iw.wire import Mode, Note, ProbeReply, ProbeRequest, ProbeVerdict, Scheme
from survey.programs import ProberPool
from tests.lab._iw_world import IwWorld, asked, server_address, server_address6

WINDOWS = (1, 4, 10, 32, 100)
SIZES = (64, 128, 536, 1200)
PORTS = {Scheme.HTTP: 80, Scheme.HTTPS: 443}

pytestmark = [
    pytest.mark.lab,
    pytest.mark.usefixtures("root"),
]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IwWorld]:
    world = IwWorld(tmp_path_factory.mktemp("iw") / "world", WINDOWS)
    yield world
    world.close()


def request(
    window: int, mss: int, *, scheme: Scheme = Scheme.HTTP, path: str = "/big", **changed: object
) -> ProbeRequest:
    fields: dict[str, object] = {"address": server_address(window), **changed}
    return ProbeRequest(  # type: ignore[arg-type]
        port=PORTS[scheme], mss=mss, host="iw.test", scheme=scheme, path=path, user_agent="upshift-tests", **fields
    )


def one(world: IwWorld, request: ProbeRequest, *, arrivals: int = 0) -> ProbeReply:
    return asked(world, [request], arrivals=arrivals)[0]


def all_asked(world: IwWorld, requests: Sequence[ProbeRequest], cells: Sequence[tuple[int, int]]) -> list[ProbeReply]:
    """The replies; where a busy host kept Caddy from writing for longer than a timeout, of a second probe, alone."""
    replies = asked(world, requests)
    for number, ((window, mss), reply) in enumerate(zip(cells, replies, strict=True)):
        assert reply.flight_segments <= window, (window, mss, reply)
        if reply.flight_segments < window:
            replies[number] = one(world, requests[number])
    return replies


@pytest.mark.parametrize("scheme", Scheme)
def test_every_window_is_exact_at_every_mss(world: IwWorld, scheme: Scheme) -> None:
    cells = [(window, mss) for window in WINDOWS for mss in SIZES]
    replies = all_asked(world, [request(window, mss, scheme=scheme) for window, mss in cells], cells)
    late = 0
    for (window, mss), reply in zip(cells, replies, strict=True):
        if reply.verdict == ProbeVerdict.LATE:  # the server's own handshake filled the window to its end
            late += 1
            assert reply.tls_version == 13 and reply.flight_bytes == reply.handshake_bytes, (window, mss, reply)
            continue
        assert (reply.verdict, reply.flight_segments) == (ProbeVerdict.LIMITED, window), (window, mss, reply)
        assert reply.holes == 0 and reply.notes == 0 and reply.syns == reply.requests == 1
        assert reply.largest_bytes == mss or window == 1
        # 200 ms and the round trip (net/ipv4/tcp_timer.c); the host may be busy.
        assert reply.retransmission_us is not None and 190_000 < reply.retransmission_us < 600_000, (window, mss, reply)
    assert late <= (1 if scheme is Scheme.HTTPS else 0)


def test_the_same_over_ipv6(world: IwWorld) -> None:
    cells = [(window, mss) for window in WINDOWS for mss in SIZES]
    replies = all_asked(world, [request(window, mss, address=server_address6(window)) for window, mss in cells], cells)
    for (window, mss), reply in zip(cells, replies, strict=True):
        assert (reply.verdict, reply.flight_segments) == (ProbeVerdict.LIMITED, window), (window, mss, reply)


def test_too_little_data_and_where_it_leads(world: IwWorld) -> None:
    requests = [request(10, 536, scheme=scheme, path=path) for scheme in Scheme for path in ("/small", "/away")]
    small, away, small_tls, away_tls = asked(world, requests)
    for reply in (small, small_tls):
        assert (reply.verdict, reply.http_status, reply.content_length) == (ProbeVerdict.LOWER_BOUND, 200, 100)
    for reply in (away, away_tls):
        assert (reply.verdict, reply.http_status, reply.location) == (
            ProbeVerdict.LOWER_BOUND,
            302,
            "http://iw.test/here",
        )
        assert reply.set_cookie == "a=1; b=2"


def test_one_request_four_times_has_more_data(world: IwWorld) -> None:
    single = one(world, request(32, 128, path="/small"))
    fourfold = one(world, request(32, 128, path="/small", pipeline=4))
    assert {single.verdict, fourfold.verdict} == {ProbeVerdict.LOWER_BOUND}
    assert fourfold.flight_bytes == 4 * single.flight_bytes and fourfold.requests == 1


@pytest.mark.parametrize("scheme", Scheme)
def test_a_download_with_an_ack_every_k_segments(world: IwWorld, scheme: Scheme) -> None:
    """Those behind a hole and those that come again have one each, at once: a host that reorders packets adds some."""
    for every in (2, 10):
        for _ in range(20):
            reply = one(world, request(10, 1200, scheme=scheme, mode=Mode.FETCH, ack_every=every, most_bytes=2_000_000))
            assert (reply.verdict, reply.http_status, reply.content_length) == (ProbeVerdict.COMPLETE, 200, 1_000_000)
            assert reply.flight_bytes > 1_000_000 and reply.holes == 0
            more = reply.packets_out - reply.flight_segments / every
            assert more >= 0, reply
            if more <= 10:
                break
        else:
            pytest.fail(f"more acknowledgements in each of 20 downloads: {reply}")


@pytest.mark.parametrize("scheme", Scheme)
def test_a_second_request_after_an_idle_time(world: IwWorld, scheme: Scheme) -> None:
    """After an idle time of many timeouts it has its initial window again (RFC 9293; tcp_slow_start_after_idle).

    Linux halves the window once per timeout, and a timeout is long where a busy host made acknowledgements late.
    """
    at_once, later = asked(
        world,
        [request(10, 1200, scheme=scheme, mode=Mode.AGAIN, idle_ms=idle, most_bytes=4_000_000) for idle in (0, 5_000)],
    )
    for reply in (at_once, later):
        assert reply.http_status == 200
    assert (later.verdict, later.notes & Note.TLS_FAILED) == (ProbeVerdict.LIMITED, 0)
    assert later.flight_segments == 10 < at_once.flight_segments


def test_a_delayed_ack_makes_the_server_believe_in_a_longer_round_trip(world: IwWorld) -> None:
    plain, delayed = asked(world, [request(10, 1200, ack_delay_ms=delay) for delay in (0, 100)], arrivals=12)
    for reply in (plain, delayed):
        assert (reply.verdict, reply.flight_segments, len(reply.arrivals)) == (ProbeVerdict.LIMITED, 10, 10)
        assert [arrival.at_us for arrival in reply.arrivals] == sorted(arrival.at_us for arrival in reply.arrivals)
        assert (reply.arrivals[0].at_us, reply.arrivals[-1].end) == (0, reply.flight_bytes)
        assert reply.span_us == reply.arrivals[-1].at_us
    assert plain.retransmission_us is not None and delayed.retransmission_us is not None
    assert delayed.retransmission_us - plain.retransmission_us > 60_000


def test_who_does_not_answer_and_who_may_not_be_asked(world: IwWorld) -> None:
    requests = [
        request(10, 64, address="198.18.77.9", limit_ms=500),
        request(10, 64, address="198.20.0.1"),
        ProbeRequest(address=server_address(10), port=81, mss=64, host="iw.test", user_agent=""),
        request(10, 64, scheme=Scheme.HTTP, path="/x" * 900),  # does not fit one segment of 1460 bytes
    ]
    silent, outside, closed, long = asked(world, requests)
    assert (silent.verdict, silent.rtt_us, silent.packets_in) == (ProbeVerdict.CONNECT_TIMEOUT, None, 0)
    assert (outside.verdict, outside.packets_out) == (ProbeVerdict.ADDRESS_REFUSED, 0)
    assert closed.verdict == ProbeVerdict.CONNECTION_REFUSED
    assert long.packets_out == 1 + 1 + 2 + 1 + 1, "SYN, ACK, a request of two segments, ACK, RST"


def test_no_more_packets_than_the_rate_and_no_reset_by_the_kernel(world: IwWorld) -> None:
    async def work() -> tuple[list[ProbeReply], float]:
        program = prober(world.attachment, packet_rate=100)
        async with ProberPool(program, world.client.start) as probers:
            loop = asyncio.get_running_loop()
            began = loop.time()
            replies = await asyncio.gather(*(probers.ask(request(4, 536)) for _ in range(60)))
            return list(replies), loop.time() - began

    resets = _resets(world)
    replies, took = asyncio.run(work())
    # A busy host sends an ACK later than the rate foresees, and what it brings then counts as too late for a window.
    verdicts = {reply.verdict for reply in replies}
    assert {ProbeVerdict.LIMITED} <= verdicts <= {ProbeVerdict.LIMITED, ProbeVerdict.LOWER_BOUND}
    packets = sum(reply.packets_out for reply in replies)
    assert 60 * 5 <= packets <= 60 * 6  # SYN, ACK, request, ACK, RST; on a busy host a flight may have a pause
    assert packets / took <= 101
    assert _resets(world) == resets


def _resets(world: IwWorld) -> str:
    """RSTs that the prober's own kernel has sent."""
    lines = world.client.run("nstat", "-asz", "TcpOutRsts").splitlines()
    return lines[-1]


def test_a_host_that_cannot_is_told_so(world: IwWorld) -> None:
    for attachment, said in (
        (Attachment(device="nothing0", addresses=world.attachment.addresses), "no network device nothing0"),
        (Attachment(device="veth0", addresses=world.attachment.addresses), "needs --next-hop"),
    ):

        async def start(attachment: Attachment = attachment) -> None:
            async with ProberPool(prober(attachment), world.client.start):
                pass

        with pytest.raises(PlaceError, match=said):
            asyncio.run(start())
    world.client.run("ethtool", "-K", "veth0", "gro", "on")
    try:
        with pytest.raises(PlaceError, match="merges packets"):
            asked(world, [])
    finally:
        world.client.run("ethtool", "-K", "veth0", "gro", "off")


def test_a_request_that_is_not_valid_ends_the_program(world: IwWorld) -> None:
    program = prober(world.attachment)
    child = world.client.start(program.argv)
    try:
        assert b"null" in child.stdout.readline()
        child.stdin.write(b"\xff" * 48)
        child.stdin.flush()
        assert child.stdout.read() == b""
    finally:
        child.stop()
