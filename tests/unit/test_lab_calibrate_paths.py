"""What `lab calibrate` sends, against the laws of the paths that it sends over."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest

from tests.topologies import server, topology
from vantage.lab import calibrate
from vantage.lab.calibrate import (
    OVERLOAD,
    RATE_TOLERANCE,
    Calibration,
    Check,
    burst_of,
    is_kept_busy,
    is_rate,
    measurable,
    sending_ms,
)
from vantage.lab.topology import MTU, PathSpec
from vantage.lab.topology_file import load_topology


@pytest.mark.parametrize(
    "path",
    [
        PathSpec(rtt_ms=10, rate_mbit=20),
        PathSpec(rtt_ms=10, rate_mbit=20, queue=6000),
        PathSpec(rtt_ms=10, rate_mbit=20, ecn_threshold_bytes=15_000),
        PathSpec(rtt_ms=10, rate_mbit=20, ecn_threshold_bytes=6000),
        PathSpec(rtt_ms=10, rate_mbit=20, queue=30_000, ecn_threshold_bytes=100_000),
    ],
)
def test_bursts_keep_the_path_busy(path: PathSpec) -> None:
    assert share_of_rate(path) == pytest.approx(1, abs=RATE_TOLERANCE)


@pytest.mark.parametrize(
    "law",
    [
        *({"queue": size} for size in (1000, 1500, 2999, 3000, 4499, 6000)),
        *({"queue": 30_000, "ecn_threshold_bytes": size} for size in (1000, 1500, 1501, 3000)),
    ],
)
def test_rates_are_measured_where_a_path_can_be_kept_busy(law: dict[str, int]) -> None:
    path = PathSpec(rtt_ms=10, rate_mbit=20, **law)
    assert is_kept_busy(path) is (abs(share_of_rate(path) - 1) <= RATE_TOLERANCE)
    lab = SimpleNamespace(topology=SimpleNamespace(server=[SimpleNamespace(paths={"V": path})]))
    with mock.patch("vantage.lab.calibrate.measurable", lambda topology: topology.server):
        found = list(Calibration._distinct_rates(SimpleNamespace(_lab=lab)))  # type: ignore[arg-type]
    assert bool(found) is is_kept_busy(path)


def share_of_rate(path: PathSpec) -> float:
    """Packets that are not ECN-capable, over drop-tail and AQM (docs/design/pathem.md), in bytes and their times."""
    burst, now, ends, passed, sent = burst_of(path), 0.0, [0.0], 0, 0
    while passed < 2000 and sent < 10_000:
        now += burst * MTU / OVERLOAD
        sent += burst
        for _ in range(burst):
            waiting = MTU * sum(end > now for end in ends[-200:])
            if waiting + MTU > path.queue_bytes or waiting >= (path.ecn_threshold_bytes or path.queue_bytes):
                continue
            ends.append(max(now, ends[-1]) + MTU)
            passed += 1
    return passed * MTU / max(now, ends[-1])


def test_an_echo_request_takes_its_time_on_a_slow_path() -> None:
    """By pathem's law: departure = arrival + length x 8 / rate, in each direction."""
    assert sending_ms(PathSpec(rtt_ms=30, rate_mbit=0.1), uplink_mbit=100) == pytest.approx(4.16 + 0.00416)
    assert sending_ms(PathSpec(rtt_ms=30, rate_mbit=100), uplink_mbit=1) == pytest.approx(0.00416 + 0.416)


@pytest.mark.parametrize("rate_mbit", [0.01, 0.1, 0.128, 0.3, 20.0])
def test_a_slow_path_is_measured_in_whole_packets(rate_mbit: float) -> None:
    packet_mbit = MTU * 8e-6
    packets = rate_mbit / packet_mbit  # per second
    assert all(is_rate(count * packet_mbit, rate_mbit) for count in (math.floor(packets), math.ceil(packets)))
    assert not is_rate((packets * 1.05 + 2) * packet_mbit, rate_mbit)


def test_only_nodes_whose_kernel_has_the_addresses_are_measured(tmp_path: Path) -> None:
    own_stack = server("own", "www.own.example", more='web_server = "smoltcp"')
    broken = server("broken", "www.broken.example", more='fault = "reset"')
    path = tmp_path / "t.toml"
    path.write_text(topology("t", own_stack, broken, server("s", "www.s.example")))
    assert [each.name for each in measurable(load_topology(path))] == ["s"]


