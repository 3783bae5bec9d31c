"""Which client prefixes are better off with a smaller initial window: RFC 6928, section 12, asks operators to watch.

Pure: events and clock come from outside, and routes are set by a function that is passed in.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Annotated

import typer

from core.reach import IPNetwork
from vantage.linux.closed_connections import ClosedConnection


@dataclass(frozen=True, slots=True, kw_only=True)
class FallbackRules:
    """When a prefix falls back, and for how long; the command line has one option for each field."""

    share: Annotated[
        float, typer.Option(min=0, max=1, help="A prefix falls back if more than this share retransmitted.")
    ] = 0.10
    known: Annotated[int, typer.Option(min=1, help="Least number of short connections, to judge a prefix by.")] = 20
    last: Annotated[int, typer.Option(min=1, max=10_000, help="Short connections that count.")] = 50
    """The last ones under the present window."""
    windows: Annotated[
        float, typer.Option(min=0.1, help="Longest connection that counts as short, in initial windows.")
    ] = 3.0
    window: Annotated[int, typer.Option(min=2, max=1000, help="Initial window of this host's routes [segments].")] = 10
    """RFC 6928; `TCP_INIT_CWND`."""
    small_window: Annotated[int, typer.Option(min=1, max=100, help="The smaller one [segments]: RFC 3390's.")] = 3
    """At an MSS of 1460."""
    retry_s: Annotated[
        float, typer.Option("--retry-after", min=0.1, help="When the larger one is tried again [s].")
    ] = 600.0
    prefix4: Annotated[int, typer.Option(min=8, max=32, help="Length of client prefixes, IPv4.")] = 24
    prefix6: Annotated[int, typer.Option(min=16, max=128, help="The same, IPv6.")] = 48
    most: Annotated[int, typer.Option(min=1, help="Most prefixes that are tracked.")] = 100_000
    """The least recently used go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderPrefix:
    """One client prefix: a row of `upshift sender watch -o`."""

    prefix: str
    """Prefix of the clients' addresses."""
    connections: int
    """Connections that closed, all together."""
    sent_again: int
    """Those that sent data again."""
    ce: int
    """Those with CE marks."""
    known: int
    """Short connections that count: the last ones under the present window."""
    known_sent_again: int
    """Those of them that sent data again."""
    window: int
    """The initial window of new connections [segments]."""
    changes: int
    """How often it changed."""
    since_at: float
    """Since when it has this window."""
    left_alone: str | None
    """Why its window is not changed."""
    dry_run: bool = False
    """Nothing was changed (`--dry-run`): the window is the one that it would have."""


@dataclass(slots=True, eq=False)
class _State:
    """What is known of one prefix."""

    since: float
    address: bytes = b""
    connections: int = 0
    sent_again: int = 0
    ce: int = 0
    changes: int = 0
    bits: int = 0
    known: int = 0
    small: bool = False
    left_alone: str | None = None

    def begin(self, now: float) -> None:
        """Forgets connections under another window."""
        self.bits = self.known = 0
        self.since = now


SetWindow = Callable[[IPNetwork, str, int | None], str | None]
"""(prefix, a client in it, window; None: that of the host's routes) -> why it could not be set; None: it was."""


