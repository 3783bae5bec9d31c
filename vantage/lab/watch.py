"""Watches one path of the lab during a measurement run: the emulator's lateness, and the fate of the packets."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from core.domain import Disturbance, Transport, VoidReason
from core.system.place import FlowCount, Suitability
from vantage.lab.pathem import Emulator

LATENESS_LIMIT_MS = 5.0
SETTLE_TIMEOUT_S = 3.0
QUIET_S = 0.01
_PROTOCOLS = {6: Transport.TCP, 17: Transport.QUIC}

End = tuple[str, str]
"""Node and address."""


class LabWatch:
    """Watches the two directions between a vantage point and a server; implements `core.system.place.Watch`.

    Args:
        ends: the vantage point and the server.
        rtt_ms: round-trip time of the path [ms]; it determines how much lateness voids a run.
        queue_ms: how long its longest queue takes [ms]; standing still for half of that, or of a round trip, voids a
            run, too.
    """

    def __init__(self, emulator: Emulator, ends: tuple[End, End], *, rtt_ms: float, queue_ms: float) -> None:
        self._emulator = emulator
        (self._here, self._local), (self._there, self._remote) = ends
        self._pairs = [[self._here, self._there], [self._there, self._here]]
        self._limit_ms = max(LATENESS_LIMIT_MS, rtt_ms / 4)
        self._stall_ms = max(self._limit_ms, min(queue_ms, rtt_ms) / 2)
        # Ports are reused: an earlier run's counts must not be included.
        emulator.ask("forget_flows", a=self._local, b=self._remote)
        self._before = emulator.ask("snapshot", pairs=self._pairs)

    def settle(self) -> None:
        """Returns when the path has been empty and quiet for some milliseconds, or after three seconds.

        A moment without packets is not enough: the last delivered packet may be about to be answered.
        """
        deadline = time.monotonic() + SETTLE_TIMEOUT_S
        last = -1
        while (left := deadline - time.monotonic()) > 0:
            self._emulator.ask("idle", pairs=self._pairs, timeout_ms=round(left * 1000))
            pairs = self._emulator.ask("snapshot", pairs=self._pairs)["pairs"]
            now = sum(pair["in_packets"] for pair in pairs)
            if now == last and not any(pair["in_flight_packets"] for pair in pairs):
                return
            last = now
            time.sleep(QUIET_S)

    def finish(self) -> Suitability:
        """Ends the watch and returns the verdict."""
        flows = self._flows()
        if any(flow.sent != flow.received + flow.dropped for flow in flows.values()):
            self.settle()  # a straggler, such as the last acknowledgement of a connection that ended in between
            flows = self._flows()
        after = self._emulator.ask("snapshot", pairs=self._pairs)
        lateness = lateness_ms(self._before, after)
        disturbed = judge(self._before, after, lateness, self._limit_ms)
        disturbed = disturbed or stood_still(self._before, after, self._stall_ms)
        return Suitability(disturbed=disturbed, lateness_p99_ms=lateness, flows=flows)

    def _flows(self) -> dict[tuple[str, int], FlowCount]:
        return count_flows(self._emulator.ask("flows", a=self._local, b=self._remote)["flows"], self._local)


def lateness_ms(before: Mapping[str, Any], after: Mapping[str, Any], share: float = 0.99) -> float | None:
    """How late packets were delivered between two snapshots: a percentile, or None if there was no packet.

    Histogram buckets are half-open; inside the one that holds the percentile the values are taken as evenly spread.
    """
    edges: list[float] = [edge / 1000 for edge in after["lateness_edges_us"]]
    counts = [0] * len(edges)
    longest = 0.0
    for old, new in zip(before["pairs"], after["pairs"], strict=True):
        for bucket, (first, last) in enumerate(
            zip(old["lateness"]["buckets"], new["lateness"]["buckets"], strict=True)
        ):
            counts[bucket] += last - first
        longest = max(longest, new["lateness"]["max_ns"] / 1e6)
    total = sum(counts)
    if not total:
        return None
    wanted = share * total
    below = 0.0
    for bucket, count in enumerate(counts):
        if count and below + count >= wanted:
            high = edges[bucket + 1] if bucket + 1 < len(edges) else max(longest, edges[bucket])
            return float(edges[bucket] + (high - edges[bucket]) * (wanted - below) / count)
        below += count
    return edges[-1]


def judge(
    before: Mapping[str, Any], after: Mapping[str, Any], lateness_ms: float | None, limit_ms: float
) -> Disturbance | None:
    """Why a run between two snapshots is void, None if it is valid."""
    if lateness_ms is not None and lateness_ms > limit_ms:
        late = f"the path emulator was {lateness_ms:.1f} ms late (99th percentile; the limit is {limit_ms:.1f} ms)"
        return Disturbance(reason=VoidReason.EMULATOR_LATE, detail=late)
    return next((disturbance for _, disturbance in lost_outside(before, after)), None)


def stood_still(before: Mapping[str, Any], after: Mapping[str, Any], limit_ms: float) -> Disturbance | None:
    """Why a run is void in which the emulator did not run for so long at once; None if it did.

    It delays few packets, so no percentile of their lateness shows it. Yet all that had come meanwhile is read at one
    instant and meets the modelled queue there: packets are dropped or marked that the path would have carried.
    """
    stalls = [(0.0, "")]
    for kind in ("wakeup", "iteration"):
        old, new = before["global"][kind], after["global"][kind]
        known = (*new["recent"], *new["worst"])
        in_run = [stall["duration_ns"] / 1e6 for stall in known if stall["at_ns"] > before["monotonic_ns"]]
        stalls += [(ms, "") for ms in in_run if ms > limit_ms]
        # Many short ones push a long one out of `recent`, and longer ones before the run out of `worst`.
        counts = zip(after["lateness_edges_us"], old["histogram"]["buckets"], new["histogram"]["buckets"], strict=True)
        stalls += [(us / 1e3, "at least ") for us, first, last in counts if last > first and us >= 1e3 * limit_ms]
    longest, words = max(stalls)
    if not longest:
        return None
    detail = f"the path emulator stood still for {words}{longest:.1f} ms (the limit is {limit_ms:.1f} ms)"
    return Disturbance(reason=VoidReason.EMULATOR_LATE, detail=detail)


def lost_outside(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[tuple[int, Disturbance]]:
    """What was lost between two snapshots that no path is programmed to lose: how many packets, and where."""
    for old, new in zip(before["pairs"], after["pairs"], strict=True):
        for what in ("overflow", "write_errors"):
            if lost := new[what] - old[what]:
                detail = f"the path emulator lost {lost} packets from {new['from']} to {new['to']} ({what})"
                yield lost, Disturbance(reason=VoidReason.EMULATOR_LOST, detail=detail)
    known = {node["name"]: node["device_counters"] for node in before["nodes"]}
    for node in after["nodes"]:
        new, old = node["device_counters"], known[node["name"]]
        for what in ("tx_dropped", "rx_dropped"):
            if new is not None and old is not None and (lost := new.get(what, 0) - old.get(what, 0)):
                detail = f"the device of {node['name']} dropped {lost} packets outside the emulator ({what})"
                yield lost, Disturbance(reason=VoidReason.HOST_DROPPED, detail=detail)


def count_flows(flows: Sequence[Mapping[str, Any]], local: str) -> dict[tuple[str, int], FlowCount]:
    """Both directions of each connection added up, by transport and local port."""
    counts: dict[tuple[str, int], FlowCount] = {}
    for flow in flows:
        transport = _PROTOCOLS.get(flow["protocol"])
        if transport is None:
            continue
        key = (transport.value, int(flow["sport"] if flow["src"] == local else flow["dport"]))
        before = counts.get(key, FlowCount(sent=0, received=0, dropped=0, marked=0))
        counts[key] = FlowCount(
            sent=before.sent + flow["in_packets"],
            received=before.received + flow["delivered_packets"],
            dropped=before.dropped + flow["loss"] + flow["tail"] + flow["aqm"],
            marked=before.marked + flow["marked"],
            server_end=_server_end(flow, before.server_end, to_server=flow["src"] == local),
        )
    return counts


def _server_end(
    flow: Mapping[str, Any], before: Mapping[str, Any] | None, *, to_server: bool
) -> Mapping[str, Any] | None:
    """What one direction of a TCP connection adds to the account of the server's end."""
    if _PROTOCOLS.get(flow["protocol"]) is not Transport.TCP:
        return None
    known = before or {"syn": None, "synack": None, "ecn_sent": 0, "ce_set": 0}
    if to_server:
        return {**known, "syn": flow["syn_delivered"]}
    return {**known, "synack": flow["syn_sent"], "ecn_sent": flow["ecn_sent"], "ce_set": flow["marked"]}
