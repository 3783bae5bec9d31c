"""Signals that end a command, and what a service tells systemd.

Ctrl-C (SIGINT), SIGTERM and SIGHUP end a command in one way: as KeyboardInterrupt, once. Cleaning up must not be
interrupted, so the same signals are ignored for `PATIENCE_S` after the first one; after that, the next one kills. A
signal that was ignored when we started stays ignored (nohup(1), background jobs of a shell).
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, MutableMapping
from types import FrameType
from typing import Any, TypeVar

Result = TypeVar("Result")

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

PATIENCE_S = 10.0

_LOOK_S = 0.05

_received: signal.Signals | None = None
_received_at = 0.0
_limit_s: float | None = None


def install() -> None:
    """From now on, each of these signals raises KeyboardInterrupt in the main thread."""
    for number in STOPPING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _stop)


def received() -> signal.Signals | None:
    """The signal that ends this command; None if there was none."""
    return _received


def reason() -> str:
    """What ends this command, for people."""
    return _received.name if _received is not None else "interrupted"


def wait_for(event: threading.Event) -> None:
    """Waits in the main thread until a thread has set an event.

    Raises KeyboardInterrupt at a signal, whenever it comes. `event.wait` gives its lock back twice where a signal
    comes between two of its own lines: it raises RuntimeError instead, and what was stopped seems to have failed.
    """
    while not event.is_set():
        time.sleep(_LOOK_S)


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Signals that come within the block count at its end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    with handled_by(lambda number, _: came.append(number)):
        yield
    for number in came[:1]:
        signal.raise_signal(number)


@contextlib.contextmanager
def as_interrupt() -> Iterator[None]:
    """Within the block, the RuntimeError that `wait_for` avoids is the KeyboardInterrupt that it took the place of.

    For waits that are not ours, as of `concurrent.futures`.
    """
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error.__context__, KeyboardInterrupt):
            raise
        raise KeyboardInterrupt from None


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """`asyncio.run`; a signal cancels the work, and KeyboardInterrupt is raised when that has ended.

    An exception of a handler between two lines of asyncio's loop may take the task that was about to run with it: it
    never ends, and the loop waits for it. asyncio cancels, too, but only if Python's own handler of SIGINT is there.
    """
    import asyncio  # no other command needs it

    if threading.current_thread() is not threading.main_thread() or _stop not in map(signal.getsignal, STOPPING):
        return asyncio.run(work)
    is_stopped = False

    async def cancellable() -> Result:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()

        def stop(number: int, _frame: FrameType | None) -> None:
            nonlocal is_stopped
            if _is_first(number) and task is not None:
                is_stopped = True
                loop.call_soon_threadsafe(task.cancel)  # which also wakes the loop

        with handled_by(stop):
            return await work

    try:
        result = asyncio.run(cancellable())
    except asyncio.CancelledError:
        if not is_stopped:
            raise
    else:
        if not is_stopped:
            return result
    raise KeyboardInterrupt


def check_cancelled() -> None:
    """Raises CancelledError in a task that was cancelled; for loops of tasks within `run`, before each new subject.

    A task is cancelled once, and before Python 3.12 `asyncio.wait_for` returns a result that came meanwhile instead.
    """
    import asyncio

    if (task := asyncio.current_task()) is not None and task.cancelling():
        raise asyncio.CancelledError


@contextlib.contextmanager
def clean_up_within(seconds: float) -> Iterator[None]:
    """Within the block, a process that was told to end and has not after this time is killed (SIGALRM).

    The kernel does it, so it also works for a process that hangs in a system call or in a library.
    """
    global _limit_s
    before, _limit_s = _limit_s, seconds
    try:
        yield
    finally:
        _limit_s = before
        signal.setitimer(signal.ITIMER_REAL, 0)


@contextlib.contextmanager
def handled_by(handler: Callable[[int, FrameType | None], object] | signal.Handlers) -> Iterator[None]:
    """Within the block, something else handles these signals: a function, or `signal.SIG_DFL`, which kills."""
    before = {number: signal.getsignal(number) for number in STOPPING}
    for number, present in before.items():
        if present is not signal.SIG_IGN:
            signal.signal(number, handler)
    try:
        yield
    finally:
        for number, present in before.items():
            signal.signal(number, present)


def _stop(number: int, _frame: FrameType | None) -> None:
    if _is_first(number):
        raise KeyboardInterrupt


def _is_first(number: int) -> bool:
    """Whether no signal came before; one that comes too long after the first kills."""
    global _received, _received_at
    now = time.monotonic()
    if _received is None:
        _received, _received_at = signal.Signals(number), now
        if _limit_s is not None:
            signal.setitimer(signal.ITIMER_REAL, _limit_s)
        return True
    if now - _received_at > PATIENCE_S:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    return False


class Notifier:
    """The service manager's socket, if there is one.

    The variables are removed from the environment: programs that we start must not speak for us.

    Attributes:
        watchdog_s: time within which `alive` has to be called, else the service is killed; None: no watchdog.
    """

    def __init__(self, environ: MutableMapping[str, str] = os.environ) -> None:
        address = environ.pop("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address  # abstract, see unix(7)
        every_us, whose = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
        meant = self._address and every_us.isdecimal() and whose in ("", str(os.getpid()))
        self.watchdog_s = int(every_us) / 1e6 if meant and int(every_us) else None

    def ready(self) -> None:
        """The service has started."""
        self._send("READY=1")

    def alive(self) -> None:
        """The service works, or waits as it should."""
        self._send("WATCHDOG=1")

    def stopping(self) -> None:
        """The service begins to end."""
        self._send("STOPPING=1")

    def say(self, text: str) -> None:
        """One line for `systemctl status`."""
        self._send(f"STATUS={' '.join(text.split())}")

    def _send(self, message: str) -> None:
        if self._address:
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.setblocking(False)  # a manager that does not listen must not hold us up
                sender.sendto(message.encode(), self._address)
