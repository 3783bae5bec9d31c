"""Probers over pipes: real processes that answer, die, and do not read."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import struct
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from unittest import mock

import pytest

from core.errors import PlaceError
from core.outreach.blocks import BlockLists
from core.outreach.pace import Lanes, TokenBucket
from core.system import process
from core.system.process import Child
from survey.access import Access, NotAskedError
from survey.iw import wire
from survey.programs import MOST_CRASHES, MOST_WAITING_BYTES, ProberPool, ProberProgram

REQUEST, REPLY = struct.Struct("=II"), struct.Struct("=IIQ")

DOUBLER = """
import os, struct, sys
kind, marker = sys.argv[1], sys.argv[2]
print("ready" if kind != "refuses" else "not here", flush=True)
if kind == "sleeps":
    import time; time.sleep(60.0)  # longer than the test on any host: it is killed
while data := sys.stdin.buffer.read(8):
    number, value = struct.unpack("=II", data)
    with open(marker, "a") as log:
        log.write(f"{value}\\n")
    if kind == "dies" and value % 50 == 49 and open(marker).read().split().count(str(value)) == 1:
        os._exit(3)
    if kind == "poisoned" and value == 7:
        os._exit(3)
    sys.stdout.buffer.write(struct.pack("=IIQ", number, os.getpid(), 2 * value))
    sys.stdout.buffer.flush()
"""
"""Doubles numbers. `dies` at every 50th number that it sees for the first time; `poisoned` at every 7."""


def program(kind: str, marker: Path, *, padding: int = 0) -> ProberProgram[int, tuple[int, int]]:
    def decode(data: bytes) -> Iterator[tuple[int, tuple[int, int]]]:
        return ((number, (pid, value)) for number, pid, value in REPLY.iter_unpack(data))

    def greeted(line: bytes) -> None:
        if line != b"ready\n":
            raise PlaceError("the prober could not be started")

    return ProberProgram(
        argv=(sys.executable, "-c", DOUBLER, kind, str(marker)),
        encode=REQUEST.pack,
        reply_bytes=REPLY.size,
        decode=decode,
        greeted=greeted,
    )


def start(argv: Sequence[str]) -> Child:
    return process.start(argv, stdin=True, stdout=True, binary=True)


def test_many_requests_by_several_processes(tmp_path: Path) -> None:
    async def work() -> None:
        async with ProberPool(program("works", tmp_path / "log"), start, count=3) as programs:
            replies = await asyncio.gather(*(programs.ask(n) for n in range(1, 2_001)))
            assert [value for _, value in replies] == [2 * n for n in range(1, 2_001)]
            pids = {pid for pid, _ in replies}
            assert len(pids) == 3
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids)

    asyncio.run(work())


def test_one_that_dies_is_started_again_and_asked_again_what_it_has_not_answered(tmp_path: Path) -> None:
    log = tmp_path / "log"

    async def work() -> set[int]:
        async with ProberPool(program("dies", log), start) as programs:
            replies = await asyncio.gather(*(programs.ask(n) for n in range(300)))
            assert [value for _, value in replies] == [2 * n for n in range(300)]
            assert (await programs.ask(1))[1] == 2
            return {pid for pid, _ in replies}

    assert len(asyncio.run(work())) == 7  # six deaths
    seen = [int(line) for line in log.read_text().split()]
    assert {n for n in range(300) if seen.count(n) > 1} >= {49, 99, 149, 199, 249, 299}


def test_what_is_asked_again_takes_another_turn(tmp_path: Path) -> None:
    """Rates and block lists hold for it, too: of those that wait, one opts out before the prober dies."""
    turns: list[int] = []

    async def work() -> tuple[list[int], list[int]]:
        async with ProberPool(program("dies", tmp_path / "log"), start) as programs:

            @asynccontextmanager
            async def turn(number: int) -> AsyncIterator[None]:
                turns.append(number)
                if number == 60 and turns.count(60) == 2:
                    raise NotAskedError("blocked", "x")
                yield

            ends = await asyncio.gather(
                *(programs.ask(n, lambda n=n: turn(n)) for n in range(80)), return_exceptions=True
            )
            refused = [n for n, end in enumerate(ends) if isinstance(end, NotAskedError)]
            return [end[1] for end in ends if isinstance(end, tuple)], refused

    values, refused = asyncio.run(work())
    assert (values, refused) == ([2 * n for n in range(80) if n != 60], [60])
    asked = [int(line) for line in (tmp_path / "log").read_text().split()]
    assert 60 not in asked and all(turns.count(n) >= asked.count(n) for n in range(80))


def test_turns_wait_for_a_prober_that_does_not_read(tmp_path: Path) -> None:
    """As one with a rate of packets: else block lists would have been looked at minutes before a probe begins."""

    async def work() -> int:
        async with ProberPool(program("sleeps", tmp_path / "log"), start) as programs:
            access = Access(
                resolver=mock.Mock(),
                blocks=BlockLists([]),
                names=TokenBucket(1e6),
                rate=TokenBucket(1e6),
                lanes=Lanes(1e6, 10_000),
                places=asyncio.Semaphore(10_000),
                ready=programs.taken,
            )
            begun = 0

            @asynccontextmanager
            async def turn() -> AsyncIterator[None]:
                nonlocal begun
                async with access.turn("a.example", address="198.18.0.9"):
                    begun += 1
                    yield

            tasks = [asyncio.ensure_future(programs.ask(n, turn)) for n in range(5_000)]
            await asyncio.sleep(1.0)
            for task in tasks:
                task.cancel()
            return begun

    most = MOST_WAITING_BYTES // REQUEST.size
    assert most // 2 < asyncio.run(work()) <= 2 * most


def test_one_that_is_killed_from_outside_is_started_again(tmp_path: Path) -> None:
    async def work() -> None:
        async with ProberPool(program("works", tmp_path / "log"), start) as programs:
            first, _ = await programs.ask(1)
            os.kill(first, signal.SIGKILL)
            second, value = await programs.ask(21)
            assert value == 42 and second != first

    asyncio.run(work())


def test_one_that_dies_again_and_again_is_told(tmp_path: Path) -> None:
    async def work() -> None:
        async with ProberPool(program("poisoned", tmp_path / "log"), start) as programs:
            assert (await programs.ask(6))[1] == 12
            with pytest.raises(PlaceError, match=rf"crashed {MOST_CRASHES} times in a row .*exit code 3.*run the same"):
                await programs.ask(7)
            with pytest.raises(PlaceError, match="in a row"):
                await programs.ask(8)

    asyncio.run(work())
    assert (tmp_path / "log").read_text().split() == ["6", *["7"] * MOST_CRASHES]


ONCE_WRONG = """
import pathlib, sys
marker, reply = pathlib.Path(sys.argv[1]), bytearray(int(sys.argv[2]))
print("ready", flush=True)
while data := sys.stdin.buffer.read(8):
    reply[:5] = *data[:4], 0 if marker.exists() else int(sys.argv[3])
    marker.touch()
    sys.stdout.buffer.write(reply)
    sys.stdout.buffer.flush()
