"""The verdict on a measurement run, and settings as text."""

from __future__ import annotations

import copy
import itertools
import math
import socket
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.domain import RouteAttribute, Sysctl, VoidReason
from core.errors import LabError, PlaceError
from core.system.place import FlowCount
from core.system.process import Completed
from vantage.lab import place as lab_place
from vantage.lab.calibrate import unprogrammed
from vantage.lab.pathem import Emulator
from vantage.lab.place import LabPlace
from vantage.lab.watch import LabWatch, count_flows, judge, lateness_ms, stood_still
from vantage.linux import environment, settings, sysctls
from vantage.linux import namespace as linux

EDGES_US = [0, 1000, 5000, 10000]


def snapshot(*buckets: int) -> dict[str, Any]:
    pair: dict[str, Any] = {"from": "a", "to": "b", "in_packets": 9, "overflow": 0, "write_errors": 0}
    pair["lateness"] = {"buckets": list(buckets), "max_ns": 30_000_000}
    node = {"name": "a", "device_counters": {"tx_dropped": 0, "rx_dropped": 0}}
    return {"lateness_edges_us": EDGES_US, "pairs": [pair], "nodes": [node]}


def test_the_percentile_is_that_of_the_interval() -> None:
    assert lateness_ms(snapshot(5, 5, 5, 5), snapshot(5, 5, 5, 5)) is None
    assert lateness_ms(snapshot(0, 0, 9, 9), snapshot(100, 0, 9, 9)) == pytest.approx(0.99)
    assert lateness_ms(snapshot(0, 0, 0, 0), snapshot(98, 0, 2, 0)) == pytest.approx(7.5)
    assert lateness_ms(snapshot(0, 0, 0, 0), snapshot(0, 0, 0, 1)) == pytest.approx(10 + 0.99 * 20)


@given(st.lists(st.integers(0, 1000), min_size=4, max_size=4))
def test_the_percentile_lies_in_the_bucket_that_holds_it(counts: list[int]) -> None:
    value = lateness_ms(snapshot(0, 0, 0, 0), snapshot(*counts))
    if value is None:
        assert not any(counts)
        return
    below = sum(count for count, edge in zip(counts, EDGES_US[1:], strict=False) if edge / 1000 <= value)
    assert below <= 0.99 * sum(counts) + 1e-6


def test_lateness_above_the_limit_voids() -> None:
    one = snapshot(0, 0, 0, 0)
    assert judge(one, one, 5.0, 5.0) is None
    assert judge(one, one, None, 5.0) is None
    assert "5.1 ms late" in str(judge(one, one, 5.1, 5.0))


def at(now_ms: int, *stalls: tuple[float, float]) -> dict[str, Any]:
    """What a snapshot says of stalls: when they ended and how long they took [ms]."""
    recent = [{"at_ns": int(at_ms * 1e6), "duration_ns": int(ms * 1e6)} for at_ms, ms in stalls]
    edges = [*EDGES_US, math.inf]
    buckets = [sum(low <= ms * 1000 < high for _, ms in stalls) for low, high in itertools.pairwise(edges)]
    worst = sorted(recent, key=lambda stall: -stall["duration_ns"])[:8]
    none = {"recent": [], "worst": [], "histogram": {"buckets": [0] * len(EDGES_US)}}
    wakeup = {"recent": recent[-64:], "worst": worst, "histogram": {"buckets": buckets}}
    return {
        "monotonic_ns": now_ms * 1_000_000,
        "lateness_edges_us": EDGES_US,
        "global": {"wakeup": wakeup, "iteration": none},
    }


def test_an_emulator_that_stood_still_voids() -> None:
    """27 of 3,400 packets were late, so the 99th percentile was 0.01 ms; a modelled queue dropped 5 for it."""

    assert stood_still(at(100), at(200), 5.0) is None
    assert stood_still(at(100, (90, 8)), at(200, (90, 8), (150, 4)), 5.0) is None, "before the run, or short"
    disturbed = stood_still(at(100), at(200, (110, 8), (150, 2)), 5.0)
    assert disturbed and disturbed.reason is VoidReason.EMULATOR_LATE and "stood still for 8.0 ms" in disturbed.detail
    after = at(200)
    after["global"]["iteration"]["recent"] = [{"at_ns": 150_000_000, "duration_ns": 6_000_000}]
    assert stood_still(at(100), after, 5.0)


