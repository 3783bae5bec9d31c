"""Measures a lab against its own topology: round-trip times, rates, queues, losses, and unprogrammed drops.

Every measurement runs in the lab's nodes and relies on the kernel's clocks and counters, not the emulator's. Only queue
occupancy, which is not visible elsewhere, comes from the emulator. On a busy host a deviation is not a verdict.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.errors import LabError
from core.system import process
from core.terminal import Progress
from core.untrusted import last_line
from vantage.lab.lab import Lab
from vantage.lab.pathem import DEVICE, Emulator
from vantage.lab.place import LabPlace
from vantage.lab.roles import roles
from vantage.lab.topology import MTU, PathSpec, Server, Topology
from vantage.lab.watch import LATENESS_LIMIT_MS, lateness_ms, lost_outside
from vantage.linux.cpu import Method, Wakeups, measure_wakeups
from vantage.linux.environment import cpu_times
from vantage.server_kind import ServerRole

RTT_TOLERANCE_MS = 0.1
"""Tolerance of the median round trip, where the CPUs are kept awake [ms]."""

SLEEPY_RTT_TOLERANCE_MS = 0.4
"""The same where they are not kept awake [ms]."""

RATE_TOLERANCE = 0.02
OVERLOAD = 1.2
LEAST_OVERLOAD = 1.05
STEAL_LIMIT = 0.02
IDLE_LIMIT = 0.05
WANTED_WINDOWS = 5
PORT = 40001
SWEEP_MBIT = (4.0, 30.0, 100.0, 300.0)
SWEEP_QUEUE_S = 0.05
"""Queue of the swept path: it stays filled while the sender waits for a processor."""

ECHO_BYTES = 52
"""IP packet of the probe's echo request."""

ECHOES_S = 60.0
"""Longest time for the echo requests of a path whose round trip takes seconds [s]."""

