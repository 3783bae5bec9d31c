"""What the HTTP client remembers of hosts that a long crawl has left behind."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.task import Clock
from twisted.web.client import HTTPConnectionPool

from crawler import http


class Connection:
    """An idle connection."""

    state = "QUIESCENT"

    def __init__(self) -> None:
        self.closed = False
        self.transport = self

    def loseConnection(self) -> None:  # noqa: N802 - Twisted's name
        self.closed = True


def test_hosts_without_connections_are_forgotten_and_others_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "HOSTS_REMEMBERED", 10)
    clock = Clock()
    pool: Any = HTTPConnectionPool(clock)
    pool.cachedConnectionTimeout = http.IDLE_S
    for n in range(20):
        pool._putConnection(("http", f"{n}.example", 80), Connection())
    clock.advance(http.IDLE_S + 1)
    kept = Connection()
    pool._putConnection(("http", "kept.example", 80), kept)
    assert len(pool._connections) == 21, "Twisted forgets hosts by itself now: forget_idle_hosts can go"
    http.forget_idle_hosts(pool)
    assert pool._connections == {("http", "kept.example", 80): [kept]}
    clock.advance(http.IDLE_S + 1)
    assert kept.closed
