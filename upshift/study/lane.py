"""One lane of a study: a server node, its clients, and what a repetition of a cell gives there."""

from __future__ import annotations

import contextlib
import itertools
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from core.files.study import Cell, Ending
from core.files.study_terms import MSS, Knobs
from survey.iw.wire import MOST_BYTES, MOST_FETCHED_BYTES, Mode, Note, ProbeRequest, ProbeVerdict
from upshift.study.clients import EndedError, KernelClient, LaneProber
from vantage.lab.addresses import window_addresses
from vantage.lab.lab import Lab
from vantage.lab.topology import PathSpec, Sending
from vantage.lab.watch import LATENESS_LIMIT_MS, judge, stood_still
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
STRETCHED = 0.05
"""A repetition of `grow` is void if the client was so busy that its ACKs left out a larger share of the segments."""
FILL_S = 60.0
FILLED = 0.95
"""An elephant has filled its link after a drop and this share of the rate over `RTTS` round trips."""
RTTS = 5
DRAIN_S = 600.0
"""A path that is not empty by then has something on it that does not end: 4 MB at 64 kbit/s take 500 s."""
LOOK_MS = 2000
"""Meanwhile the lane looks this often whether the run is to end."""
UNLIMITED_QUEUE = 1_000_000_000
HEADERS = 52
"""Headers of a segment with timestamps, on IPv4 [bytes]."""
TIMESTAMPS = 12
"""What these take of it [bytes]; iwprobe sends none (RFC 7323, section 3.2, and two NOPs)."""
STALE_S = 1.0
"""The lab notices within this time that one of its programs has ended."""
_MODES = {"iw": (Mode.IW, 15_000), "fetch": (Mode.FETCH, 60_000), "again": (Mode.AGAIN, 65_535)}
"""Mode of iwprobe, and its longest time from the first SYN [ms]: a pause takes up to 60 s of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepetitionEnd:
    """How a repetition ended."""

    ending: Ending
    """Disturbed: it is void."""
    reason: str = ""
    metrics: Mapping[str, float | None]


class Lane:
    """A server node with its path to the client. Call it from one thread, in which its programs are started.

    Args:
        number: of the server node, from 1.
        sysctls: names of all settings that cells of the study change.
        seed: of pauses and losses.
        stopped: whether the run is to end; looked at while the lane waits for its path.
    """

    def __init__(
        self, lab: Lab, number: int, *, sysctls: Sequence[str], seed: int, stopped: Callable[[], bool]
    ) -> None:
        self.lab, self.server = lab, lab.topology.server[number - 1].name
        self._seed, self._stopped = seed, stopped
        self._place, self._node = lab.place(CLIENT), lab.place(self.server)
        self._emulator = lab.emulator()
        self._windows = {window: own.ipv4 for window, own in window_addresses(lab.topology)[self.server].items()}
        self._main, self._here = lab.plan.addresses[self.server].ipv4, lab.plan.addresses[CLIENT].ipv4
        self._pairs = [[CLIENT, self.server], [self.server, CLIENT]]
        self._before = linux.read_sysctls(self._node.run, set(sysctls)) if sysctls else {}
        self._present = dict(self._before)
        fifo = lab.plan.fifo_priority or 0
        self.client, self._prober = KernelClient(self._place, fifo), LaneProber(self._place, number, fifo)

    def close(self) -> None:
        """Ends the programs, and restores the settings of the server's node."""
        self.client.close()
        self._prober.close()
        self._emulator.close()
        self._set({})

    @property
    def fifo_priority(self) -> int:
        """What the clients were granted; 0: none."""
        return max(self.client.fifo_priority, self._prober.fifo_priority)

    def check(self) -> None:
        """Raises LabError if the lab is broken; waits for the moment after which it knows."""
        time.sleep(STALE_S)
        self._place.check()

    def prepare(self, knobs: Knobs) -> str | None:
        """Programs the path and starts what is beside the flows of a block; a sentence if that cannot be had.

        A run that is to end meanwhile leaves it half done. Raises EndedError as `once`.
        """
        self.client.ask(op="alone")
        self._set({})  # else those of the flow before would be an elephant's, too
        self._wait_empty()  # what is in flight keeps the path as it was: a queue of another block's elephant
        self._set_path(knobs)
        if knobs.beside == "voice":
            self.client.ask(op="voice", address=self._main)
            time.sleep(RTTS * knobs.rtt_ms / 1000)
        return self._fill(knobs) if knobs.beside == "elephant" else None

    def _set_path(self, knobs: Knobs, *, draw: int = 0) -> None:
        rate = knobs.rate_mbit or math.inf
        queue = knobs.queue_bytes or (UNLIMITED_QUEUE if math.isinf(rate) else None)
        path = PathSpec(
            rtt_ms=knobs.rtt_ms,
            rate_mbit=rate,
            queue=queue,
            loss_percent=knobs.loss_percent,
            drop=list(knobs.drop),
        )
        self.lab.set_path(
            *(CLIENT, self.server, path),
            uplink_mbit=knobs.uplink_mbit or rate,
            lost=(knobs.lost.down, knobs.lost.up),
            draw=draw,
        )

    def _fill(self, knobs: Knobs) -> str | None:
        """Starts an elephant and waits until it has filled the link; a sentence if it does not."""
        port = self.client.ask(op="elephant", address=self._main)["port"]
        until, share, dropped = time.monotonic() + FILL_S, 0.0, False
        span_s = max(RTTS * knobs.rtt_ms / 1000, 0.1)
        while time.monotonic() < until and not self._stopped():
            before = self._snapshot()
            time.sleep(span_s)
            after = self._snapshot()
            # The span is that of the emulator's clock: this thread may wake late.
            spent_s = (after["monotonic_ns"] - before["monotonic_ns"]) / 1e9
            delivered = _delivered(after, self.server) - _delivered(before, self.server)
            share = delivered * 8e-6 / spent_s / (knobs.rate_mbit or math.inf)
            # The table has the elephants of blocks before, too.
            flows = self._emulator.ask("flows", a=self._here, b=self._main)["flows"]
            dropped = dropped or any(flow["tail"] for flow in flows if flow["dport"] == port)
            if dropped and share >= FILLED:
                return None
        return f"the elephant has {share:.1%} of the link and {'a' if dropped else 'no'} drop after {FILL_S:g} s"

    def leave(self) -> None:
        """Ends what is beside the flows of a block: its rate is another lane's now, and this one may have to wait."""
        with contextlib.suppress(EndedError):
            self.client.ask(op="alone")

    def once(self, cell: Cell, name: str) -> RepetitionEnd:
        """One repetition of a cell of the block that was prepared.

        Args:
            name: of the repetition; pauses and losses follow from it.

        Raises:
            EndedError: a client, or what is beside, ended, or the path does not become empty. `prepare` starts again.
            LabError: the lab is broken.
        """
        knobs, chance = cell.knobs, random.Random(f"{self._seed}/{name}")
        self._set(knobs.sysctls)
        if knobs.loss_percent:
            self._set_path(knobs, draw=chance.getrandbits(32))  # other packets are lost in each repetition
        address = self._windows[OWN_WINDOW if knobs.grow != "kernel" else knobs.iw]
        client = self._here if knobs.client == "kernel" else self._prober.address
        self._emulator.ask("forget_flows", a=client, b=address)
        before = self._snapshot()
        if knobs.client == "kernel":
            metrics, waited_ms, ended = self._load(knobs, address, rival_first=chance.random() < 0.5)
        else:
            metrics, waited_ms, ended = self._probe(knobs, address)
        flows = self._emulator.ask("flows", a=client, b=address)["flows"]
        if "ports" in metrics:  # a rival may come from the same address
            flows = [flow for flow in flows if {flow["sport"], flow["dport"]} & metrics["ports"]]
        metrics["drops"] = sum(flow["loss"] + flow["tail"] + flow["aqm"] for flow in flows)
        late_ms = max((flow["lateness_max_ns"] for flow in flows), default=0) / 1e6
        reason = self._fault(before, waited_ms, late_ms, metrics["spent_ms"]) or _stretched(knobs, metrics)
        self._rest(knobs, chance.random())
        if ended is Ending.CENSORED and not reason:
            return RepetitionEnd(ending=ended, reason=f"longer than {CENSORED_S:g} s", metrics=metrics)
        return RepetitionEnd(ending=Ending.DISTURBED if reason else ended, reason=reason, metrics=metrics)

    def _fault(self, before: Mapping[str, Any], waited_ms: float, late_ms: float, time_ms: float) -> str:
        """Why the repetition is void; empty if it is not."""
        limit = max(LATE_MS, LATE_SHARE * time_ms)
        if waited_ms > limit:
            return f"client and sender waited {waited_ms:.1f} ms for a processor (limit {limit:.1f} ms)"
        if late_ms > limit:
            return f"the path emulator was {late_ms:.1f} ms late (limit {limit:.1f} ms)"
        after = self._snapshot()
        disturbed = judge(before, after, None, limit) or stood_still(before, after, max(limit, LATENESS_LIMIT_MS))
        return "" if disturbed is None else disturbed.detail

    def _rest(self, knobs: Knobs, more_s: float) -> None:
        """Until the next flow may begin: the path is empty, or beside others 5 round trips and some time are over."""
        if knobs.beside in ("elephant", "voice"):
            time.sleep(RTTS * knobs.rtt_ms / 1000 + more_s)
        else:
            self._wait_empty()

    def _wait_empty(self) -> None:
        """Until no packet is under way, or the run is to end. Raises EndedError if the path does not become empty."""
        until = time.monotonic() + DRAIN_S
        while not self._emulator.ask("idle", pairs=self._pairs, timeout_ms=LOOK_MS)["idle"]:
            if self._stopped():
                return
            if time.monotonic() >= until:
                raise EndedError(f"the path was not empty after {DRAIN_S:g} s")

    def _load(self, knobs: Knobs, address: str, *, rival_first: bool) -> tuple[dict[str, Any], float, Ending]:
        """A load by the kernel's TCP: metrics, time that was spent waiting for processors [ms], outcome."""
        rival = knobs.beside.startswith("rival")
        reply = self.client.ask(
            op="load",
            address=address,
            html=_answer(knobs, knobs.html) if knobs.html else None,
            objects=[_answer(knobs, size) for size in knobs.objects],
            connections=knobs.connections,
            pipelined=knobs.pipelined,
            fixed_window=knobs.receive_window == "fixed",
            rival=self._windows[int(knobs.beside.split()[1])] if rival else None,
            rival_first=rival_first,
            limit_s=CENSORED_S,
            gap_ms=knobs.rtt_ms / 2,
            span_ms=span_ms(knobs),
        )
        ending, ends = Ending(reply["outcome"]), reply["connections"]
        time_ms = CENSORED_S * 1000 if ending is Ending.CENSORED else reply["ns"] / 1e6
        reply |= self.client.ask(op="beside") if knobs.beside == "voice" else {}
        metrics = {
            "time_ms": time_ms,
            "spent_ms": time_ms,
            "ports": set(reply["ports"]),
            "flights": reply["flights"],
            "rounds": rounds(knobs, time_ms),
            "retransmissions": sum(end["retransmissions"] for end in ends) if ends else None,
            "timeouts": None if not ends or ends[0]["timeouts"] is None else sum(end["timeouts"] for end in ends),
            "window": max((end["window"] for end in ends), default=None),
            "stretched": sum(end.get("stretched", 0) for end in ends),
            **{name: reply.get(name) for name in ("neighbour_mbit", "voice_p50_ms", "voice_p99_ms", "voice_lost")},
        }
        return metrics, reply["waited_s"] * 1e3 + sum(end["waited_ns"] for end in ends) / 1e6, ending

    def _probe(self, knobs: Knobs, address: str) -> tuple[dict[str, Any], float, Ending]:
        """The same by iwprobe."""
        mode, limit_ms = _MODES[knobs.client]
        request = ProbeRequest(
            address=address,
            port=80,
            mss=MSS + 12,
            host="sender.example",
            path=_answer(knobs, knobs.objects[0])[0],
            user_agent="upshift",
            mode=mode,
            limit_ms=limit_ms,
            ack_every=knobs.ack_every,
            idle_ms=round(knobs.idle_ms),
            most_bytes=MOST_BYTES if mode is Mode.IW else MOST_FETCHED_BYTES,
        )
        reply, waited_ms = self._prober.ask(request)
        ending = Ending.OK
        if mode is Mode.FETCH and reply.total_us >= CENSORED_S * 1e6 and reply.verdict is not ProbeVerdict.COMPLETE:
            ending = Ending.CENSORED
        elif reply.verdict not in (ProbeVerdict.COMPLETE, ProbeVerdict.LIMITED):
            raise EndedError(f"iwprobe: {reply.verdict.value.replace('_', ' ')}")
        time_ms = CENSORED_S * 1000 if ending is Ending.CENSORED else reply.total_us / 1000
        if mode is not Mode.FETCH:
            return {"segments": reply.flight_segments, "spent_ms": time_ms}, waited_ms, Ending.OK
        times = [arrival.at_us for arrival in reply.arrivals]
        flights = 1 + sum(later - earlier > knobs.rtt_ms * 500 for earlier, later in itertools.pairwise(times))
        metrics = {
            "time_ms": time_ms,
            "spent_ms": time_ms,
            "flights": None if Note.ARRIVALS_CUT in reply.notes else flights,
            "rounds": rounds(knobs, time_ms),
        }
        return metrics, waited_ms, ending

    def _snapshot(self) -> dict[str, Any]:
        return self._emulator.ask("snapshot", pairs=self._pairs)

    def _set(self, sysctls: Mapping[str, str | int]) -> None:
        """Sets the node's settings; those that are not named have the values of the beginning."""
        wanted = {**self._before, **{name: " ".join(str(value).split()) for name, value in sysctls.items()}}
        if wanted != self._present:
            linux.write_sysctls(self._node.run, wanted, present=self._present)
            self._present = wanted


