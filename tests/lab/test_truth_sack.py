"""Where theory is sharp about SACK: 20 Mbit/s, 40 ms, a drop-tail queue of 50 kB, 4 MB.

Slow start overflows the queue (half a bandwidth-delay product), so that a whole round of packets has gaps. With SACK
the server sends what is missing in one round trip; without, one segment per round trip (RFC 6582), or a timeout. In
each measurement run ALL is at least 1.4 times as fast as WS. How much the server sends again is printed only:
theory does not say who sends less.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from core.domain import Outcome
from tests.cells import Repeats
from tests.lab.campaigns import ALL, WS, Bench, Measured, open_bench

pytestmark = [pytest.mark.lab, pytest.mark.measures]

FASTER = 1.4


@pytest.fixture(scope="module")
def bench(lab_host: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with open_bench("truth-sack", tmp_path_factory.mktemp("sack")) as bench:
        yield bench


def wrong_pairs(found: Measured, times: int) -> list[str]:
    """Measurement runs in which SACK did not do what it must."""
    without, with_sack = found.of("WS"), found.of("ALL")
    assert len(without) == len(with_sack) == times
    wrong = []
    for slow, fast in zip(without, with_sack, strict=True):
        assert slow.download.iteration == fast.download.iteration
        assert slow.download.outcome == fast.download.outcome == Outcome.OK
        assert slow.download.treatment_ok and fast.download.treatment_ok
        assert slow.download.lab_dropped and fast.download.lab_dropped, "the queue overflows in both"
        assert slow.kpis["sack_blocks"] == slow.kpis["sack_segments"] == 0
        assert slow.kpis["limiter"] == "congestion" and slow.number("transfer"), "what came again is part of the answer"
        assert 0 < (fast.number("sack_segments") or 0) <= (fast.number("sack_blocks") or 0)
        assert slow.download.last_byte_s and fast.download.last_byte_s
        ratio = slow.download.last_byte_s / fast.download.last_byte_s
        again = [record.number("true_retransmissions") or 0.0 for record in (slow, fast)]
        again_bytes = [record.number("retransmitted_bytes") or 0.0 for record in (slow, fast)]
        told = (
            f"run {slow.download.iteration}: WS {slow.download.last_byte_s:.2f} s, "
            f"ALL {fast.download.last_byte_s:.2f} s, ratio {ratio:.2f}; "
            f"sent again {again[0]:g} and {again[1]:g} segments, {again_bytes[0]:g} and "
            f"{again_bytes[1]:g} bytes; dropped {slow.download.lab_dropped} and {fast.download.lab_dropped}"
        )
        print(told)
        if ratio < FASTER:
            wrong.append(told)
    return wrong


def test_sack_repairs_an_overflow_faster(bench: Bench, repeats: Repeats) -> None:
    times = repeats(quick=1, soak=5)
    bench.judge(
        lambda: bench.measure("sack", {"WS": WS, "ALL": ALL}, times=times), lambda found: wrong_pairs(found, times)
    )
