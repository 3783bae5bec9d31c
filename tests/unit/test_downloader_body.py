"""What a download costs its client: the body's hash is no part of it, waiting for a CPU is told."""

from __future__ import annotations

import hashlib
import os
import random
import time
import tracemalloc
from collections.abc import Iterator

import pytest

from downloader.programs import kernel
from downloader.programs.body import BLOCK_BYTES, KEPT_BLOCKS, QUEUED_BLOCKS, Body
from downloader.programs.kernel import Usage, parse_run_delay
from tests.lab.noise import QUIET_STEAL, TOO_NOISY, host_noise

KEPT = KEPT_BLOCKS * BLOCK_BYTES
NOISE = random.Random(1).randbytes(3 * BLOCK_BYTES)


def pieces(size: int, most: int) -> Iterator[bytes]:
    """`size` bytes in pieces as they might arrive."""
    dice = random.Random(size)
    while size > 0:
        start = dice.randrange(len(NOISE) - most)
        piece = NOISE[start : start + min(dice.randint(1, most), size)]
        size -= len(piece)
        yield piece


@pytest.mark.thorough
@pytest.mark.parametrize("told", [(False, None), (True, None), (False, 0), (True, 5), (False, 2 * BLOCK_BYTES)])
@pytest.mark.parametrize("most", [1200, 65_536, 2 * BLOCK_BYTES])
@pytest.mark.parametrize("size", [0, 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES + 7])
def test_a_body_that_is_kept(size: int, most: int, told: tuple[bool, int | None]) -> None:
    body, expected = Body(size if told[0] else None, told[1]), hashlib.sha256()
    for piece in pieces(size, most):
        body.add(piece)
        expected.update(piece)
    assert body._thread is None and body.sha256() == expected.hexdigest()


@pytest.mark.thorough
@pytest.mark.parametrize("told", [None, 7])
@pytest.mark.parametrize(("size", "is_beside"), [(KEPT, False), (KEPT + 1, True), (2 * KEPT + 7, True)])
def test_a_large_body_is_hashed_beside(size: int, is_beside: bool, told: int | None) -> None:
    body, expected = Body(None, told), hashlib.sha256()
    for piece in pieces(size, 262_144):
        body.add(piece)
        expected.update(piece)
    assert (body._thread is not None) == is_beside and body.sha256() == expected.hexdigest()


@pytest.mark.thorough
@pytest.mark.parametrize("size", [KEPT // 4, 2 * KEPT])
def test_whoever_downloads_pays_for_no_hash(size: int) -> None:
    """What a body costs the thread that takes it in is a copy."""
    block, body = bytes(16_384), Body(None)
    before = Usage.now()
    for _ in range(size // len(block)):
        body.add(block)
    paid = Usage.now().cpu_since(before)
    whole = b"\1" * size
    before = Usage.now()
    hashlib.sha256(whole)
    assert paid < Usage.now().cpu_since(before) / 2
    assert body.sha256() == hashlib.sha256(bytes(size)).hexdigest()


@pytest.mark.thorough
@pytest.mark.parametrize(("told", "blocks"), [(None, KEPT_BLOCKS + QUEUED_BLOCKS), (1_000_000, 1), (BLOCK_BYTES, 2)])
def test_memory_is_bounded_and_there_before_the_clock_starts(told: int | None, blocks: int) -> None:
    block = bytes(range(256)) * (BLOCK_BYTES // 256)
    tracemalloc.start()
    try:
        body = Body(None, told)
        at_first = tracemalloc.get_traced_memory()[0]
        for _ in range(3 * KEPT_BLOCKS):
            body.add(block)
        assert body.sha256()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert at_first == pytest.approx(blocks * BLOCK_BYTES, rel=0.01)
    assert peak < (KEPT_BLOCKS + QUEUED_BLOCKS) * BLOCK_BYTES + 100_000


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("95125 1059698 5\n", 0.001059698),
        ("0 0 1\n", 0.0),
        ("0 0 0\n", None),
        ("", None),
        ("1 2\n", None),
        ("1 -2 3\n", None),
        ("1 x 3\n", None),
    ],
)
def test_a_line_of_schedstat(line: str, expected: float | None) -> None:
    assert parse_run_delay(line) == expected


def test_unknown_is_not_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "_SCHEDSTAT", kernel._SCHEDSTAT.with_name("nosuch"))
    before = Usage.now()
    assert Usage.now().waited_since(before) is None and Usage.now().cpu_since(before) >= 0


def test_a_thread_that_waits_for_a_cpu_says_so() -> None:
    """Two programs that never rest on one CPU: each waits for about half of the time."""
    allowed = os.sched_getaffinity(0)
    one = min(allowed)
    pid = os.fork()
    if pid == 0:
        os.sched_setaffinity(0, {one})
        while True:
            pass
    try:
        os.sched_setaffinity(0, {one})
        with host_noise() as noise:
            began, before = time.monotonic(), Usage.now()
            while time.monotonic() < began + 0.5:
                pass
            now, took_s = Usage.now(), time.monotonic() - began
    finally:
        os.sched_setaffinity(0, allowed)
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    waited_s = now.waited_since(before)
    assert waited_s is not None and waited_s > 0.1
    known_s = waited_s + now.cpu_since(before)
    if noise[0].steal > QUIET_STEAL and known_s < took_s - 0.1:
        pytest.skip(
            f"{TOO_NOISY}: {known_s:.3f} of {took_s:.3f} s are known, and what is stolen is in neither; {noise[0]}"
        )
    assert known_s == pytest.approx(took_s, abs=0.1)
