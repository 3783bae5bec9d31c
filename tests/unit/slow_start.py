"""Slow start without loss, packet by packet: a model of Linux's sender and receiver for the pages of `byte-counting`.

`python -m tests.unit.slow_start` prints `upshift/studies/study-byte-counting.csv`. The rules, on kernel 6.18:

- sender: the window grows by what an ACK acknowledges (`kernel`), by 1 (`acks`) or by up to 2 (`two`), where it was the
  limit or is below twice the most that was in flight (net/ipv4/tcp_output.c, tcp_cwnd_validate);
- receiver (net/ipv4/tcp_input.c): an ACK for each of the first segments (16, and one for each step of its window, which
  is fixed as soon as the first have been read), until it has answered data by a request; from then on one for every
  second full segment, with the next request, or after 40 ms. While it has not answered, it acknowledges the end of an
  answer (PSH) when the program has read it; then, every second end.

Where several connections end an answer within a moment, that decides which of them takes the next object, and a page
takes whole round trips more or less. So does a single segment of the window where the last ones just fit; an ACK of
three segments, from a receiver that was late, costs `acks` and `two` one. The table has only cells in which neither
matters.
"""

from __future__ import annotations

import csv
import heapq
import itertools
import math
import random
import statistics
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

MSS, HEADERS = 1448, 52
RTT_MS, BITS_PER_MS = 100.0, 200e3
DELAYED_MS, QUICK_ACKS = 40.0, 18
MOMENT_MS, LATE_ACKS, TRIES = 0.3, 0.005, 30
"""How much later than another a request may be, by chance, the share of ACKs that are late, and how often a page is
tried."""
HTML = 20_000
OBJECTS = tuple(1000 * size for size in (2, 4, 6, 8, 10, 12, 16, 20, 24, 30, 38, 46, 56, 68, 80))
"""The page of `page-windows` and `byte-counting` [bytes]."""
GROWTH: dict[str, Callable[[int], int]] = {
    "kernel": lambda acked: acked,
    "acks": lambda _: 1,
    "two": lambda n: min(n, 2),
}


class Clock:
    """What happens when, and the link that all connections share."""

    def __init__(self, seed: int) -> None:
        self.now = self.free = 0.0
        self.chance, self.chance_of_acks = random.Random(seed), random.Random(f"ACKs {seed}")
        self._waiting: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = itertools.count()

    def after(self, ms: float, what: Callable[..., None], *arguments: Any) -> None:
        heapq.heappush(self._waiting, (self.now + ms, next(self._number), what, arguments))

    def deliver(self, size: int, what: Callable[..., None], *arguments: Any) -> None:
        """Over the link, one packet after the other."""
        self.free = max(self.free, self.now) + (size + HEADERS) * 8 / BITS_PER_MS
        self.after(self.free - self.now + RTT_MS / 2, what, *arguments)

    def run(self) -> None:
        while self._waiting:
            self.now, _, what, arguments = heapq.heappop(self._waiting)
            what(*arguments)