def test_a_loss_pattern_is_measured_where_nothing_else_drops(tmp_path: Path) -> None:
    lossy = "rtt_ms = 6, rate_mbit = 50, loss_percent = 1"
    path = tmp_path / "t.toml"
    limited = server("limited", "www.limited.example", path=f"{lossy}, packets_per_rtt = 4")
    path.write_text(topology("t", limited, server("s", "www.s.example", path=lossy)))
    lab = SimpleNamespace(topology=load_topology(path))
    found = Calibration._lossy(SimpleNamespace(_lab=lab))  # type: ignore[arg-type]
    assert [(vantage, each.name) for vantage, each in found] == [("V", "s")]


@pytest.mark.parametrize(
    ("counted", "noise"),
    [
        ({}, None),
        ({"aqm": 7}, "the sender's backlog overflowed the queue"),
        ({"tail": 7}, "the sender's backlog overflowed the queue"),
        ({"overflow": 7}, "the path emulator lost 7 packets from s to V (overflow)"),
    ],
)
def test_losses_that_the_host_explains_are_noise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counted: dict[str, int], noise: str | None
) -> None:
    law = "rtt_ms = 6, rate_mbit = 20, loss_percent = 1, ecn_threshold_bytes = 15000"
    check = lost(tmp_path, monkeypatch, law, range(3, 12), counted)
    assert (check.good, check.measured, check.noise) == (False, "9, 7 differ", noise)


@pytest.mark.parametrize(("rate_mbit", "sent", "idle_s"), [(0.25, 625, 1), (0.05, 125, 4.8)])
def test_packets_that_a_slow_path_had_no_time_for_are_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rate_mbit: float, sent: int, idle_s: float
) -> None:
    asked: list[Sequence[str]] = []
    law = f"rtt_ms = 50, rate_mbit = {rate_mbit}, loss_percent = 1"
    check = lost(tmp_path, monkeypatch, law, (3, 8), {}, sent=sent, asked=asked)
    assert (check.good, check.programmed, check.measured) == (True, f"2 of {sent}", "2, 0 differ")
    collect, selftest = asked
    assert float(collect[collect.index("--idle-s") + 1]) == pytest.approx(idle_s), "ten packets in a row are not lost"
    assert selftest[-1] == str(sent)


def lost(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    law: str,
    numbers: Collection[int],
    counted: Mapping[str, int],
    *,
    sent: int = 1000,
    asked: list[Sequence[str]] | None = None,
) -> Check:
    """The comparison of losses where packets 3 and 8 are to be lost, and these were."""
    path = tmp_path / "t.toml"
    path.write_text(topology("t", server("s", "www.s.example", path=law)))
    pair = {"from": "s", "to": "V", "tail": 2, "aqm": 2, "overflow": 0, "write_errors": 0}
    snapshots = iter([pair, {**pair, **{name: pair[name] + more for name, more in counted.items()}}])  # type: ignore[operator]

    def ask(order: str, **_: object) -> dict[str, object]:
        return {"pairs": [next(snapshots)], "nodes": []} if order == "snapshot" else {}

    plan = SimpleNamespace(addresses={name: SimpleNamespace(ipv4=name) for name in ("V", "s")}, emulator=["pathem"])
    lab = SimpleNamespace(topology=load_topology(path), plan=plan, place=lambda name: name)
    programmed = SimpleNamespace(check=lambda **_: SimpleNamespace(stdout="[3, 8]"))
    asked = [] if asked is None else asked

    def start_probe(_: object, *arguments: str) -> mock.MagicMock:
        asked.append(arguments)
        return mock.MagicMock()

    def run(argv: Sequence[str]) -> SimpleNamespace:
        asked.append(argv)
        return programmed

    monkeypatch.setattr(calibrate, "start_probe", start_probe)
    monkeypatch.setattr(calibrate, "wait_ready", lambda _: None)
    monkeypatch.setattr(calibrate, "probe", lambda *_: {"sent": sent})
    monkeypatch.setattr(calibrate, "read_answer", lambda _: {"numbers": [n for n in range(sent) if n not in numbers]})
    monkeypatch.setattr("vantage.lab.calibrate.process.run", run)
    this = SimpleNamespace(_lab=lab, _emulator=SimpleNamespace(ask=ask), _quick=True)
    return Calibration.loss(this, "V", lab.topology.server[0])  # type: ignore[arg-type]