"""
"""Answers with a verdict that does not exist, and after that with the first one."""


@pytest.mark.parametrize("fault", [None, struct.error(), OverflowError(), AttributeError()])
def test_a_reply_that_makes_no_sense_is_asked_again(tmp_path: Path, fault: Exception | None) -> None:
    """With a verdict that does not exist, whoever had asked waited for ever."""
    faults = [fault] if fault is not None else []

    def decode(data: bytes) -> Iterator[tuple[int, wire.ProbeReply]]:
        if faults:
            raise faults.pop()
        return wire.decode(data, 0)

    def greeted(line: bytes) -> None:
        assert line == b"ready\n"

    size, wrong = wire.reply_bytes(0), len(wire.VERDICTS) if fault is None else 0
    argv = (sys.executable, "-c", ONCE_WRONG, str(tmp_path / "log"), str(size), str(wrong))
    prober: ProberProgram[int, wire.ProbeReply] = ProberProgram(
        argv=argv, encode=REQUEST.pack, reply_bytes=size, decode=decode, greeted=greeted
    )

    async def work() -> str:
        async with ProberPool(prober, start) as programs, asyncio.timeout(30):
            return (await programs.ask(1)).verdict

    assert asyncio.run(work()) == wire.ProbeVerdict.LIMITED


def test_one_that_cannot_be_started_again_is_told(tmp_path: Path) -> None:
    """Who waited for it would else wait for ever."""
    starts = iter([start])

    def start_once(argv: Sequence[str]) -> Child:
        for how in starts:
            return how(argv)
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    async def work() -> None:
        async with ProberPool(program("works", tmp_path / "log"), start_once) as programs, asyncio.timeout(30):
            first, _ = await programs.ask(1)
            os.kill(first, signal.SIGKILL)
            with pytest.raises(PlaceError, match=r"cannot be started again .*unavailable.*run the same command"):
                await programs.ask(2)

    asyncio.run(work())


def test_one_that_cannot_work_says_so_at_once(tmp_path: Path) -> None:
    async def work() -> None:
        async with ProberPool(program("refuses", tmp_path / "log"), start, count=2):
            raise AssertionError("it was entered")

    with pytest.raises(PlaceError, match="could not be started"):
        asyncio.run(work())


@pytest.mark.thorough
def test_whoever_asks_faster_than_it_reads_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more than `MOST_UNSENT_BYTES` and what the pipe takes are on the way."""
    monkeypatch.setattr("survey.programs.MOST_UNSENT_BYTES", 1 << 15)

    async def work() -> None:
        async with ProberPool(program("sleeps", tmp_path / "log"), start) as programs:
            count = 0
            tasks = []

            async def ask(number: int) -> None:
                nonlocal count
                count += 1
                await programs.ask(number)

            most = ((1 << 15) + (1 << 16)) // REQUEST.size
            for number in range(most + 5_000):
                tasks.append(asyncio.ensure_future(ask(number)))
                if number % 100 == 0:
                    await asyncio.sleep(0)
            (waiting,) = [process._waiting for process in programs._processes]
            assert count > most
            assert len(waiting) <= most + 200
            for task in tasks:
                task.cancel()

    asyncio.run(work())
