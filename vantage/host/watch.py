"""Watches a path of this host during one measurement run. Packets on real Internet paths cannot be counted."""

from __future__ import annotations

import ipaddress
import json
import time
from collections.abc import Callable

from core.domain import Disturbance, VoidReason
from core.system.place import Suitability
from core.system.process import Completed

SETTLE_S = 2.0
"""Longest wait for the end of connections. Nearly every close is over after two round trips; a server that never
answers our FIN would keep the socket for a minute (tcp(7), tcp_fin_timeout)."""

_POLL_S = 0.02
_OPEN_STATES = ("established", "syn-sent", "fin-wait-1", "fin-wait-2", "close-wait", "last-ack", "closing")


class HostWatch:
    """Waits until no TCP connection to the server is open, and counts packets that this host dropped.

    Args:
        run: runs a program in the place.
        server_ip: the server of this measurement run.
        inner: the campaign's own interface, whose drop counter counts only our packets; None for the host's
            uplink, which also drops unrelated packets.
    """

    def __init__(self, run: Callable[..., Completed], server_ip: str, *, inner: str | None) -> None:
        self._run = run
        self._server = ipaddress.ip_address(server_ip)
        self._inner = inner
        self._dropped = self._read_dropped()

    def settle(self) -> None:
        """Returns when every TCP connection to the server is closed (TIME-WAIT counts as closed), or after 2 s.

        This polls the kernel (ss(8), sock_diag(7)) instead of sleeping for a fixed time. QUIC sockets are closed
        with their client, and a last datagram from the server may still arrive.
        """
        states = [word for state in _OPEN_STATES for word in ("state", state)]
        address = f"[{self._server}]" if self._server.version == 6 else str(self._server)
        deadline = time.monotonic() + SETTLE_S
        while time.monotonic() < deadline:
            done = self._run(("ss", "-H", "-t", "-n", *states, "dst", address))
            if done.returncode != 0 or not done.stdout.strip():
                return
            time.sleep(_POLL_S)

    def finish(self) -> Suitability:
        """Disturbed where this host itself lost packets on their way into the namespace.

        The kernel drops them when the queue between interface and protocol is full (net.core.netdev_max_backlog) and
        counts them for the interface (net/core/dev.c, enqueue_to_backlog): a busy host, not a lossy path.
        """
        dropped = self._read_dropped() - self._dropped
        disturbed = None
        if dropped > 0:
            detail = f"this host dropped {dropped} packets between its interface and the campaign's namespace"
            disturbed = Disturbance(reason=VoidReason.HOST_DROPPED, detail=detail)
        return Suitability(disturbed=disturbed, lateness_p99_ms=None, flows={})

    def _read_dropped(self) -> int:
        if self._inner is None:
            return 0
        done = self._run(("ip", "-json", "-s", "link", "show", "dev", self._inner))
        try:
            return int(json.loads(done.stdout)[0]["stats64"]["rx"]["dropped"])
        except (ValueError, LookupError):
            return 0
