"""Probers: programs that take many requests over a pipe and answer each with a record of fixed size, or a line.

A survey defines the messages (`ProberProgram`); this module has processes, pipes, back-pressure, and restarts after
crashes.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import struct
import termios
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from core.errors import PlaceError
from core.system import process as programs
from core.system.process import Child

Request = TypeVar("Request")
Reply = TypeVar("Reply")

Start = Callable[[Sequence[str]], Child]
"""Starts a program with binary pipes, where the kernel's settings are correct."""


def start_here(argv: Sequence[str]) -> Child:
    """A `Start` for the network namespace and the settings of this process."""
    return programs.start(argv, stdin=True, stdout=True, binary=True)


Turn = Callable[[], AbstractAsyncContextManager[object]]
"""Waits until a request may be made."""

READ_BYTES = 1 << 18

MOST_UNSENT_BYTES = 1 << 20
"""Most requests queued for a pipe; further callers wait."""

MOST_UNREAD_BYTES = 1 << 20
"""Longest reply."""

MOST_WAITING_BYTES, LOOK_S = 1 << 12, 0.01
"""Some requests that a prober has not read, for which nobody waits, and how often we look."""

MOST_CRASHES = 3
"""Crashes in a row without a reply in between, after which we give up."""

UNREADABLE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError, struct.error)
"""Exceptions of a reply that makes no sense. One that got past us would leave everybody waiting for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProberProgram(Generic[Request, Reply]):
    """A prober and its protocol.

    It writes one line on standard output when it is ready, then replies; it reads requests from standard input, and
    ends when that ends.
    """

    argv: Sequence[str]
    encode: Callable[[int, Request], bytes]
    """Encodes a request with its number (32 bits, unsigned)."""
    reply_bytes: int | None
    """Size of a reply; None: each is a line."""
    decode: Callable[[bytes], Iterable[tuple[int, Reply]]]
    """Decodes complete replies: their numbers and contents. Raises one of `UNREADABLE` for others, as
    a prober may write that a server has taken over; it is started anew then."""
    greeted: Callable[[bytes], None]
    """Reads the first line. Raises PlaceError if the program cannot work."""


class ProberPool(Generic[Request, Reply]):
    """One or more processes of a prober. Use it as an asynchronous context manager.

    A process that ends early is restarted, and what it has not answered is asked again.

    Args:
        program: what to start.
        start: starts it in its place.
        count: processes.

    Raises:
        PlaceError: on entering, if the program cannot work; later, if it crashed `MOST_CRASHES` times in a row.
    """

    def __init__(self, program: ProberProgram[Request, Reply], start: Start, *, count: int = 1) -> None:
        self._processes = [_Process(program, start) for _ in range(count)]
        self._next = 0

    async def __aenter__(self) -> ProberPool[Request, Reply]:
        try:
            for process in self._processes:  # all start before one is waited for
                process.start()
            for process in self._processes:
                await process.listen()
        except BaseException:
            self._stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stop()

    def _stop(self) -> None:
        for process in self._processes:
            process.stop()

    async def ask(self, request: Request, turn: Turn = nullcontext) -> Reply:
        """The reply to a request.

        Args:
            turn: held while a process has the request: also when it is asked again, after block lists changed.
        """
        reply = None
        while reply is None:
            async with turn():
                process = self._processes[self._next]
                self._next = (self._next + 1) % len(self._processes)
                reply = await process.ask(request)
        return reply

    async def taken(self) -> None:
        """Waits until all but some requests were read: a prober with a rate of its own leaves them in the pipe."""
        while any(process.waiting_bytes > MOST_WAITING_BYTES for process in self._processes):
            await asyncio.sleep(LOOK_S)


class _Process(Generic[Request, Reply]):
    """One process and its pending requests."""

    def __init__(self, program: ProberProgram[Request, Reply], start: Start) -> None:
        self._program = program
        self._start = start
        self._child: Any = None
        self._waiting: dict[int, tuple[bytes, asyncio.Future[Reply | None]]] = {}
        self._number = 0
        self._outbox: list[bytes] = []
        self._unsent = b""
        self._rest = b""
        self._crashes = 0
        self._listening = False
        self._room = asyncio.Event()
        self._room.set()
        self._fault: PlaceError | None = None
        self._restart: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Starts the program; in the thread of the event loop, since a program ends with the thread that started it."""
        self._child = self._start(self._program.argv)

    async def listen(self) -> None:
        """Waits until the program is ready, then starts to read replies. Raises PlaceError if it cannot work."""
        self._program.greeted(await asyncio.to_thread(self._child.stdout.readline))
        loop = asyncio.get_running_loop()
        for pipe in (self._child.stdin, self._child.stdout):
            os.set_blocking(pipe.fileno(), False)
        self._unsent, self._rest = b"", b""
        self._outbox = [data for data, _ in self._waiting.values()]
        self._listening = True
        loop.add_reader(self._child.stdout.fileno(), self._receive)
        if self._outbox:
            self._send()

    def stop(self) -> None:
        """Ends the program; requests still waiting are cancelled."""
        if self._restart is not None:
            self._restart.cancel()
        self._deafen()
        for _, future in self._waiting.values():
            future.cancel()
        if self._child is not None:
            self._child.stop()

    def _deafen(self) -> None:
        if self._listening:
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._child.stdout.fileno())
            loop.remove_writer(self._child.stdin.fileno())
            self._listening = False

    @property
    def waiting_bytes(self) -> int:
        """Requests that it has not read."""
        ours = len(self._unsent) + sum(map(len, self._outbox))
        if not self._listening:
            return ours
        (in_pipe,) = struct.unpack("i", fcntl.ioctl(self._child.stdin.fileno(), termios.FIONREAD, bytes(4)))
        return ours + int(in_pipe)

    async def ask(self, request: Request) -> Reply | None:
        """The reply to a request, None if the process ended without one."""
        if not self._room.is_set():
            await self._room.wait()
        if self._fault is not None:
            raise self._fault
        loop = asyncio.get_running_loop()
        self._number = number = (self._number + 1) & 0xFFFFFFFF
        data = self._program.encode(number, request)
        if not self._outbox:  # further requests of this loop iteration are sent together
            loop.call_soon(self._send)
        self._outbox.append(data)
        future: asyncio.Future[Reply | None] = loop.create_future()
        self._waiting[number] = data, future
        return await future

    def _send(self) -> None:
        if not self._listening:
            return  # it is being restarted, and gets them then
        loop = asyncio.get_running_loop()
        descriptor = self._child.stdin.fileno()
        self._unsent += b"".join(self._outbox)
        self._outbox.clear()
        try:
            self._unsent = self._unsent[os.write(descriptor, self._unsent) :]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            self._crashed()
            return
        if self._unsent:
            loop.add_writer(descriptor, self._send)
        else:
            loop.remove_writer(descriptor)
        if len(self._unsent) > MOST_UNSENT_BYTES:
            self._room.clear()
        else:
            self._room.set()

    def _receive(self) -> None:
        try:
            data = os.read(self._child.stdout.fileno(), READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._crashed()
            return
        data = self._rest + data
        size = self._program.reply_bytes
        whole = data.rfind(b"\n") + 1 if size is None else len(data) - len(data) % size
        self._rest = data[whole:]
        try:
            for number, reply in self._program.decode(data[:whole]):
                _, future = self._waiting.pop(number)
                self._crashes = 0
                if not future.done():
                    future.set_result(reply)
        except UNREADABLE:
            self._crashed()
            return
        if len(self._rest) > MOST_UNREAD_BYTES:
            self._crashed()

    def _crashed(self) -> None:
        """The program ended early: restarts it, up to `MOST_CRASHES` times."""
        self._deafen()
        code = self._child.stop()
        self._crashes += 1
        if self._crashes < MOST_CRASHES:
            self._settle(lambda future: future.set_result(None))
            self._restart = asyncio.get_running_loop().create_task(self._begin_again())
            return
        self._fail(
            PlaceError(
                f"a prober crashed {MOST_CRASHES} times in a row before its work was done (exit code {code})",
                remedy="run the same command again to resume",
            )
        )

    async def _begin_again(self) -> None:
        try:
            self.start()
            await self.listen()
        except PlaceError as error:
            self._fail(error)
        except OSError as error:
            what = f"a prober cannot be started again ({error.strerror})"
            self._fail(PlaceError(what, remedy="run the same command again to resume"))

    def _fail(self, fault: PlaceError) -> None:
        self._fault = fault
        self._settle(lambda future: future.set_exception(fault))

    def _settle(self, how: Callable[[asyncio.Future[Reply | None]], None]) -> None:
        """Ends all that wait for a reply, or for room."""
        self._unsent, self._outbox = b"", []
        self._room.set()
        for _, future in self._waiting.values():
            if not future.done():
                how(future)
        self._waiting.clear()
