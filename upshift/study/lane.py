"""One lane of a study: a server node, a client, and what a repetition of a cell gives there."""

from __future__ import annotations

import itertools
import json
import math
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import downloader.programs
from core.errors import PlaceError
from core.files.study import Cell
from core.files.study_terms import METRICS, Knobs
from core.system.process import Child
from survey.iw.program import Attachment, prober
from survey.iw.wire import MOST_FETCHED_BYTES, Mode, Reply, Request, Verdict, decode, encode, reply_bytes
from vantage.lab.addresses import window_addresses
from vantage.lab.lab import Lab
from vantage.lab.topology import PathSpec, Sending
from vantage.lab.watch import judge
from vantage.linux import cpu
from vantage.linux import namespace as linux

CLIENT = "client"
"""The vantage point of the lab."""
OWN_WINDOW = 2000
"""The address of senders that keep the window themselves, by its window [segments]."""
CENSORED_S = 60.0
"""A flow that takes longer is censored."""
LATE_MS, LATE_SHARE = 1.0, 0.01
"""A repetition is void if programs waited for a processor, or the emulator was late, for more than the larger of these
[ms, share of its time]."""
FILL_S = 60.0
FILLED = 0.95
"""An elephant has filled its link after a drop and this share of the rate over `RTTS` round trips."""
RTTS = 5
UNLIMITED_QUEUE = 1_000_000_000
MSS, HEADERS = 1448, 52
"""Payload and headers of a full segment with timestamps, on IPv4 [bytes]."""
MOST_ARRIVALS = 4096
STALE_S = 1.0
"""The lab notices within this time that one of its programs has ended."""
_MODES = {"iw": Mode.IW, "fetch": Mode.FETCH, "again": Mode.AGAIN}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a repetition ended."""

    outcome: str
    """`ok`, `disturbed` (void), or `censored`."""
    reason: str = ""
    metrics: Mapping[str, float | None]


class LaneFaultError(Exception):
    """A client or a neighbour ended; the repetition is repeated after `Lane.prepare`."""


class Lane:
    """A server node with its path to the client. Call it from one thread, in which its programs were started.

    Args:
        number: of the server node, from 1.
        sysctls: names of all settings that cells of the study change.
        seed: of pauses and losses.
    """

    def __init__(self, lab: Lab, number: int, *, sysctls: Sequence[str], seed: int) -> None:
        self.lab, self.server = lab, lab.topology.server[number - 1].name
        self._number, self._random = number, random.Random(f"{seed}/{number}")
        self._place, self._node = lab.place(CLIENT), lab.place(self.server)
        self._emulator = lab.emulator()
        self._windows = {window: own.ipv4 for window, own in window_addresses(lab.topology)[self.server].items()}
        self._main, self._here = lab.plan.addresses[self.server].ipv4, lab.plan.addresses[CLIENT].ipv4
        self._pairs = [[CLIENT, self.server], [self.server, CLIENT]]
        self._before = linux.read_sysctls(self._node.run, set(sysctls)) if sysctls else {}
        self._present = dict(self._before)
        self._client: Child | None = None
        self._prober: Child | None = None
        self._asked = 0
        self._draw = 0

    def close(self) -> None:
        """Ends the programs, and restores the settings of the server's node if the lab is still there."""
        for child in (self._client, self._prober):
            if child is not None:
                child.stop()
        self._emulator.close()
        self._set({})

    def prepare(self, knobs: Knobs) -> str | None:
        """Programs the path and starts what is beside the flows of a block; a sentence if that cannot be had."""
        if self._client is not None:
            self._ask(op="alone")
        self._set_path(knobs)
        if knobs.beside == "voice":
            self._ask(op="voice", address=self._main)
            time.sleep(RTTS * knobs.rtt_ms / 1000)
        return self._fill(knobs) if knobs.beside == "elephant" else None

    def _set_path(self, knobs: Knobs) -> None:
        rate = knobs.rate_mbit or math.inf
        queue = knobs.queue_bytes or (UNLIMITED_QUEUE if math.isinf(rate) else None)
        path = PathSpec(
            rtt_ms=knobs.rtt_ms,
            rate_mbit=rate,
            queue=queue,
            loss_percent=knobs.loss_percent,
            drop=list(knobs.drop),
        )
        self._draw += 1
        self.lab.set_path(
            *(CLIENT, self.server, path),
            uplink_mbit=knobs.uplink_mbit or rate,
            lost=(knobs.lost.down, knobs.lost.up),
            draw=self._draw * 16 + self._number,
        )

    def _fill(self, knobs: Knobs) -> str | None:
        """Starts an elephant and waits until it has filled the link; a sentence if it does not."""
        self._ask(op="elephant", address=self._main)
        until, share, dropped = time.monotonic() + FILL_S, 0.0, False
        span_s = max(RTTS * knobs.rtt_ms / 1000, 0.1)
        while time.monotonic() < until:
            before = self._snapshot()
            time.sleep(span_s)
            after = self._snapshot()
            # The span is that of the emulator's clock: this thread may wake late.
            spent_s = (after["monotonic_ns"] - before["monotonic_ns"]) / 1e9
            delivered = _delivered(after, self.server) - _delivered(before, self.server)
            share = delivered * 8e-6 / spent_s / (knobs.rate_mbit or math.inf)
            dropped = dropped or any(flow["tail"] for flow in self._flows(self._main))
            if dropped and share >= FILLED:
                return None
        return f"the elephant has {share:.1%} of the link and {'a' if dropped else 'no'} drop after {FILL_S:g} s"

    def once(self, cell: Cell) -> Outcome:
        """One repetition of a cell of the block that was prepared.

        Raises:
            LaneFaultError: a client, or what is beside, ended.
            LabError: the lab is broken.
        """
        knobs = cell.knobs
        self._set(knobs.sysctls)
        if knobs.loss_percent:
            self._set_path(knobs)  # other packets are lost in each repetition
        address = self._windows[OWN_WINDOW if knobs.grow != "kernel" else knobs.iw]
        client = self._here
        if knobs.client != "kernel":
            client = self._place.prober().ipv4 or client
        self._emulator.ask("forget_flows", a=client, b=address)
        before = self._snapshot()
        if knobs.client == "kernel":
            found, waited_ms, ended = self._load(knobs, address)
        else:
            found, waited_ms, ended = self._probe(knobs, address)
        flows = self._emulator.ask("flows", a=client, b=address)["flows"]
        found["drops"] = sum(flow["loss"] + flow["tail"] + flow["aqm"] for flow in flows)
        late_ms = max((flow["lateness_max_ns"] for flow in flows), default=0) / 1e6
        reason = self._fault(before, waited_ms, late_ms, found.get("time_ms") or knobs.rtt_ms)
        self._rest(knobs)
        outcome = "censored" if ended == "censored" else "disturbed" if reason else "ok"
        metrics = {name: found.get(name) for name in METRICS}
        return Outcome(
            outcome=outcome, reason=reason or ("longer than 60 s" if ended == "censored" else ""), metrics=metrics
        )

    def _fault(self, before: Mapping[str, Any], waited_ms: float, late_ms: float, time_ms: float) -> str:
        """Why the repetition is void; empty if it is not."""
        limit = max(LATE_MS, LATE_SHARE * time_ms)
        if waited_ms > limit:
            return f"client and sender waited {waited_ms:.1f} ms for a processor (limit {limit:.1f} ms)"
        if late_ms > limit:
            return f"the path emulator was {late_ms:.1f} ms late (limit {limit:.1f} ms)"
        disturbed = judge(before, self._snapshot(), None, limit)
        return "" if disturbed is None else disturbed.detail

    def _rest(self, knobs: Knobs) -> None:
        """Until the next flow may begin: the path is empty, or beside another flow 5 round trips and up to a second."""
        if knobs.beside in ("elephant", "voice"):
            time.sleep(RTTS * knobs.rtt_ms / 1000 + self._random.random())
        else:
            self._emulator.ask("idle", pairs=self._pairs, timeout_ms=round(2000 + 2 * knobs.rtt_ms))

    def _load(self, knobs: Knobs, address: str) -> tuple[dict[str, Any], float, str]:
        """A load by the kernel's TCP: metrics, time that was spent waiting for processors [ms], outcome."""
        words = [Sending(**knobs.send).query] if knobs.send else []  # type: ignore[arg-type]
        words += [f"grow={knobs.grow}&window={knobs.iw}"] if knobs.grow != "kernel" else []
        query = "".join(f"&{word}" for word in words)

        def answer(size: int) -> tuple[str, int]:
            return f"/?answer={size}{query}", size

        rival = knobs.beside.startswith("rival")
        told = self._ask(
            op="load",
            address=address,
            html=answer(knobs.html) if knobs.html else None,
            objects=[answer(size) for size in knobs.objects],
            connections=knobs.connections,
            pipelined=knobs.pipelined,
            rival=self._windows[int(knobs.beside.split()[1])] if rival else None,
            rival_first=self._random.random() < 0.5,
            limit_s=CENSORED_S,
            gap_ms=knobs.rtt_ms / 2,
        )
        told |= self._beside(knobs, told["ns"] / 1e6)
        ends = told["connections"]
        time_ms = CENSORED_S * 1000 if told["outcome"] == "censored" else told["ns"] / 1e6
        found = {
            "time_ms": time_ms,
            "flights": told["flights"],
            "rounds": rounds(knobs, time_ms),
            "retransmissions": sum(end["retransmissions"] for end in ends) if ends else None,
            "timeouts": None if not ends or ends[0]["timeouts"] is None else sum(end["timeouts"] for end in ends),
            "window": max((end["window"] for end in ends), default=None),
            **{name: told.get(name) for name in ("neighbour_mbit", "voice_p50_ms", "voice_p99_ms", "voice_lost")},
        }
        return found, told["waited_s"] * 1e3 + sum(end["waited_ns"] for end in ends) / 1e6, told["outcome"]

    def _beside(self, knobs: Knobs, spent_ms: float) -> dict[str, Any]:
        """What the neighbour got, over a span that does not depend on the flow unless that takes longer."""
        if knobs.beside not in ("elephant", "voice"):
            return {}
        alone_ms = sum(knobs.objects) * 8e-3 / (knobs.rate_mbit or math.inf)
        time.sleep(max(4 * alone_ms + RTTS * knobs.rtt_ms - spent_ms, 0) / 1000)
        return self._ask(op="beside")

    def _probe(self, knobs: Knobs, address: str) -> tuple[dict[str, Any], float, str]:
        """The same by iwprobe."""
        path = f"/?answer={knobs.objects[0]}"
        path += f"&grow={knobs.grow}&window={knobs.iw}" if knobs.grow != "kernel" else ""
        mode = _MODES[knobs.client]
        request = Request(
            address=address,
            port=80,
            mss=MSS + 12,
            host="sender.example",
            path=path,
            user_agent="upshift",
            mode=mode,
            limit_ms=15_000 if mode is Mode.IW else 60_000,
            ack_every=knobs.ack_every,
            idle_ms=round(knobs.idle_ms),
            most_bytes=600_000 if mode is Mode.IW else MOST_FETCHED_BYTES,
        )
        reply, waited_ms = self._ask_prober(request)
        if reply.verdict not in (Verdict.COMPLETE, Verdict.LIMITED):
            raise LaneFaultError(f"iwprobe: {reply.verdict.value.replace('_', ' ')}")
        if mode is not Mode.FETCH:
            return {"segments": reply.flight_segments}, waited_ms, "ok"
        times = [arrival.at_us for arrival in reply.arrivals]
        time_ms = reply.total_us / 1000
        flights = 1 + sum(later - earlier > knobs.rtt_ms * 500 for earlier, later in itertools.pairwise(times))
        return {"time_ms": time_ms, "flights": flights, "rounds": rounds(knobs, time_ms)}, waited_ms, "ok"

    def _snapshot(self) -> dict[str, Any]:
        return self._emulator.ask("snapshot", pairs=self._pairs)

    def _flows(self, address: str) -> list[dict[str, Any]]:
        flows: list[dict[str, Any]] = self._emulator.ask("flows", a=self._here, b=address)["flows"]
        return flows

    def _set(self, sysctls: Mapping[str, str | int]) -> None:
        """Sets the node's settings; those that are not named have the values of the beginning."""
        wanted = {**self._before, **{name: " ".join(str(value).split()) for name, value in sysctls.items()}}
        if wanted != self._present:
            linux.write_sysctls(self._node.run, wanted, present=self._present)
            self._present = wanted

    def _ask(self, **request: Any) -> dict[str, Any]:
        """The client's answer. Raises LaneFaultError if it, or what it loads from, ended; LabError for a broken lab."""
        client = self._started_client()
        line = _exchange(client, json.dumps(request) + "\n", lambda output: output.readline())
        if not line:
            self._client = None
            self._check()
            raise LaneFaultError(f"the client ended with code {client.stop()}")
        answer: dict[str, Any] = json.loads(line)
        if answer.get("outcome") == "failed":
            self._check()
            raise LaneFaultError(answer["reason"])
        return answer

    def _check(self) -> None:
        """Raises LabError if the lab is broken, which it notices within moments."""
        time.sleep(STALE_S)
        self._place.check()

    def _started_client(self) -> Child:
        if self._client is None:
            script = Path(downloader.programs.__file__ or "").with_name("load.py")
            priority = ("--fifo", str(self.lab.plan.fifo_priority or 0))
            self._client = self._place.start([sys.executable, "-I", str(script), *priority], stdin=True, stdout=True)
            greeting = self._client.stdout.readline() if self._client.stdout else ""
            if not greeting:
                raise PlaceError("the studies' client ended at once", remedy="run: make setup")
            self.fifo_priority = int(json.loads(greeting)["fifo_priority"])
        return self._client

    fifo_priority = 0
    """What the client was granted."""

    def _ask_prober(self, request: Request) -> tuple[Reply, float]:
        """iwprobe's reply, and how long it waited for a processor meanwhile [ms]."""
        if self._prober is None:
            own = self._place.prober()
            ports = (32_768 + 2048 * self._number, 32_768 + 2048 * self._number + 2047)
            attachment = Attachment(device=own.device, addresses=(own.ipv4,), ports=ports)  # type: ignore[arg-type]
            self._program = prober(attachment, arrivals=MOST_ARRIVALS)
            self._prober = self._place.start(self._program.argv, stdin=True, stdout=True, binary=True)
            self._program.greeted(self._prober.stdout.readline())
            cpu.make_fifo(self._prober.pid, self.lab.plan.fifo_priority or 0)
        child, self._asked = self._prober, self._asked + 1
        before, size = _run_delay_ms(child.pid), reply_bytes(MOST_ARRIVALS)
        data = _exchange(child, encode(self._asked, request), lambda output: output.read(size))
        if len(data) < size:
            self._prober = None
            self._check()
            raise LaneFaultError(f"iwprobe ended with code {child.stop()}")
        ((_, reply),) = decode(data, MOST_ARRIVALS)
        return reply, _run_delay_ms(child.pid) - before


def _exchange(child: Child, message: Any, read: Callable[[IO[Any]], Any]) -> Any:
    """A program's answer to a message; empty if it has ended."""
    if child.stdin is None or child.stdout is None:
        raise ValueError("the program has no pipes")
    try:
        child.stdin.write(message)
        child.stdin.flush()
        return read(child.stdout)
    except OSError:
        return ""


def rounds(knobs: Knobs, time_ms: float) -> float:
    """A time without that of all packets at the rate [round trips]."""
    sizes = [*([knobs.html] if knobs.html else []), *knobs.objects]
    wire = sum(size + HEADERS * math.ceil(size / MSS) for size in sizes)
    return (time_ms - wire * 8e-3 / (knobs.rate_mbit or math.inf)) / knobs.rtt_ms


def _delivered(snapshot: Mapping[str, Any], server: str) -> int:
    """Bytes from the server so far."""
    return int(next(pair["delivered_bytes"] for pair in snapshot["pairs"] if pair["from"] == server))


def _run_delay_ms(pid: int) -> float:
    """How long the main thread of a process has waited for a processor (Documentation/scheduler/sched-stats.rst)."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[1]) / 1e6
    except (OSError, IndexError):
        return 0.0
