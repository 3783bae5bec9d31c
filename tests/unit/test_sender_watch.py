"""When client prefixes fall back to a smaller initial window, and what a kernel's message says."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import socket
import struct
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from core.errors import PlaceError
from core.files import store
from core.reach import IPNetwork
from core.system.process import Completed
from downloader.control import page_server
from tests.cells import examples
from upshift.commands import sender
from vantage.host import sender_watch
from vantage.host.fallback import Fallback, FallbackRules, SenderPrefix
from vantage.linux import closed_connections
from vantage.linux.closed_connections import ClosedConnection, ClosedConnections, parse

MSS = 1_448


class World:
    """Routes that are set, what was said, and the windows in the table at that time."""

    def __init__(
        self, rules: FallbackRules | None = None, why_not: Callable[[IPNetwork], str | None] = lambda _: None
    ) -> None:
        self.routes: dict[str, int] = {}
        self.said: list[str] = []
        self.windows: list[list[int]] = []
        self.asked = 0

        def say(line: str) -> None:
            self.said.append(line)
            self.windows.append([row.window for row in self.fallback.rows(now=0.0, wall=0.0)])

        def set_window(prefix: IPNetwork, client: str, window: int | None) -> str | None:
            assert ipaddress.ip_address(client) in prefix
            self.asked += 1
            if window is None:
                del self.routes[str(prefix)]
                return None
            if (why := why_not(prefix)) is None:
                self.routes[str(prefix)] = window
            return why

        self.fallback = Fallback(rules or FallbackRules(), set_window, say)

    def close(
        self, address: str, *, again: bool = False, segments: float = 5, now: float = 0.0, count: int = 1
    ) -> None:
        packed = ipaddress.ip_address(address).packed
        for _ in range(count):
            sent = round(segments * MSS)
            self.fallback.add(ClosedConnection(packed, MSS, 0, sent, MSS if again else 0), now)


def test_more_than_the_share_of_enough_short_connections() -> None:
    world = World()
    world.close("198.18.5.7", again=True, count=19)
    assert not world.routes
    world.close("198.18.5.99", again=True)
    assert world.routes == {"198.18.5.0/24": 3}
    assert world.said == ["198.18.5.0/24: 20 of the last 20 short connections sent again: initial window 3 (was 10)"]


@pytest.mark.parametrize(("again", "clean", "falls"), [(2, 18, False), (3, 17, True), (5, 45, False), (6, 44, True)])
def test_the_share_is_exceeded_not_met(again: int, clean: int, falls: bool) -> None:
    world = World(FallbackRules(known=again + clean))
    world.close("198.18.5.7", again=True, count=again)
    world.close("198.18.5.7", count=clean)
    assert bool(world.routes) is falls


def test_only_the_last_short_connections_count() -> None:
    world = World()
    world.close("198.18.5.7", again=True, segments=30.1, count=100)  # long ones
    world.close("198.18.5.7", again=True, segments=0, count=100)  # that sent nothing
    world.close("198.18.5.7", count=19)
    assert not world.routes
    world = World(FallbackRules(known=50))
    world.close("198.18.5.7", again=True, count=5)
    world.close("198.18.5.7", count=45)
    world.close("198.18.5.7", again=True, count=5)  # the first five are forgotten by then
    assert not world.routes
    world.close("198.18.5.7", again=True)
    assert world.routes


def test_the_larger_window_is_tried_again() -> None:
    world = World()
    world.close("fd00:198:18:5::7", again=True, count=20, now=100.0)
    assert world.routes == {"fd00:198:18::/48": 3}
    world.close("fd00:198:18:6::7", again=True, count=60, now=300.0)  # it cannot fall any further
    world.fallback.retry(699.9)
    assert world.routes and len(world.said) == 1
    world.fallback.retry(700.0)
    assert not world.routes
    assert world.said[1] == (
        "fd00:198:18::/48: initial window 10 again after 600 s (50 of the last 50 sent again; it is tried)"
    )
    world.close("fd00:198:18:5::7", count=19, now=701.0)
    world.close("fd00:198:18:5::7", again=True, count=2, now=701.0)
    assert not world.routes  # 2 of 21: what was before does not count
    world.close("fd00:198:18:5::7", again=True, count=1, now=702.0)
    [row] = world.fallback.rows(now=702.0, wall=1_700_000_002.0)
    assert (row.window, row.changes, row.since_at, row.connections) == (3, 3, 1_700_000_002.0, 102)


def test_a_route_that_is_gone_leaves_the_larger_window() -> None:
    """As where the interface went down and up again."""
    world = World()
    for third in (5, 6):
        world.close(f"198.18.{third}.7", again=True, count=20, now=100.0)
    world.fallback.keep({ipaddress.ip_network("198.18.5.0/24")}, 101.0)
    assert [row.window for row in world.fallback.rows(now=101.0, wall=0.0)] == [3, 10]
    assert world.said[-1].startswith(
        "198.18.6.0/24: initial window 10 again after 1 s (somebody else, or the interface"
    )
    assert world.windows == [[3], [3, 3], [3, 10]], "who reads a line may stop us: the table has to be written first"
    world.close("198.18.6.7", again=True, count=20, now=102.0)
    assert world.routes == {"198.18.5.0/24": 3, "198.18.6.0/24": 3}


def test_what_cannot_be_changed_is_said_once() -> None:
    world = World(why_not=lambda prefix: "it has a route that somebody else set" if "18.5" in str(prefix) else None)
    world.close("198.18.5.7", again=True, count=500)
    world.close("198.18.6.7", again=True, count=20)
    assert world.said[0] == "198.18.5.0/24 is left alone: it has a route that somebody else set"
    assert len(world.said) == 2 and world.routes == {"198.18.6.0/24": 3} and world.asked == 2


@pytest.mark.parametrize("other", ["eth10", "eth1.100"])
def test_only_routes_over_the_interface_itself_are_copied(other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # The recorded step removes those of the interface that was named: a route over another one would stay.
    def run(argv: tuple[str, ...]) -> Completed:
        shown = f"192.0.0.0/16 via 198.18.0.1 dev {other} \n" if "get" in argv else ""
        return Completed(argv=argv, returncode=0, stdout=shown, stderr="")

    monkeypatch.setattr(sender_watch, "run", run)
    routes = sender_watch.PrefixRoutes("eth1", None)
    why = routes.set_window(ipaddress.ip_network("192.0.2.0/24"), "192.0.2.7", 3)
    assert why == "there is no route to it over eth1"


def test_memory_is_bounded_and_no_route_is_left() -> None:
    world = World(FallbackRules(most=1_000))
    world.close("198.18.5.7", again=True, count=20)
    for number in range(999):
        world.close(str(ipaddress.IPv4Address("198.19.0.0") + number * 256), now=1.0)
    assert len(world.fallback) == 1_000 and world.routes
    world.close("198.18.5.7", now=2.0)  # used again, so another one goes
    world.close("198.17.0.1", now=2.0)
    assert len(world.fallback) == 1_000 and world.routes
    for number in range(1_001):
        world.close(str(ipaddress.IPv4Address("10.0.0.0") + number * 256), now=3.0)
    assert len(world.fallback) == 1_000 and not world.routes
    assert "the prefix is forgotten" in world.said[-1]


@settings(max_examples=examples(12))
@given(
    st.lists(st.tuples(st.integers(0, 6), st.booleans(), st.floats(0, 40), st.floats(0, 5)), max_size=300),
    st.integers(1, 5),
)
def test_routes_are_exactly_the_small_windows(events: list[tuple[int, bool, float, float]], most: int) -> None:
    rules = FallbackRules(known=3, last=5, retry_s=10, most=most)
    world, now = World(rules), 0.0
    for host, again, segments, wait in events:
        now += wait
        world.close(f"198.18.{host}.1", again=again, segments=segments, now=now)
        world.fallback.retry(now)
        assert set(world.routes) == {str(prefix) for prefix in world.fallback.small_prefixes()}
        rows = list(world.fallback.rows(now=now, wall=now))
        assert {row.prefix for row in rows if row.window == 3} == set(world.routes)
        assert len(rows) <= most and all(row.known_sent_again <= row.known <= 5 for row in rows)


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize("as_json", [True, False])
def test_what_was_only_tried_says_so_everywhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, dry_run: bool, as_json: bool
) -> None:
    """The windows of a dry run are those that prefixes would have."""
    pages: list[Callable[[], str | None]] = []

    def watch(device: str, rules: FallbackRules, *, say: Any, each: Any, **_: Any) -> None:
        fallback = Fallback(rules, lambda *_: None, say)
        for _number in range(20):
            fallback.add(ClosedConnection(ipaddress.ip_address("198.18.5.7").packed, MSS, 0, 5 * MSS, MSS), 0.0)
        each(fallback, 0)

    def serve(_: object, page: Callable[[], str | None]) -> AbstractContextManager[None]:
        pages.append(page)
        return nullcontext()

    monkeypatch.setattr(sender_watch, "watch", watch)
    monkeypatch.setattr(page_server, "serve", serve)
    out = tmp_path / "prefixes.parquet"
    argv = ["watch", "--prefix-routes", "eth0", "--metrics", "127.0.0.1:9100", "-o", str(out)]
    argv += ["--dry-run"] * dry_run + ["--json"] * as_json
    done = CliRunner().invoke(sender.app, argv)
    assert done.exit_code == 0, done.output
    [row] = store.read_rows(out, "sender_prefixes", SenderPrefix)
    assert (row.window, row.dry_run) == (3, dry_run)
    assert f"\nupshift_sender_dry_run {float(dry_run)}\n" in (pages[0]() or "")
    if as_json:
        line, last = map(json.loads, done.output.splitlines())
        assert (line["dry_run"], last["prefixes"][0]["dry_run"]) == (dry_run, dry_run)
    else:
        assert done.output.count("(dry run)") == 2 * dry_run


def message(
    family: int, address: bytes, *, port: int = 5_000, info: int = 280, sent: int = 9_000, again: int = 0
) -> bytes:
    """As the kernel sends it (net/ipv4/inet_diag.c, `inet_diag_handler_get_info`)."""
    diag = struct.pack(">BBBBHH16s16s", family, 7, 0, 0, 443, port, bytes(16), address.ljust(16, b"\0"))
    tcp = bytearray(info)
    for at, kind, value in ((16, "I", MSS), (136, "I", 12), (196, "I", 2), (200, "Q", sent), (208, "Q", again)):
        if at + 8 <= info:
            struct.pack_into(f"={kind}", tcp, at, value)
    attributes = struct.pack("=HHB3x", 5, 10, 6) + struct.pack("=HH", 4 + info, 2) + bytes(tcp)
    body = diag.ljust(72, b"\0") + attributes
    return struct.pack("=IHHII", 16 + len(body), 20, 0, 0, 0) + body


def test_messages_of_the_kernel() -> None:
    inside = ipaddress.ip_address("198.18.5.7").packed
    expected = ClosedConnection(inside, MSS, 2, 7_500, 1_500)
    assert parse(message(socket.AF_INET, inside, again=1_500)) == expected
    assert parse(message(socket.AF_INET6, bytes(10) + b"\xff\xff" + inside, again=1_500)) == expected
    six = ipaddress.ip_address("fd00:198:18::7").packed
    assert parse(message(socket.AF_INET6, six)) == ClosedConnection(six, MSS, 2, 9_000, 0)
    assert parse(message(socket.AF_INET, inside, port=0)) is None
    for loopback in (b"\x7f\0\0\1", bytes(10) + b"\xff\xff\x7f\0\0\1", bytes(15) + b"\1"):
        assert parse(message(socket.AF_INET if len(loopback) == 4 else socket.AF_INET6, loopback)) is None
    with pytest.raises(PlaceError, match=r"does not count the bytes sent again; use Linux 4\.19"):
        parse(message(socket.AF_INET, inside, info=192))


def test_events_that_come_while_a_full_buffer_is_read_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it is empty the kernel drops them without saying so again."""
    kind, group = 2, 1  # NETLINK_USERSOCK, where anybody may send
    events = object.__new__(ClosedConnections)
    with (
        socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, kind) as receiver,
        socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, kind) as sender,
    ):
        receiver.bind((0, group))
        receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        receiver.setblocking(False)
        events.lost, events._socket = 0, receiver
        coming = iter([9])

        def send(count: int) -> None:
            for _ in range(count):
                with contextlib.suppress(OSError):  # nobody had room for it
                    sender.sendto(bytes(64), (0, group))

        def arriving(_: bytes) -> ClosedConnection:
            send(next(coming, 0))
            return ClosedConnection(bytes(4), MSS, 0, 0, 0)

        monkeypatch.setattr(closed_connections, "parse", arriving)
        send(30)
        read = 0
        while got := len(events.read()):
            read += got
        assert 0 < read < 30 and read + events.lost == 39
