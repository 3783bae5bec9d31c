"""The tests' own helper for busy hosts: it never passes without a good measurement, and it ends."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.lab.noise import BESIDE_OTHERS, PATIENCE_S, TOO_NOISY, Noise, measured, skip_if_cut, skip_if_void


class Clock:
    def __init__(self, per_attempt_s: float) -> None:
        self.now = 0.0
        self.step = per_attempt_s

    def __call__(self) -> float:
        return self.now

    def pause(self) -> None:
        self.now += self.step


def run(results: Iterator[str], *, noise: str | None, clock: Clock) -> str:
    return measured(
        lambda: next(results),
        lambda found: [] if found == "right" else [found],
        excuse=lambda _: noise,
        clock=clock,
        pause=clock.pause,
    )


def test_a_good_measurement_is_taken() -> None:
    assert run(iter(["right"]), noise="busy", clock=Clock(1)) == "right"


def test_beside_others_a_second_attempt_is_the_last_and_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BESIDE_OTHERS, "1")
    assert run(iter(["too slow", "right"]), noise="busy", clock=Clock(1)) == "right"
    with pytest.raises(pytest.fail.Exception, match="too slow; busy"):
        run(iter(["too slow"] * 2), noise="busy", clock=Clock(1))


def test_what_is_wrong_on_a_quiet_host_fails_at_once() -> None:
    results = iter(["too slow", "right"])
    with pytest.raises(pytest.fail.Exception, match=r"^too slow$"):
        run(results, noise=None, clock=Clock(1))
    assert next(results) == "right"


def test_on_a_busy_host_it_tries_again() -> None:
    assert run(iter(["too slow", "too slow", "right"]), noise="busy", clock=Clock(20)) == "right"


def test_in_the_end_a_busy_host_is_a_reason_to_skip() -> None:
    attempts = 0

    def always() -> Iterator[str]:
        nonlocal attempts
        while True:
            attempts += 1
            yield "too slow"

    clock = Clock(25)
    with pytest.raises(pytest.skip.Exception, match=r"^host too noisy: too slow; busy$"):
        run(always(), noise="busy", clock=clock)
    assert clock.now <= PATIENCE_S + 25 and attempts == 4


@pytest.mark.parametrize(("code", "pressure", "skips"), [(-14, 0.5, True), (-14, 0.0, False), (130, 0.5, False)])
def test_only_a_busy_host_may_need_more_time_than_a_campaign_has(code: int, pressure: float, skips: bool) -> None:
    with pytest.raises(pytest.skip.Exception, match=TOO_NOISY) if skips else contextlib.nullcontext():
        skip_if_cut(code, Noise(pressure=pressure, steal=0.0, idle=0.5))


@pytest.mark.parametrize(
    "complaint",
    [
        "upshift: out: 1 of 4 measurement runs are not usable: emulator late; run again on a quieter host",
        "upshift: out: 2 of 4 measurement runs are not usable: emulator late, port reused; run again",
        "no route",
    ],
)
@pytest.mark.parametrize("code", [0, 1, 2])
def test_only_void_runs_are_the_host_s(code: int, complaint: str) -> None:
    is_void = code == 1 and complaint.endswith("a quieter host")
    with pytest.raises(pytest.skip.Exception, match=TOO_NOISY) if is_void else contextlib.nullcontext():
        skip_if_void(code, complaint)