class ModelConnection:
    """Both ends of one; counts in segments."""

    def __init__(
        self,
        clock: Clock,
        window: int,
        grow: str,
        take: Callable[[], list[int]],
        ended: Callable[[ModelConnection], None],
    ) -> None:
        self._clock, self.window, self._growth, self._take, self._ended = clock, window, GROWTH[grow], take, ended
        self._late_acks = 0 if grow == "kernel" else LATE_ACKS
        self._queue = deque[tuple[int, bool]]()
        self._sent = self._acked = self._most = self._seen_until = 0
        self._limited = False
        self._left = self._received = self._open_bytes = self._timer = self._pushed = 0
        self._quick, self._answers = QUICK_ACKS, False
        clock.after(RTT_MS, self.ask)

    def ask(self) -> None:
        """The client asks for what is next; its request acknowledges all that has come."""
        if sizes := self._take():
            self._left, self._answers = sum(sizes), self._received > 0
            self._nothing_open()
            late_ms = self._clock.chance.uniform(0, MOMENT_MS)
            self._clock.after(RTT_MS / 2 + late_ms, self._asked, sizes, self._received)

    def _asked(self, sizes: list[int], acked: int) -> None:
        for size in sizes:
            last = math.ceil(size / MSS) - 1
            self._queue += [(MSS, False)] * last + [(size - last * MSS, True)]
        self._acknowledged(acked)

    def _acknowledged(self, acked: int) -> None:
        if acked > self._acked:
            if self._limited or self.window < 2 * self._most:
                late = self._clock.chance_of_acks.random() < self._late_acks
                self.window += self._growth(acked - self._acked) - late
            self._acked = acked
        sends = False
        while self._queue and self._sent - self._acked < self.window:
            size, ends = self._queue.popleft()
            self._sent, sends = self._sent + 1, True
            self._clock.deliver(size, self._arrived, size, ends)
        flight = self._sent - self._acked
        limited = flight >= self.window
        starts = self._acked >= self._seen_until or (not self._limited and flight > self._most)
        if limited or (sends and starts):
            self._limited, self._most, self._seen_until = limited, flight, self._sent

    def _arrived(self, size: int, ends: bool) -> None:
        self._received, self._open_bytes, self._left = self._received + 1, self._open_bytes + size, self._left - size
        self._pushed += ends
        at_once = self._open_bytes > MSS or (self._quick > 0 and not self._answers)
        if at_once or self._pushed > 1 or (self._pushed and not self._answers):
            self._acknowledge()
        else:
            self._timer += 1
            self._clock.after(DELAYED_MS, self._delayed, self._timer)
        if not self._left:
            self._ended(self)

    def _delayed(self, timer: int) -> None:
        if timer == self._timer and self._open_bytes:
            self._answers = False
            self._acknowledge()

    def _acknowledge(self) -> None:
        self._nothing_open()
        self._quick = max(self._quick - 1, 0)
        self._clock.after(RTT_MS / 2, self._acknowledged, self._received)

    def _nothing_open(self) -> None:
        self._open_bytes = self._pushed = 0
        self._timer += 1


def page_rounds(iw: int, connections: int, grow: str, *, pipelined: bool, seed: int = 0) -> float:
    """Round trips of the page, less the time of all packets at the rate: the HTML, then the objects."""
    clock, waiting, ends = Clock(seed), deque(OBJECTS), [0.0]

    def once(sizes: Iterable[int]) -> Callable[[], list[int]]:
        left = [list(sizes)]
        return lambda: left.pop() if left else []

    def ended(connection: ModelConnection) -> None:
        ends.append(clock.now)
        connection.ask()

    def html_ended(_: ModelConnection) -> None:
        for number in range(connections):
            take = once(OBJECTS[number::connections]) if pipelined else lambda: [waiting.popleft()] if waiting else []
            ModelConnection(clock, iw, grow, take, ended)

    ModelConnection(clock, iw, grow, once([HTML]), html_ended)
    clock.run()
    wire = sum(size + HEADERS * math.ceil(size / MSS) for size in (HTML, *OBJECTS))
    return (max(ends) - wire * 8 / BITS_PER_MS) / RTT_MS


def rows() -> Iterator[tuple[str, ...]]:
    """The table: the cells of `byte-counting`."""
    yield "iw", "connections", "pipelined", "grow", "rounds"
    for connections, pipelined in ((1, False), (3, False), (6, False), (30, False), (1, True)):
        for iw, grow in itertools.product((3, 10, 16), GROWTH):
            tried = [
                page_rounds(iw, min(connections, len(OBJECTS)), grow, pipelined=pipelined, seed=seed)
                for seed in range(TRIES)
            ]
            if max(tried) - min(tried) < 0.1:
                yield str(iw), str(connections), str(pipelined).lower(), grow, f"{statistics.mean(tried):.2f}"


if __name__ == "__main__":
    csv.writer(sys.stdout, lineterminator="\n").writerows(rows())