LOSS_PACKETS = 3000
WAKEUPS_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One comparison."""

    what: str
    where: str
    programmed: str
    measured: str
    good: bool
    noise: str | None = None
    """Why the host was too busy for this comparison."""


class Calibration:
    """Measures one lab. Close it, for instance by `contextlib.closing`.

    Args:
        own: the lab belongs to this process, so paths may be changed temporarily.
        quick: fewer paths and samples.

    Raises LabError if a campaign runs in it.

    Attributes:
        wakeups: how late this host wakes, measured first.
        cpus_awake: what keeps its CPUs awake.
    """

    def __init__(self, lab: Lab, *, own: bool, quick: bool) -> None:
        self._lab = lab
        self._own = own
        self._quick = quick
        with ExitStack() as stack:
            for name in lab.vantage_points:  # a campaign there would be disturbed
                place = lab.place(name)
                stack.callback(place.close)
                place.claim()
            self._emulator: Emulator = lab.emulator()
            stack.callback(self._emulator.close)
            self._closing = stack.pop_all()
        self.cpus_awake = self._emulator.cpus_awake()
        self.wakeups = measure_wakeups(WAKEUPS_S)

    def close(self) -> None:
        """Closes the connection to the emulator, and leaves the vantage points to others."""
        self._closing.close()

    def run(self, progress: Progress) -> list[Check]:
        """All comparisons, one at a time, since they would disturb each other."""
        before = self._emulator.ask("snapshot")
        steps = list(self._steps())
        checks: list[Check] = []
        for number, (label, step) in enumerate(steps, 1):
            checks += step()
            bad = sum(not check.good for check in checks)
            progress.update("calibrate", done=number, total=len(steps) + 1, failed=bad, note=label)
        checks.append(unprogrammed(before, self._emulator.ask("snapshot")))
        progress.update("calibrate", done=len(steps) + 1, total=len(steps) + 1, note="drops")
        return checks

    def _steps(self) -> Iterator[tuple[str, Any]]:
        for vantage in self._lab.vantage_points:
            for server in self._sample(measurable(self._lab.topology), 4):
                yield f"round trip {vantage} {server.name}", lambda v=vantage, s=server: [self.round_trip(v, s)]
        for vantage, server in self._sample(list(self._distinct_rates()), 1):
            yield f"rate {vantage} {server.name}", lambda v=vantage, s=server: self.rate(v, s, s.paths[v])
        for vantage, server in self._sample(list(self._lossy()), 1):
            yield f"loss {vantage} {server.name}", lambda v=vantage, s=server: [self.loss(v, s)]
        if self._own and (servers := measurable(self._lab.topology)):
            vantage, server = self._lab.vantage_points[0], servers[0]
            for rate in SWEEP_MBIT[:: 2 if self._quick else 1]:
                path = PathSpec(rtt_ms=4, rate_mbit=rate, queue=round(max(50 * MTU, rate * SWEEP_QUEUE_S * 125_000)))
                yield f"sweep {rate:g} Mbit/s", lambda p=path, v=vantage, s=server: self.sweep(v, s, p)

    def _sample(self, items: Sequence[Any], quick: int) -> Sequence[Any]:
        return items[:quick] if self._quick else items

    def _distinct_rates(self) -> Iterator[tuple[str, Server]]:
        known: set[tuple[float, int]] = set()
        for server in measurable(self._lab.topology):
            for vantage, path in server.paths.items():
                key = (path.rate_mbit, path.queue_bytes)
                whole = not path.loss_percent and path.packets_per_rtt is None
                if whole and is_kept_busy(path) and key not in known:
                    known.add(key)
                    yield vantage, server

    def _lossy(self) -> Iterator[tuple[str, Server]]:
        for server in measurable(self._lab.topology):
            for vantage, path in server.paths.items():
                # A limit on packets per round trip drops nearly all of what is sent at once.
                if path.loss_percent and path.rtt_ms <= 100 and path.packets_per_rtt is None:
                    yield vantage, server

    def round_trip(self, vantage: str, server: Server) -> Check:
        """Median of echo requests, without the time that their bits take."""
        address = self._lab.plan.addresses[server.name].ipv4
        wanted = server.paths[vantage].rtt_ms
        count = min(15 if self._quick else 41, int(ECHOES_S * 1e3 / max(wanted, 1)))
        before, times_before = self._emulator.ask("snapshot"), cpu_times()
        answer = probe(
            self._lab.place(vantage), "ping", address, "--count", str(count), "--wait-s", str(2 + wanted / 1e3)
        )
        after, times_after = self._emulator.ask("snapshot"), cpu_times()
        uplink_mbit = next(each.uplink_mbit for each in self._lab.topology.vantage if each.name == vantage)
        times = answer["rtt_ms"]
        sent_ms = sending_ms(server.paths[vantage], uplink_mbit)
        median_ms = statistics.median(times) - sent_ms if times else float("inf")
        is_awake = self.cpus_awake.method is not Method.NONE
        excess = abs(median_ms - wanted) - (RTT_TOLERANCE_MS if is_awake else SLEEPY_RTT_TOLERANCE_MS)
        good = excess <= 0 and (answer["answered"] == count or bool(server.paths[vantage].loss_percent))
        if not good:  # the host may have become busy since
            self.wakeups = max(self.wakeups, measure_wakeups(WAKEUPS_S), key=lambda wakeups: wakeups.p50_us)
        noise = (
            None
            if good
            else round_trip_noise(
                excess if median_ms > wanted else float("inf"),
                wakeups=self.wakeups,
                late_p50_ms=lateness_ms(before, after, 0.5) or 0.0,
                late_p99_ms=lateness_ms(before, after) or 0.0,
                steal=(times_after[1] - times_before[1]) / max(times_after[0] - times_before[0], 1e-9),
            )
        )
        return Check(
            what="round trip",
            where=f"{vantage} - {server.name}",
            programmed=f"{wanted:.2f} ms",
            measured=f"{median_ms:.2f} ms",
            good=good,
            noise=noise,
        )

    def rate(self, vantage: str, server: Server, path: PathSpec) -> list[Check]:
        """UDP at 1.2 times the rate; the median of five windows with little steal, and the queue's peak."""
        here, there = self._lab.place(vantage), self._lab.place(server.name)
        empty = 1 + int(path.rtt_ms / 2000)  # windows that begin before packets come
        windows = empty + WANTED_WINDOWS + (1 if self._quick else 5)
        pairs = [[server.name, vantage]]
        address = self._lab.plan.addresses[vantage].ipv4
        begin = self._emulator.ask("snapshot", pairs=pairs)
        with start_probe(here, "count", str(PORT), "--windows", str(windows), "--device", DEVICE) as counter:
            wait_ready(counter)
            sent = probe(
                there, "blast", address, str(PORT), "--rate-mbit", str(path.rate_mbit * OVERLOAD),
                "--seconds", str(windows + 0.5), "--burst", str(burst_of(path)),
            )  # fmt: skip
            counted = read_answer(counter)["windows"]
        end = self._emulator.ask("snapshot", pairs=pairs)
        after, late = end["pairs"][0], lateness_ms(begin, end) or 0.0
        full = counted[empty:]
        calm = [window["mbit"] for window in full if window["steal"] <= STEAL_LIMIT][:WANTED_WINDOWS]
        measured = statistics.median(calm or [window["mbit"] for window in full])
        where = f"{server.name} - {vantage}"
        rate = Check(
            what="rate",
            where=where,
            programmed=f"{path.rate_mbit:.2f} Mbit/s",
            measured=f"{measured:.2f} Mbit/s",
            good=is_rate(measured, path.rate_mbit),
            noise=rate_noise(full, len(calm), late, sent["rate_mbit"] / path.rate_mbit),
        )
        if path.ecn_threshold_bytes is not None or not after["tail"]:
            return [rate]
        peak = after["queue_peak_bytes"]
        queue = Check(
            what="queue",
            where=where,
            programmed=f"{path.queue_bytes} B",
            measured=f"{peak} B",
            good=path.queue_bytes - MTU < peak <= path.queue_bytes,
        )
        return [rate, queue]

    def loss(self, vantage: str, server: Server) -> Check:
        """The lost packets of one connection are those given by the seed (`pathem --selftest-loss`)."""
        path = server.paths[vantage]
        here, there = self._lab.place(vantage), self._lab.place(server.name)
        local, remote = (self._lab.plan.addresses[name].ipv4 for name in (vantage, server.name))
        self._emulator.ask("forget_flows", a=local, b=remote)
        pairs = [[server.name, vantage]]
        before = self._emulator.ask("snapshot", pairs=pairs)
        count = LOSS_PACKETS // (3 if self._quick else 1)
        rate = min(20.0, path.rate_mbit / 2)
        idle_s = max(1.0, 10 * MTU * 8e-6 / rate)
        with start_probe(here, "collect", str(PORT), "--idle-s", str(idle_s)) as collector:
            wait_ready(collector)
            count = probe(
                there, "blast", local, str(PORT), "--rate-mbit", str(rate), "--count", str(count), "--seconds", "60"
            )["sent"]  # fewer on a slow path
            came = set(read_answer(collector)["numbers"])
        after = self._emulator.ask("snapshot", pairs=pairs)
        seed = self._lab.topology.seed_of("loss", server.name, vantage)
        argv = [self._lab.plan.emulator[0], "--selftest-loss", str(seed), str(path.loss_percent / 100), str(count)]
        wanted = set(json.loads(process.run(argv).check(doing="computing losses").stdout))
        lost = set(range(count)) - came
        return Check(
            what="loss pattern",
            where=f"{server.name} - {vantage}",
            programmed=f"{len(wanted)} of {count}",
            measured=f"{len(lost)}, {len(lost ^ wanted)} differ",
            good=lost == wanted,
            noise=loss_noise(before, after),
        )

    def sweep(self, vantage: str, server: Server, path: PathSpec) -> list[Check]:
        """The rate check on a path that temporarily has this rate."""
        pair = {"from": server.name, "to": vantage, "delay_us": round(path.rtt_ms * 500)}
        law: dict[str, object] = {"loss": None, "ecn_threshold_bytes": None}
        law |= {"rate_bps": round(path.rate_mbit * 1e6), "queue_bytes": path.queue_bytes}
        self._emulator.ask("set_pair", **pair, **law)
        # The queue's peak is since the start, so it is meaningless on a path that had a longer queue before.
        return [check for check in self.rate(vantage, server, path) if check.what == "rate"]


