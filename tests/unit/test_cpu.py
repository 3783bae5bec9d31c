"""Keeping CPUs awake and timing their wake-ups, as far as that needs no host."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.errors import PlaceError
from vantage.lab.calibrate import round_trip_noise
from vantage.linux import cpu
from vantage.linux.cpu import CpusAwake, Method, Wakeups


def test_percentiles_are_by_nearest_rank() -> None:
    assert cpu.summarise([float(n) for n in range(1, 101)]) == Wakeups(count=100, p50_us=51.0, p99_us=100.0)
    assert cpu.summarise([7.0]) == Wakeups(count=1, p50_us=7.0, p99_us=7.0)


def test_sleeps_are_timed() -> None:
    found = cpu.measure_wakeups(0.1)
    assert found.count >= 3 and 0 < found.p50_us <= found.p99_us


def test_what_stands_in_the_place_of_the_device_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "cpu_dma_latency"
    path.write_bytes(b"mine")
    with pytest.raises(OSError, match="not the kernel's device"):
        cpu.open_latency_device(path)
    assert path.read_bytes() == b"mine"
    with pytest.raises(OSError, match="not the kernel's device"):
        cpu.open_latency_device(Path("/dev/null"))
    with pytest.raises(FileNotFoundError):
        cpu.open_latency_device(tmp_path / "missing")


def test_without_an_idle_driver_the_device_is_of_no_use(tmp_path: Path) -> None:
    path = tmp_path / "current_driver"
    with pytest.raises(OSError, match="no cpuidle driver"):
        cpu.require_idle_driver(path)
    path.write_text("none\n")
    with pytest.raises(OSError, match="no cpuidle driver"):
        cpu.require_idle_driver(path)
    path.write_text("haltpoll\n")
    cpu.require_idle_driver(path)


def test_where_nothing_keeps_them_awake_both_reasons_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "driver").write_text("haltpoll\n")
    monkeypatch.setattr(cpu, "IDLE_DRIVER", tmp_path / "driver")
    monkeypatch.setattr(cpu, "LATENCY_DEVICE", tmp_path / "missing")

    def nowhere() -> str:
        raise PlaceError("pathem is not installed")

    monkeypatch.setattr(cpu, "find_pathem", nowhere)
    with cpu.keep_cpus_awake() as awake:
        assert awake.method is Method.NONE
        assert (
            awake.reason == f"{tmp_path / 'missing'} cannot be used: No such file or directory; pathem is not installed"
        )
        assert awake.sentence().startswith("CPUs are not kept awake (")
    monkeypatch.setattr(cpu, "find_pathem", lambda: "/bin/false")
    with cpu.keep_cpus_awake() as awake:
        assert awake.method is Method.NONE and "/bin/false --spin ended without an error message" in (
            awake.reason or ""
        )


def test_the_emulators_words_are_understood() -> None:
    said = {"method": "spinners", "reason": "it is gone"}
    assert cpu.parse_cpus_awake(said) == CpusAwake(method=Method.SPINNERS, reason="it is gone")


LATE = Wakeups(count=230, p50_us=120.0, p99_us=300.0)
PROMPT = Wakeups(count=230, p50_us=15.0, p99_us=60.0)


def noise(excess_ms: float, wakeups: Wakeups = PROMPT, **changes: float) -> str | None:
    calm = {"late_p50_ms": 0.0, "late_p99_ms": 0.1, "steal": 0.0}
    return round_trip_noise(excess_ms, wakeups=wakeups, **{**calm, **changes})


@pytest.mark.parametrize(
    ("excess_ms", "wakeups", "changes", "told"),
    [
        (0.3, PROMPT, {}, None),
        (0.3, LATE, {}, "this host wakes 0.12 ms late"),
        (0.5, LATE, {}, None),
        (0.5, PROMPT, {"late_p50_ms": 0.4}, "this host wakes 0.40 ms late"),
        (0.5, PROMPT, {"steal": 0.1}, "other guests took 10%"),
        (3.0, PROMPT, {"late_p99_ms": 7.0}, "the emulator was 7.0 ms late"),
        (float("inf"), LATE, {"steal": 0.1}, None),
    ],
)
def test_only_what_the_host_explains_is_noise(
    excess_ms: float, wakeups: Wakeups, changes: dict[str, float], told: str | None
) -> None:
    found = noise(excess_ms, wakeups, **changes)
    assert found is None if told is None else (found or "").startswith(told)
