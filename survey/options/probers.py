"""The programs that shake hands, as one coroutine for whoever asks: `await probers.probe(address, port)`."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from survey.options.prober import REPLY, REQUEST
from survey.options.tcp_info import TcpInfo, parse
from upshift.errors import PlaceError
from upshift.system.process import Child

Start = Callable[[Sequence[str]], Child]
"""Starts a program with binary pipes where the kernel's settings are right (`upshift.system.place.Place.start`)."""

_READ_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class Handshake:
    """How one attempt ended."""

    errno: int
    """0: shaken hands; else an errno of connect(2)."""
    info: TcpInfo | None
    """None where there was no socket."""


class Probers:
    """One or more probers. Use it as an asynchronous context manager.

    Args:
        start: starts a program in the place.
        count: programs; one takes 12,000 handshakes a second (`benchmarks/survey`).
        timeout_s: longest attempt.

    Raises:
        PlaceError: on entering, where the kernel's settings there are wrong; later, where a prober ended.
    """

    def __init__(self, start: Start, *, count: int, timeout_s: float) -> None:
        self._start = start
        self._count = count
        self._timeout_s = timeout_s
        self._probers: list[_Prober] = []
        self._next = 0

    async def __aenter__(self) -> Probers:
        for _ in range(self._count):
            self._probers.append(_Prober(self._start, self._timeout_s))
        try:
            for prober in self._probers:
                await asyncio.to_thread(prober.greet)
                prober.listen()
        except BaseException:
            self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _stop(self) -> None:
        for prober in self._probers:
            prober.stop()

    async def probe(self, address: str, port: int) -> Handshake:
        """One handshake. Raises PlaceError where the prober ended meanwhile."""
        prober = self._probers[self._next]
        self._next = (self._next + 1) % self._count
        return await prober.ask(address, port)


class _Prober:
    """One program and who waits for it."""

    def __init__(self, start: Start, timeout_s: float) -> None:
        # -P: whatever lies in the working folder is not ours.
        self._child = start((sys.executable, "-P", "-m", "survey.options.prober", str(timeout_s)))
        assert self._child.stdin is not None and self._child.stdout is not None  # noqa: S101 - narrows the types
        self._to: Any = self._child.stdin
        self._from: Any = self._child.stdout
        self._waiting: dict[int, asyncio.Future[Handshake]] = {}
        self._number = 0
        self._outbox: list[bytes] = []
        self._unsent = b""
        self._rest = b""
        self._fault: PlaceError | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def greet(self) -> None:
        """Waits until the program says that it works. Raises PlaceError where it cannot."""
        line = self._from.readline()
        try:
            wrong = json.loads(line)["wrong"]
        except (ValueError, KeyError):
            raise PlaceError("the prober does not start", remedy="upshift doctor says what is missing") from None
        if wrong:
            said = ", ".join(f"{name} = {value}" for name, value in sorted(wrong.items()))
            raise PlaceError(
                f"the kernel would not ask for every option here ({said})",
                remedy="leave --isolation at netns (as root), or set tcp_ecn = 1, tcp_ecn_fallback = 0 and "
                "tcp_sack, tcp_window_scaling, tcp_timestamps = 1 in this network namespace",
            )

    def listen(self) -> None:
        """From now on replies are taken by the running event loop."""
        self._loop = asyncio.get_running_loop()
        os.set_blocking(self._from.fileno(), False)
        os.set_blocking(self._to.fileno(), False)
        self._loop.add_reader(self._from.fileno(), self._receive)

    def stop(self) -> None:
        """Ends the program; whoever still waits is cancelled."""
        if self._loop is not None:
            self._loop.remove_reader(self._from.fileno())
            self._loop.remove_writer(self._to.fileno())
        for future in self._waiting.values():
            future.cancel()
        self._child.stop()

    async def ask(self, address: str, port: int) -> Handshake:
        """One handshake."""
        assert self._loop is not None  # noqa: S101 - narrows the type
        if self._fault is not None:
            raise self._fault
        self._number = number = (self._number + 1) & 0xFFFFFFFF
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        version = 6 if family == socket.AF_INET6 else 4
        if not self._outbox:  # whatever else asks in this round of the loop goes with it
            self._loop.call_soon(self._send)
        self._outbox.append(REQUEST.pack(number, version, socket.inet_pton(family, address), port))
        self._waiting[number] = future = self._loop.create_future()
        handshake: Handshake = await future
        return handshake

    def _send(self) -> None:
        assert self._loop is not None  # noqa: S101 - narrows the type
        self._unsent += b"".join(self._outbox)
        self._outbox.clear()
        try:
            self._unsent = self._unsent[os.write(self._to.fileno(), self._unsent) :]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            return self._broken()
        if self._unsent:
            self._loop.add_writer(self._to.fileno(), self._send)
        else:
            self._loop.remove_writer(self._to.fileno())
        return None

    def _receive(self) -> None:
        try:
            data = os.read(self._from.fileno(), _READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._broken()
            return
        data = self._rest + data
        whole = len(data) - len(data) % REPLY.size
        self._rest = data[whole:]
        for number, code, info in REPLY.iter_unpack(data[:whole]):
            future = self._waiting.pop(number)
            if not future.done():
                future.set_result(Handshake(code, parse(info) if any(info) else None))

    def _broken(self) -> None:
        assert self._loop is not None  # noqa: S101 - narrows the type
        self._loop.remove_reader(self._from.fileno())
        self._loop.remove_writer(self._to.fileno())
        self._fault = PlaceError("a prober ended before its work", remedy="give the same command again: it goes on")
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(self._fault)
        self._waiting.clear()