def is_rate(measured_mbit: float, rate_mbit: float) -> bool:
    """Whether a window of a second had this rate: it has whole packets, so one more or less."""
    return abs(measured_mbit - rate_mbit) <= RATE_TOLERANCE * rate_mbit + MTU * 8e-6


def measurable(topology: Topology) -> list[Server]:
    """The servers whose paths are measured: without a fault, and in a node whose kernel has the addresses, so that it
    answers echo requests and can send.
    """
    return [
        server
        for server in topology.server
        if server.fault is None and not roles(topology, server)[ServerRole.WEB].own_stack
    ]


def sending_ms(path: PathSpec, uplink_mbit: float) -> float:
    """How long the bits of an echo request and its reply take [ms]: 0.1 ms at 4 Mbit/s."""
    return ECHO_BYTES * 8e-3 * (1 / uplink_mbit + 1 / path.rate_mbit)


def is_kept_busy(path: PathSpec) -> bool:
    """Whether a packet can wait behind the one on the wire: else the path idles until the next one, whose time is not
    the path's.
    """
    return path.queue_bytes >= 2 * MTU and (path.ecn_threshold_bytes is None or path.ecn_threshold_bytes > MTU)


def burst_of(path: PathSpec) -> int:
    """Packets that are sent at once: a quarter of the queue at most, so that it neither runs empty nor drops bursts.

    The AQM drops what it may not mark, so the queue of such packets ends at its threshold.
    """
    room = min(path.queue_bytes, path.ecn_threshold_bytes or path.queue_bytes)
    return max(1, min(16, room // MTU // 4))


def round_trip_noise(
    excess_ms: float, *, wakeups: Wakeups, late_p50_ms: float, late_p99_ms: float, steal: float
) -> str | None:
    """Why the host was too busy, or wakes too late, to measure a round trip.

    Args:
        excess_ms: by how much the median exceeded the tolerance; infinite if it was too short, which no delay of the
            host can explain.
        late_p50_ms, late_p99_ms: how late the emulator delivered during the measurement.
        steal: share of the processors' time that went to other guests.
    """
    if late_p99_ms > LATENESS_LIMIT_MS:
        return f"the emulator was {late_p99_ms:.1f} ms late (99th percentile)"
    # A packet waits until the emulator wakes to read it, and there and back for the emulator's timer.
    wake_ms = wakeups.p50_us / 1e3
    if excess_ms <= wake_ms + 2 * max(wake_ms, late_p50_ms):
        return f"this host wakes {max(wake_ms, late_p50_ms):.2f} ms late (median)"
    if steal > STEAL_LIMIT and excess_ms < float("inf"):
        return f"other guests took {steal:.0%} of the CPU time"
    return None


def rate_noise(windows: Sequence[dict[str, float]], calm: int, late_ms: float, sent: float) -> str | None:
    """Why the host was too busy to measure a rate; `sent` is the sender's rate over the path's."""
    idle = statistics.median(window["idle"] for window in windows)
    if calm < WANTED_WINDOWS:
        return f"only {calm} of {len(windows)} one-second windows had little steal"
    if idle < IDLE_LIMIT:
        return f"the CPUs were busy {100 - 100 * idle:.0f} % of the time"
    if late_ms > LATENESS_LIMIT_MS:
        return f"the emulator was {late_ms:.1f} ms late (99th percentile)"
    if sent < LEAST_OVERLOAD:
        return f"the sender reached only {sent:.2f} times the rate"
    return None


def loss_noise(before: dict[str, Any], after: dict[str, Any]) -> str | None:
    """Why packets of one direction were lost beside the pattern: after a pause of the host many are sent at once."""
    old, new = before["pairs"][0], after["pairs"][0]
    if new["tail"] + new["aqm"] > old["tail"] + old["aqm"]:
        return "the sender's backlog overflowed the queue"
    return next((disturbance.detail for _, disturbance in lost_outside(before, after)), None)


def unprogrammed(before: dict[str, Any], after: dict[str, Any]) -> Check:
    """Whether any packet was lost that the topology did not program."""
    lost = sum(count for count, _ in lost_outside(before, after))
    carried = sum(
        new["in_packets"] - old["in_packets"] for old, new in zip(before["pairs"], after["pairs"], strict=True)
    )
    return Check(
        what="unprogrammed drops",
        where="all paths",
        programmed="0",
        measured=f"{lost} of {carried} packets",
        good=lost == 0,
    )


def _argv(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-I", "-S", str(Path(__file__).with_name("probe.py")), *arguments]


def probe(place: LabPlace, *arguments: str) -> dict[str, Any]:
    """Runs a probe to its end."""
    done = place.run(_argv(arguments), timeout_s=150).check(doing=f"measuring in {place.name}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def start_probe(place: LabPlace, *arguments: str) -> process.Child:
    """Starts a probe that reports when it is ready."""
    return place.start(_argv(arguments), stdout=True, stderr=True)


def wait_ready(child: process.Child) -> None:
    """Waits until a probe is ready. Raises LabError if it ends instead."""
    if child.stdout is None or child.stderr is None or child.stdout.readline() != "ready\n":
        reason = last_line(child.stderr.read()) if child.stderr else ""
        raise LabError(f"a measuring program failed ({reason or 'no error message'})")


def read_answer(child: process.Child) -> dict[str, Any]:
    """The JSON document that a probe prints."""
    line = child.stdout.readline() if child.stdout else ""
    if not line:
        raise LabError("a measuring program ended without output")
    answer: dict[str, Any] = json.loads(line)
    return answer