def _answer(knobs: Knobs, size: int) -> tuple[str, int]:
    """What a sender is asked for, and how long that is with its head [bytes]."""
    words = [f"answer={size}"]
    words += [Sending(**knobs.send).query] if knobs.send else []  # type: ignore[arg-type]
    words += [f"grow={knobs.grow}&window={knobs.iw}"] if knobs.grow != "kernel" else []
    return f"/?{'&'.join(words)}", size


def _stretched(knobs: Knobs, metrics: Mapping[str, Any]) -> str:
    """Why growth per ACK was not what it is without loss and with an ACK for every second segment; empty if it was."""
    if knobs.grow != "kernel" and metrics["drops"]:
        return f"{metrics['drops']} packets were dropped, and grow = {knobs.grow!r} counts without loss only"
    segments = sum(math.ceil(size / MSS) for size in (knobs.html, *knobs.objects))
    if metrics.get("stretched", 0) <= STRETCHED * segments:
        return ""
    return f"the client's ACKs left out {metrics['stretched']} of {segments} segments"


def span_ms(knobs: Knobs) -> float:
    """Over how long an elephant is watched: a span that does not depend on the flow, unless that takes longer."""
    if knobs.beside != "elephant":
        return 0.0
    if knobs.watch_s:
        return knobs.watch_s * 1000
    alone_ms = (knobs.html + sum(knobs.objects)) * 8e-3 / (knobs.rate_mbit or math.inf)
    return 4 * alone_ms + RTTS * knobs.rtt_ms


def rounds(knobs: Knobs, time_ms: float) -> float:
    """A time without that of all packets at the rate [round trips]."""
    sizes = [*([knobs.html] if knobs.html else []), *knobs.objects]
    without = 0 if knobs.client == "kernel" else TIMESTAMPS
    wire = sum(size + (HEADERS - without) * math.ceil(size / (MSS + without)) for size in sizes)
    return (time_ms - wire * 8e-3 / (knobs.rate_mbit or math.inf)) / knobs.rtt_ms


def _delivered(snapshot: Mapping[str, Any], server: str) -> int:
    """Bytes from the server so far."""
    return int(next(pair["delivered_bytes"] for pair in snapshot["pairs"] if pair["from"] == server))