class Fallback:
    """The prefixes and their windows.

    Args:
        set_window: sets a prefix's window.
        say: takes a line per change.
    """

    def __init__(self, rules: FallbackRules, set_window: SetWindow, say: Callable[[str], None]) -> None:
        self.rules = rules
        self._set_window = set_window
        self._say = say
        self._states: OrderedDict[tuple[int, int], _State] = OrderedDict()
        self._small: dict[tuple[int, int], float] = {}
        """Prefixes with the smaller window, in the order of falling back -> when they did."""
        self._shift = {4: 32 - rules.prefix4, 16: 128 - rules.prefix6}
        self._mask = (1 << rules.last) - 1
        self.connections = 0

    def add(self, closed: ClosedConnection, now: float) -> None:
        """Counts a connection, and lets its prefix fall back if it has to. `now` is any clock [s] that only grows."""
        address = closed.address
        key = (len(address), int.from_bytes(address, "big") >> self._shift[len(address)])
        state = self._states.get(key)
        if state is None:
            state = self._states[key] = _State(now)
            if len(self._states) > self.rules.most:
                self._forget_oldest(now)
        else:
            self._states.move_to_end(key)
        self.connections += 1
        again = closed.again_bytes > 0
        state.address = address
        state.connections += 1
        state.sent_again += again
        state.ce += closed.ce > 0
        # In either state a connection is short by the larger window, so that the shares are of the same connections.
        if not 0 < closed.sent_bytes <= self.rules.windows * self.rules.window * closed.mss:
            return
        state.bits = (state.bits << 1 | again) & self._mask
        state.known = min(state.known + 1, self.rules.last)
        if not state.small and state.left_alone is None and state.known >= self.rules.known:
            count = state.bits.bit_count()
            if count > self.rules.share * state.known:
                self._fall_back(key, state, count, now)

    def _fall_back(self, key: tuple[int, int], state: _State, count: int, now: float) -> None:
        prefix, client = self._network(key), str(ipaddress.ip_address(state.address))
        state.left_alone = self._set_window(prefix, client, self.rules.small_window)
        if state.left_alone is not None:
            self._say(f"{prefix} is left alone: {state.left_alone}")
            return
        why = f"{count} of the last {state.known} short connections sent again"
        state.small, state.changes = True, state.changes + 1
        state.begin(now)
        self._small[key] = now
        # Last: who reads it may stop us, and the table has to have it.
        self._say(f"{prefix}: {why}: initial window {self.rules.small_window} (was {self.rules.window})")

    def retry(self, now: float) -> None:
        """Gives the larger window to prefixes whose time is up."""
        for key, since in list(self._small.items()):
            if now < since + self.rules.retry_s:
                return
            state = self._states[key]
            self._try_larger(key, now, f"{state.bits.bit_count()} of the last {state.known} sent again; it is tried")

    def keep(self, routes: Collection[IPNetwork], now: float) -> None:
        """Prefixes whose route is not among these have the larger window again: it goes with the interface, for one."""
        for key in [key for key in self._small if self._network(key) not in routes]:
            self._try_larger(key, now, "somebody else, or the interface when it went down, removed its route")

    def _try_larger(self, key: tuple[int, int], now: float, why: str) -> None:
        state = self._states[key]
        state.small, state.changes = False, state.changes + 1
        state.begin(now)
        self._raise(key, now, why)

    def _raise(self, key: tuple[int, int], now: float, why: str) -> None:
        prefix = self._network(key)
        since = self._small.pop(key)
        self._set_window(prefix, str(prefix.network_address), None)
        self._say(f"{prefix}: initial window {self.rules.window} again after {now - since:.0f} s ({why})")

    def _forget_oldest(self, now: float) -> None:
        key, _ = self._states.popitem(last=False)
        if key in self._small:
            self._raise(key, now, "the prefix is forgotten: there are too many")

    def _network(self, key: tuple[int, int]) -> IPNetwork:
        size, number = key
        number <<= self._shift[size]
        if size == 4:
            return ipaddress.IPv4Network((number, self.rules.prefix4))
        return ipaddress.IPv6Network((number, self.rules.prefix6))

    def small_prefixes(self) -> list[IPNetwork]:
        """Those with the smaller window, in the order of falling back."""
        return [self._network(key) for key in self._small]

    def __len__(self) -> int:
        return len(self._states)

    def rows(self, *, now: float, wall: float) -> Iterator[SenderPrefix]:
        """All prefixes, the least recently used first; `wall` is the Unix time of `now`."""
        for key, state in self._states.items():
            yield SenderPrefix(
                prefix=str(self._network(key)),
                connections=state.connections,
                sent_again=state.sent_again,
                ce=state.ce,
                known=state.known,
                known_sent_again=state.bits.bit_count(),
                window=self.rules.small_window if state.small else self.rules.window,
                changes=state.changes,
                since_at=wall - (now - state.since),
                left_alone=state.left_alone,
            )
