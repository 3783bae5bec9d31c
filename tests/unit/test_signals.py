"""A signal may come at any moment of the wait for threads."""

import sys
import threading
from collections.abc import Callable
from itertools import count
from types import FrameType
from typing import Any

from core.system import signals


def interrupted_at(moment: int, wait: Callable[[], object]) -> BaseException | None:
    """What a wait raises if a signal comes before its n-th line, counted in all functions that it calls.

    Python handles signals between its own instructions; the tracer is called there, too.
    """
    lines = count()

    def trace(_frame: FrameType, event: str, _argument: object) -> Any:
        if event == "line" and next(lines) == moment:
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        wait()
    except BaseException as error:
        return error
    finally:
        sys.settrace(before)
    return None


def test_wherever_a_signal_comes_it_ends_the_wait_as_such() -> None:
    """`Event.wait` raises RuntimeError at some of its lines (seen with Python 3.11): its lock is not locked."""
    raised = [interrupted_at(moment, lambda: signals.wait_for(threading.Event())) for moment in range(20)]
    assert {type(error) for error in raised} == {KeyboardInterrupt}


def test_the_wait_ends_with_the_event() -> None:
    event = threading.Event()
    timer = threading.Timer(0.1, event.set)
    timer.start()
    signals.wait_for(event)
    timer.join()
    assert event.is_set()