def test_many_short_stalls_do_not_hide_a_long_one() -> None:
    """The emulator remembers the last 64 of 1 ms and more, the 8 longest of all, and how many there were of each."""
    short = [(200.0 + number, 1.2) for number in range(64)]
    for long_ms, limit_ms in ((800, 150.0), (99, 75.0), (44, 11.0)):
        known = stood_still(at(100), at(900, (110, long_ms), *short), limit_ms)
        assert known and f"stood still for {long_ms:.1f} ms" in known.detail
    longer = [(10.0 + number, 900) for number in range(8)]  # before the run
    hidden = stood_still(at(100, *longer), at(900, *longer, (110, 44), *short), 9.0)
    assert hidden and hidden.detail == "the path emulator stood still for at least 10.0 ms (the limit is 9.0 ms)"
    after = at(900, *longer, (110, 44), *short)
    assert stood_still(at(100, *longer), after, 10.0), "a bucket that begins at the limit is beyond it"
    assert stood_still(at(100, *longer), after, 11.0) is None, "it may have been 10.5 ms"
    assert stood_still(at(100), at(900, (110, 8), *short), 9.0) is None
    assert stood_still(at(100, (90, 44)), at(900, (90, 44), *short), 9.0) is None, "before the run"


@pytest.mark.parametrize(
    ("queue_ms", "stall_ms", "is_void"), [(200, 51, True), (200, 24, False), (30, 14, False), (30, 16, True)]
)
def test_a_stall_of_half_a_round_trip_voids_whatever_the_queue(queue_ms: float, stall_ms: float, is_void: bool) -> None:
    """The queue holds what comes meanwhile, but all of it is late: 2 round trips with a queue of 4."""
    pair = {"from": "a", "to": "b", "in_packets": 9, "overflow": 0, "write_errors": 0}
    same = {"pairs": [pair | {"lateness": {"buckets": [0] * 4, "max_ns": 0}}], "nodes": []}
    snapshots = iter([at(100) | same, at(900, (500, stall_ms)) | same])
    answers: Any = {"forget_flows": dict, "flows": lambda: {"flows": []}, "snapshot": lambda: next(snapshots)}
    emulator: Any = SimpleNamespace(ask=lambda order, **_: answers[order]())
    found = LabWatch(emulator, (("a", "1.1.1.1"), ("b", "1.1.1.2")), rtt_ms=50, queue_ms=queue_ms).finish()
    assert (found.disturbed is not None) is is_void


def test_unprogrammed_drops_void() -> None:
    before = snapshot(0, 0, 0, 0)
    after = copy.deepcopy(before)
    after["nodes"][0]["device_counters"]["tx_dropped"] = 3
    assert "the device of a dropped 3 packets" in str(judge(before, after, 0.0, 5.0))
    after = copy.deepcopy(before)
    after["pairs"][0]["write_errors"] = 2
    assert "lost 2 packets from a to b (write_errors)" in str(judge(before, after, 0.0, 5.0))


def test_calibration_counts_all_that_voids_a_run() -> None:
    before = snapshot(0, 0, 0, 0)
    after = copy.deepcopy(before)
    assert unprogrammed(before, after).good
    after["pairs"][0] |= {"in_packets": 109, "overflow": 1, "write_errors": 2}
    after["nodes"][0]["device_counters"] = {"tx_dropped": 4, "rx_dropped": 8}
    found = unprogrammed(before, after)
    assert (found.good, found.measured) == (False, "15 of 100 packets")
    after = copy.deepcopy(before)
    after["nodes"][0]["device_counters"]["rx_dropped"] = 1
    assert not unprogrammed(before, after).good


def test_both_directions_of_a_connection_are_one() -> None:
    def flow(src: str, sport: int, dport: int, protocol: int, count: int, lost: int) -> dict[str, Any]:
        found = {"src": src, "sport": sport, "dport": dport, "protocol": protocol, "marked": 1, "tail": 0, "aqm": 0}
        syns = {"syn_sent": f"{src} sent", "syn_delivered": f"{src} delivered", "ecn_sent": count}
        return {**found, **syns, "in_packets": count, "delivered_packets": count - lost, "loss": lost}

    at_server = {"syn": "c delivered", "synack": "s sent", "ecn_sent": 20, "ce_set": 1}
    flows = [flow("c", 5, 443, 6, 10, 0), flow("s", 443, 5, 6, 20, 3), flow("c", 5, 443, 17, 7, 0)]
    assert count_flows([*flows, flow("c", 0, 0, 1, 4, 0)], "c") == {
        ("tcp", 5): FlowCount(sent=30, received=27, dropped=3, marked=2, server_end=at_server),
        ("quic", 5): FlowCount(sent=7, received=7, dropped=0, marked=1),
    }


def test_one_field_of_a_setting_changes() -> None:
    wanted = [("r", 2, "9"), ("r", 1, "8"), ("e", None, "1")]
    assert linux.new_values({"r": "1 2 3", "e": "0"}, wanted) == {"r": "1 8 9", "e": "1"}
    with pytest.raises(PlaceError, match="r has 1 numbers, none is number 2"):
        linux.new_values({"r": "1"}, wanted[:1])


