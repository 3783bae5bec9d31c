"""What the HTTP client remembers of hosts that a long crawl has left behind."""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import suppress
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.web._newclient import HTTP11ClientProtocol, Request
from twisted.web.client import HTTPConnectionPool
from twisted.web.http_headers import Headers

from crawler import policy, spider


class Connection:
    """An idle connection."""

    state = "QUIESCENT"

    def __init__(self) -> None:
        self.closed = False
        self.transport = self

    def loseConnection(self) -> None:  # noqa: N802 - Twisted's name
        self.closed = True


def test_hosts_without_connections_are_forgotten_and_others_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spider, "HOSTS_REMEMBERED", 10)
    clock = Clock()
    pool: Any = HTTPConnectionPool(clock)
    pool.cachedConnectionTimeout = spider.IDLE_S
    for n in range(20):
        pool._putConnection(("http", f"{n}.example", 80), Connection())
    clock.advance(spider.IDLE_S + 1)
    kept = Connection()
    pool._putConnection(("http", "kept.example", 80), kept)
    assert len(pool._connections) == 21, "Twisted forgets hosts by itself now: forget_idle_hosts can go"
    spider.forget_idle_hosts(pool)
    assert pool._connections == {("http", "kept.example", 80): [kept]}
    clock.advance(spider.IDLE_S + 1)
    assert kept.closed


def test_an_address_keeps_its_rate_where_its_gets_wait_for_those_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "SIZE_GETS", 1)
    begun: list[float] = []

    async def work() -> None:
        pace = policy.Throttle(20.0, 10)

        async def one() -> None:
            async with pace.turn("198.18.0.9", size_get=True):
                begun.append(time.monotonic())

        async with pace.turn("198.18.0.8", size_get=True):
            waiting = [asyncio.create_task(one()) for _ in range(5)]
            await asyncio.sleep(0.3)
            assert not begun
        await asyncio.gather(*waiting)

    asyncio.run(work())
    assert len(begun) == 5
    assert all(later - earlier >= 0.03 for earlier, later in pairwise(begun)), begun


def test_a_server_cannot_send_much_more_than_is_read() -> None:
    """Its client reads 1 MB, as of a download that is stopped early, and then is too busy to read or to close."""
    listening = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listening.getsockname())
    server, _ = listening.accept()
    with listening, client, server:
        factory: Any = spider.with_small_window(Factory)()
        factory.protocol = Protocol
        factory.buildProtocol(None).makeConnection(SimpleNamespace(socket=client))
        server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
        server.setblocking(False)
        sent = received = 0
        while received < 1 << 20:
            with suppress(BlockingIOError):
                while True:
                    sent += server.send(bytes(1 << 16))
            received += len(client.recv(1 << 20))
        idle = 0
        while idle < 20 and sent < 50 << 20:
            try:
                sent, idle = sent + server.send(bytes(1 << 16)), 0
            except BlockingIOError:
                idle += 1
                time.sleep(0.01)
    assert sent - received < 1 << 20, "without a limit it is 2.9 MB"


class Wire(StringTransport):
    """A transport whose socket takes each option."""

    socket = SimpleNamespace(setsockopt=lambda *_: None)


def test_a_header_without_end_ends_the_connection_and_many_short_ones_do_not() -> None:
    factory: Any = spider.with_small_window(Factory)()
    factory.protocol = HTTP11ClientProtocol
    client, wire = factory.buildProtocol(None), Wire()
    client.makeConnection(wire)
    failures: list[Any] = []

    def ask() -> None:
        request = Request(b"GET", b"/", Headers({b"host": [b"x"]}), None, persistent=True)
        client.request(request).addErrback(failures.append)

    empty = b"HTTP/1.1 204 No Content\r\n" + b"a: b\r\n" * 1_000 + b"\r\n"
    for _ in range(100):  # of one connection
        ask()
        client.dataReceived(empty)
    assert client.state == "QUIESCENT" and not wire.disconnected and not failures
    ask()
    client.dataReceived(b"HTTP/1.1 200 OK\r\nContent-Length: 900000\r\n\r\n")
    for _ in range(9):
        client.dataReceived(bytes(100_000))
    assert client.state == "QUIESCENT" and not wire.disconnected and not failures
    ask()
    sent = len(b"HTTP/1.1 200 OK\r\n")
    client.dataReceived(b"HTTP/1.1 200 OK\r\n")
    while not wire.disconnected and sent < 1 << 20:
        client.dataReceived(b"a: b\r\n" * 1_000)
        sent += 6_000
    assert spider.MOST_HEADER_BYTES <= sent < 300_000
    scrapys = spider.DownloadFailedError("x")
    scrapys.__cause__ = failures[0].value
    assert spider._cause(scrapys).cause == "protocol_error"
