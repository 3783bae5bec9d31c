"""What a run makes when: blocks of repetitions, which of them run side by side, and about how long they take."""

from __future__ import annotations

import heapq
import itertools
import math
import random
import threading
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from core.files.study import Cell, Study
from core.files.study_terms import MOST_MBIT, MSS, Knobs
from upshift.study.lane import RTTS, span_ms

PIECE_S = 600.0
"""Blocks that would take longer are cut, so that all paths end at about the same time."""
AROUND_S, BLOCK_S, FLOW_S, FILL_S = 10.0, 0.3, 0.06, 8.0
"""About what it takes to build the lab and to draw the figures, to change the path, between two flows, and for an
elephant [s]."""
AGAIN = 1.05
"""About what void repetitions add."""


@dataclass(frozen=True, kw_only=True)
class LaneBlock:
    """Repetitions on one path beside the same thing, in the order in which they are made."""

    level: tuple[str, ...]
    """Values of the study's lanes; blocks of one level are never made at the same time."""
    knobs: Knobs
    """Those of its first cell: what `Lane.prepare` needs is the same in all."""
    work: tuple[tuple[str, Cell], ...]
    """Names in the ledger, and cells."""

    @property
    def mbit(self) -> float:
        """What it takes of the rates that run together; a path without a limit takes all."""
        return self.knobs.rate_mbit or MOST_MBIT

    @cached_property
    def seconds(self) -> float:
        """About how long it takes, void repetitions included."""
        fill = FILL_S if self.knobs.beside == "elephant" else 0.0
        return BLOCK_S + fill + AGAIN * sum(flow_s(cell.knobs) for _, cell in self.work)


def repetitions(study: Study) -> Iterator[tuple[Cell, list[str]]]:
    """Each cell, and the names of its repetitions."""
    for number, cell in enumerate(study.cells):
        yield cell, [f"{number}/{repetition}" for repetition in range(study.repetitions)]


def blocks(study: Study, names: Collection[str]) -> list[LaneBlock]:
    """The blocks of these repetitions, in random order, and in each its repetitions in random order.

    Each is on one path beside the same thing; there are several where they would take long.
    """
    order = random.Random(study.seed)
    members: dict[Any, list[tuple[str, Cell]]] = {}
    for cell, own in repetitions(study):
        knobs = cell.knobs
        path = (knobs.rtt_ms, knobs.rate_mbit, knobs.queue_bytes, knobs.loss_percent, knobs.drop, knobs.uplink_mbit)
        members.setdefault((path, knobs.lost, knobs.beside), []).extend((name, cell) for name in own)
    made = []
    for work in members.values():
        order.shuffle(work)
        cell = work[0][1]
        level = tuple(cell.texts[column] for column in study.lanes)
        whole = LaneBlock(level=level, knobs=cell.knobs, work=tuple(work))
        size = math.ceil(len(work) / math.ceil(whole.seconds / PIECE_S))
        for start in range(0, len(work), size):
            left = tuple(pair for pair in work[start : start + size] if pair[0] in names)
            made.append(replace(whole, work=left))
    order.shuffle(made)
    return [block for block in made if block.work]


class Agenda:
    """Hands out blocks to lanes: never two of a level at once, and no more rate at once than the emulator keeps to.

    Of those that fit it hands out one of the level that has the largest share still to be made. So all levels are made
    over the same time, and end together; a run that is stopped has about as many repetitions of each cell.

    Args:
        until: nothing starts after this time (Unix).
    """

    def __init__(self, blocks: Sequence[LaneBlock], until: float = math.inf) -> None:
        self._waiting, self._until = list(blocks), until
        self._planned = self._left()
        self._running: list[LaneBlock] = []
        self._changed = threading.Condition()
        self._stopped = False

    def take(self) -> LaneBlock | None:
        """Takes a block that may run beside those that do; None if there is none."""
        free = MOST_MBIT - sum(block.mbit for block in self._running)
        levels = {block.level for block in self._running}
        fits = [block for block in self._waiting if block.level not in levels and block.mbit <= free]
        if not fits:
            return None
        left = self._left()
        block = max(fits, key=lambda block: left[block.level] / self._planned[block.level])
        self._waiting.remove(block)
        self._running.append(block)
        return block

    def _left(self) -> Mapping[tuple[str, ...], float]:
        """Seconds that wait, by level."""
        left: defaultdict[tuple[str, ...], float] = defaultdict(float)
        for block in self._waiting:
            left[block.level] += block.seconds
        return left

    def begin(self) -> LaneBlock | None:
        """Takes a block, once one fits; None if there is nothing left."""
        with self._changed:
            while self._waiting and not self.stopped:
                if (block := self.take()) is not None:
                    return block
                self._changed.wait()
            return None

    def end(self, block: LaneBlock) -> None:
        """Gives its rate and its level free."""
        with self._changed:
            self._running.remove(block)
            self._changed.notify_all()

    def stop(self) -> None:
        """Hands out no more."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    @property
    def stopped(self) -> bool:
        return self._stopped or time.time() >= self._until


def makespan(waiting: Sequence[LaneBlock], lanes: int) -> float:
    """About how long blocks take in so many lanes [s]."""
    agenda, now = Agenda(waiting), 0.0
    running: list[tuple[float, int, LaneBlock]] = []
    for number in itertools.count():
        if len(running) < lanes and (block := agenda.take()) is not None:
            heapq.heappush(running, (now + block.seconds, number, block))
        elif running:
            now, _, block = heapq.heappop(running)
            agenda.end(block)
        else:
            break
    return AROUND_S + now


def flow_s(knobs: Knobs) -> float:
    """About how long a repetition takes, with all that comes before the next [s]."""
    rtt, rate = knobs.rtt_ms / 1000, (knobs.rate_mbit or math.inf) * 1e6
    wire = (knobs.html + sum(knobs.objects)) * 8.3 / rate
    turns = 1 + _flights(knobs.html, knobs.iw) + (knobs.html > 0)
    if knobs.objects:
        share = knobs.objects[:: knobs.connections]
        turns += max(_flights(sum(share), knobs.iw), 1 if knobs.pipelined else len(share))
    if knobs.beside in ("elephant", "voice"):
        behind = rtt + (knobs.queue_bytes or 0) * 8 / rate if knobs.beside == "elephant" else rtt
        flow = max(turns * behind + 2 * wire, span_ms(knobs) / 1000)
        return FLOW_S + flow + rtt + RTTS * rtt + 0.5
    # iwprobe sends a SYN again after 3.5 s, Linux a SYN-ACK after 1 and 3 s; then the first timeout is 3 s.
    waits = knobs.idle_ms / 1000 + 4.5 * len(knobs.lost.up) + 3 * len(knobs.lost.down)
    return FLOW_S + waits + (turns * rtt + wire) * (1 + 0.5 * knobs.loss_percent) + 1.5 * rtt


def _flights(size: int, window: int) -> int:
    """Flights of slow start for so many bytes."""
    return math.ceil(math.log2(math.ceil(size / MSS) / window + 1)) if size else 0