def test_where_the_kernel_refuses_one_setting_no_other_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was before reaches nobody then, so nobody could restore it."""
    first = {"net.a": "1", "net.b": "2", settings.NO_METRICS: "1"}
    present = dict(first)

    def write(name: str, value: str) -> None:
        if name == "net.b":
            raise PlaceError("the kernel refuses net.b")
        present[name] = value

    def run(argv: Sequence[str], *, timeout_s: float = 60.0, stdin: str | None = None) -> Completed:
        said = ""
        for name, _, value in (change.partition("=") for change in argv[2:] if argv[1] == "-qw"):
            try:
                write(name, value)
            except PlaceError:
                said = "sysctl: permission denied on key"
        shown = "".join(f"{name} = {value}\n" for name, value in present.items())
        return Completed(argv=tuple(argv), returncode=0, stdout=shown, stderr=said)

    wanted = [Sysctl(name=name, value="9") for name in ("net.a", "net.b")]
    with pytest.raises(PlaceError, match=r"the kernel refuses net\.a=9 net\.b=9"):
        linux.apply_settings(run, wanted)
    assert present == first
    monkeypatch.setattr(sysctls, "read", present.get)
    monkeypatch.setattr(sysctls, "write", write)
    with pytest.raises(PlaceError, match=r"the kernel refuses net\.b"):
        settings.change([(each.name, each.field, each.value) for each in wanted], ["net.a", "net.b"])
    assert present == first


def test_sysctl_output_is_read() -> None:
    assert linux.parse_sysctls("net.a = 4096\t131072\t6\nnet.b =\nwarning\n") == {"net.a": "4096 131072 6", "net.b": ""}


def test_a_route_of_a_router_advertisement_is_left_and_one_beside_it_has_the_attribute() -> None:
    """Changed, it would no longer expire; `ip route` does not take what `ip route show` says of its remaining time."""
    shown = "default via fe80::1 dev eth0 proto ra metric 1024 expires 1799sec hoplimit 64 pref medium"
    asked = list[str | None]()

    def run(argv: Sequence[str], *, timeout_s: float = 60.0, stdin: str | None = None) -> Completed:
        asked.append(stdin)
        return Completed(argv=tuple(argv), returncode=0, stdout=shown if "-6" in argv else "", stderr="")

    linux.apply_settings(run, [RouteAttribute(name="initrwnd", value="20")])
    beside = "::/0 via fe80::1 dev eth0 hoplimit 64 pref medium initrwnd 20 proto 214 metric 1"
    assert asked[-1] == f"route replace {beside}\ntcp_metrics flush\n"


def test_route_attributes_are_set_kept_and_removed() -> None:
    route = linux.parse_route("198.18.0.0/15 dev tun0 scope link linkdown initcwnd 10 congctl cubic \\ ")
    assert route == ("198.18.0.0/15", "dev", "tun0", "scope", "link", "initcwnd", "10", "congctl", "cubic")
    wider = linux.with_attributes(route, [RouteAttribute(name="window", value="65535")])
    assert wider == (*route, "window", "65535")
    again = linux.with_attributes(wider, [RouteAttribute(name="window", value="7")])
    assert again == (*route, "window", "7")
    assert linux.with_attributes(again, [RouteAttribute(name="window", value=None)]) == route


def test_a_labs_record_has_what_its_kernel_has_for_all_namespaces(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # A namespace does not show these; without them nobody sees that two labs had others.
    def seen(argv: Sequence[str], *, timeout_s: float = 60.0, stdin: str | None = None) -> Completed:
        return Completed(argv=tuple(argv), returncode=0, stdout="net.ipv4.tcp_sack = 1\n", stderr="")

    (tmp_path / "hystart").write_text("1\n")
    monkeypatch.setattr(environment, "CUBIC", tmp_path)
    monkeypatch.setattr(environment, "host_sysctls", lambda: {"net.core.default_qdisc": "fq"})
    monkeypatch.setattr(LabPlace, "run", staticmethod(seen))
    monkeypatch.setattr(lab_place, "Emulator", lambda _: SimpleNamespace(timing=lambda _: {}, close=lambda: None))
    plan = SimpleNamespace(addresses={"dns": SimpleNamespace(ipv4="198.18.0.53")}, ipv6=True, name="small")
    plan.topology_sha256, plan.versions, plan.emulator = "", {}, ()
    state: dict[str, Any] = {"rootless": False}
    folder: Any = SimpleNamespace(ca=tmp_path, socket=tmp_path)
    place = LabPlace(folder, "MUC", state=state, plan=cast(Any, plan), paths={}, prober=None)
    record = place.environment()
    assert record["sysctls"] == {"net.core.default_qdisc": "fq", "net.ipv4.tcp_sack": "1"}
    assert record["tcp_cubic"] == {"hystart": "1"}


def test_an_emulator_that_ends_in_the_middle_of_an_answer_has_ended(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "sock"))
        listening.listen()
        emulator = Emulator(tmp_path / "sock")
        peer, _ = listening.accept()
        peer.sendall(b'{"schema": 1, "glob')
        peer.shutdown(socket.SHUT_WR)
        with pytest.raises(LabError, match="has ended"):
            emulator.ask("snapshot")
        emulator.close()
        peer.close()
