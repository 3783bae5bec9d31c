"""A signal may come at any moment: of the wait for threads, of asyncio's loop."""

import asyncio
import gc
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from itertools import count
from types import FrameType
from typing import Any

import pytest

from cdn_mapping import mapping
from core.outreach.pace import TokenBucket
from core.system import signals
from survey.engine import _work
from survey.subjects import Subject
from survey.surveys.options import OPTIONS


def interrupted_at(moment: int, wait: Callable[[], object]) -> BaseException | None:
    """What a wait raises if a signal comes before its n-th line, counted in all functions that it calls.

    Python handles signals between its own instructions; the tracer is called there, too. The collector of garbage
    would run Hypothesis's callback in between, whose exceptions nobody hears.
    """
    lines = count()

    def trace(_frame: FrameType, event: str, _argument: object) -> Any:
        if event == "line" and next(lines) == moment:
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    gc.disable()
    sys.settrace(trace)
    try:
        wait()
    except BaseException as error:
        return error
    finally:
        sys.settrace(before)
        gc.enable()
    return None


def test_wherever_a_signal_comes_it_ends_the_wait_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    """`Event.wait` raises RuntimeError at some of its lines (seen with Python 3.11): its lock is not locked."""
    monkeypatch.setattr(signals, "_LOOK_S", 0.001)
    events = [threading.Event() for _ in range(40)]  # one that was interrupted may stay locked

    def raised(moment: int) -> BaseException | None:
        return interrupted_at(moment, lambda: signals.wait_for(events[moment]))

    assert {type(raised(moment)) for moment in range(40)} == {KeyboardInterrupt}


def test_the_wait_ends_with_the_event() -> None:
    event = threading.Event()
    timer = threading.Timer(0.1, event.set)
    timer.start()
    signals.wait_for(event)
    timer.join()
    assert event.is_set()


def test_a_signal_while_threads_start_counts_once_they_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "_received", None)
    before = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, signals._stop)
    steps = []
    try:
        with pytest.raises(KeyboardInterrupt), signals.deferred():
            signal.raise_signal(signal.SIGTERM)
            steps.append("all of the block")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert steps and signals.received() is signal.SIGTERM


def test_what_a_wait_raises_in_place_of_the_interrupt_is_the_interrupt() -> None:
    def wait() -> None:
        with signals.as_interrupt():
            threading.Event().wait(0.001)

    raised = [interrupted_at(moment, wait) for moment in range(80)]
    assert {type(error) for error in raised} <= {KeyboardInterrupt, type(None)}
    with pytest.raises(RuntimeError, match="a defect"), signals.as_interrupt():
        raise RuntimeError("a defect")


SURVEYS = """
import asyncio, os, random, signal, threading
from core.system import signals

signals.install()

async def one(chance):
    while True:
        await asyncio.sleep(chance.random() / 500)

async def work(ended, timer):
    try:
        async with asyncio.TaskGroup() as group:
            for number in range(150):
                group.create_task(one(random.Random(number)))
            timer.start()
    finally:
        ended.append(1)

for seed in range(40):
    signals._received, ended = None, []
    timer = threading.Timer(random.Random(seed).uniform(0.01, 0.05), os.kill, (os.getpid(), signal.SIGTERM))
    try:
        signals.run(work(ended, timer))
    except KeyboardInterrupt:
        assert ended
    else:
        raise AssertionError
    timer.join()
"""


def test_a_signal_ends_asyncio_s_work_cleanly() -> None:
    """By an exception of the handler one of five of these ended with tracebacks, and some never."""
    done = subprocess.run([sys.executable, "-c", SURVEYS], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


Ask = Callable[[str], Coroutine[Any, Any, Any]]


async def survey(names: list[str], ask: Ask) -> None:
    async def visit(subject: Subject, record: Any) -> Any:
        await ask(subject.domain)
        return record

    async with asyncio.TaskGroup() as group:
        group.create_task(_work(OPTIONS, visit, iter([Subject(domain=name) for name in names]), []))


async def map_names(names: list[str], ask: Ask) -> None:
    resolver: Any = AsyncExitStack()
    resolver.cnames = ask
    await mapping._look_up(names, resolver, TokenBucket(1e6), None)


@pytest.mark.parametrize("work", [survey, map_names])
def test_nobody_is_asked_after_a_signal_that_came_with_an_answer(
    work: Callable[[list[str], Ask], Coroutine[Any, Any, None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before Python 3.12 `asyncio.wait_for` loses the cancellation, so one worker asked all that were left."""
    monkeypatch.setattr(mapping, "AT_ONCE", 1)
    asked: list[str] = []

    async def run() -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        async def ask(name: str) -> None:
            asked.append(name)
            answer = loop.create_future()

            def come() -> None:
                if not answer.done():
                    answer.set_result(None)

            # As `signals.run` does; the group cancels its tasks in the loop's next turn, in which the answer comes.
            loop.call_soon(task.cancel)
            loop.call_soon(loop.call_soon, come)
            await asyncio.wait_for(answer, 3)

        await work(["a.example", "b.example", "c.example"], ask)

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(run())
    assert asked == ["a.example"]
