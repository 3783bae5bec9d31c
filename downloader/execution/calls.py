"""Calls client programs in a place, from warm interpreters there. All waits are bounded."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from core.domain import FailureCode
from core.errors import PlaceError
from core.system.place import Place
from core.system.process import Child
from core.untrusted import scrub
from downloader.client import (
    AnswerError,
    Client,
    ClientResult,
    DownloadRequest,
    checked_number,
    crashed,
    with_setup,
)
from downloader.programs.warm import MOST_OUTPUT_BYTES
from downloader.schedule.schedule import Cut

GRACE_S = 8.0
"""How long a client may run after its budget (closing, hashing, printing) before it is killed."""

START_S = 30.0
"""How long an interpreter may take to import a client on a busy machine."""

_SLICE_S = 0.1
"""Interval at which a wait checks whether the campaign is being stopped."""

RESOLVE = "downloader.programs.resolve"
EXECUTE = "downloader.programs.execute"
"""Starts the clients that are binaries."""


class StoppedError(Exception):
    """The campaign is being stopped; running programs have been killed."""


class CutError(Exception):
    """The measurement run must end now; its running program has been killed."""

    def __init__(self, cut: Cut) -> None:
        super().__init__(cut.reason)
        self.cut = cut


Check = Callable[[], None]
"""Called at least every 0.1 s while a program runs. Raises StoppedError, CutError or PlaceError."""


class GoneError(Exception):
    """A program ended, or did not answer in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """How a program ended, and its output."""

    returncode: int | None
    """Negative for a signal, None if it was killed because its time was over, or for `excess`."""
    stdout: str
    stderr: str
    excess: bool = False
    """It was killed because it printed more than `warm.MOST_OUTPUT_BYTES`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """The result of an uncached DNS look-up."""

    addresses: tuple[str, ...]
    cnames: tuple[str, ...]
    dns_s: float | None
    error: str | None
    code: FailureCode | None = None
    """The failure code of `dns_error`."""
    crashed: bool = False
    """Our own program failed: that says nothing of the name."""


class Warm:
    """A warm interpreter in a place (`downloader.programs.warm`), which forks a child per call."""

    def __init__(self, place: Place, program: str, check: Check) -> None:
        self._place, self._program, self._check = place, program, check
        self._child: Child | None = None
        self._ready = False
        self._rest = b""

    def start(self) -> None:
        """Starts the interpreter, without waiting for it."""
        command = [sys.executable, "-P", "-m", "downloader.programs.warm", self._program]
        self._child = self._place.start(command, stdin=True, stdout=True, binary=True)
        self._ready, self._rest = False, b""

    def ask(self, argv: list[str], *, limit_s: float) -> Reply:
        """Runs the program once. Raises GoneError if the interpreter itself fails, and what the check raises."""
        request = json.dumps({"argv": argv, "limit_s": limit_s}).encode() + b"\n"
        try:
            if self._child is None or self._child.returncode is not None:
                self.stop()
                with _interpreter():
                    self.start()
            if not self._ready:
                line = self._line(time.monotonic() + START_S)
                with _interpreter():
                    self._ready = json.loads(line)["ready"] is True
            assert self._child is not None and self._child.stdin is not None  # noqa: S101 - started with pipes
            with _interpreter():
                self._child.stdin.write(request)
                self._child.stdin.flush()
            line = self._line(time.monotonic() + limit_s + 15.0)
            with _interpreter():
                reply = Reply(**json.loads(line))
        except BaseException:
            self.stop()  # its answer, if it still comes, would be taken for that of the next call
            raise
        return reply

    def _line(self, deadline: float) -> bytes:
        assert self._child is not None and self._child.stdout is not None  # noqa: S101 - started with pipes
        number = self._child.stdout.fileno()
        while b"\n" not in self._rest:
            self._check()
            left = deadline - time.monotonic()
            with _interpreter():
                if select.select([number], [], [], max(min(left, _SLICE_S), 0.0))[0]:
                    if not (data := os.read(number, 65536)):
                        raise ValueError("the interpreter has ended")
                    self._rest += data
                elif left <= 0:
                    raise TimeoutError
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def stop(self) -> None:
        """Ends the interpreter and its running child."""
        if self._child is not None:
            self._child.stop(signal.SIGKILL)
            self._child = None


@contextlib.contextmanager
def _interpreter() -> Iterator[None]:
    """What fails within is the interpreter, not what is checked meanwhile. Raises GoneError."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise GoneError(f"its interpreter failed ({type(error).__name__})") from None


class Caller:
    """Calls the clients of one vantage point. Use as a context manager: it ends its interpreters."""

    def __init__(
        self, place: Place, clients: list[Client], check: Check, run_as: tuple[int, int] | None = None
    ) -> None:
        """`run_as`: user and group that the clients become; None: nobody."""
        self._place, self._check = place, check
        self._run_as = () if run_as is None else ("--run-as", "{}:{}".format(*run_as))
        self._binaries = {c.program: c.command()[0] for c in clients if not c.is_python}
        programs = {client.program for client in clients if client.is_python} | {RESOLVE}
        programs |= {EXECUTE} if self._binaries else set()
        self._warm = {program: Warm(place, program, check) for program in sorted(programs)}

    def __enter__(self) -> Caller:
        for warm in self._warm.values():
            warm.start()  # all at the same time: they import while the first run is prepared
        return self

    def __exit__(self, *_: object) -> None:
        for warm in self._warm.values():
            warm.stop()

    def resolve(self, name: str, *, family: str, timeout_s: float = 10.0) -> Resolution:
        """An uncached look-up from the place; once more if something ended the interpreter.

        Raises:
            PlaceError: no name server can be reached, for which no name is to blame.
        """
        argv = ["--name", name, "--family", family, "--timeout-s", str(timeout_s)]
        for server in self._place.nameservers:
            argv += ["--nameserver", server]
        for prefix in self._place.allowed_prefixes:
            argv += ["--allow", str(prefix)]
        argv += self._run_as
        warm, limit_s = self._warm[RESOLVE], 2 * timeout_s + GRACE_S  # `any` asks for two types
        try:
            try:
                reply = warm.ask(argv, limit_s=limit_s)
            except GoneError:
                reply = warm.ask(argv, limit_s=limit_s)
            answer = json.loads(reply.stdout)
            if answer["unreachable"] is True:
                what = f"no name server can be reached from {self._place.name}"
                raise PlaceError(what, remedy="check the network, then run the same command again")
            return Resolution(
                addresses=tuple(_address(text) for text in answer["addresses"]),
                cnames=tuple(scrub(str(name)) for name in answer["cnames"]),
                dns_s=None if answer["dns_s"] is None else checked_number("dns_s", answer["dns_s"], as_float=True),
                error=None if answer["error"] is None else scrub(str(answer["error"])),
                code=FailureCode(answer["code"]) if answer["code"] else None,
            )
        except (GoneError, ValueError, KeyError, TypeError, RecursionError) as error:
            why = scrub(f"the look-up failed: {error}")
            return Resolution(addresses=(), cnames=(), dns_s=None, error=why, crashed=True)

    def download(self, client: Client, request: DownloadRequest) -> ClientResult:
        """One download. A client that crashes, hangs or prints an invalid result is a record, not an exception.

        Raises:
            StoppedError: the campaign is being stopped; the client has been killed.
            CutError: the measurement run must end; likewise.
        """
        began = time.time()
        limit_s, arguments = request.budget_s + GRACE_S, [*client.variant, *client.arguments(request), *self._run_as]
        try:
            if client.is_python:
                reply = self._warm[client.program].ask(arguments, limit_s=limit_s)
            else:
                reply = self._warm[EXECUTE].ask([self._binaries[client.program], *arguments], limit_s=limit_s)
        except GoneError as error:
            return crashed("", why=f"{client.name}: {error}", started_at=began, request=request)
        try:
            return with_setup(client.result(_document(reply)), called_at=began)
        except AnswerError as error:
            return crashed(reply.stderr, why=str(error), started_at=began, request=request)


def _address(text: object) -> str:
    """An address of an A or AAAA record, which has no zone. Raises ValueError for anything else."""
    address = ipaddress.ip_address(str(text))
    if isinstance(address, ipaddress.IPv6Address) and address.scope_id is not None:
        raise ValueError("an address with a zone")
    return str(address)


def describe_confinement(place: Place, run_as: tuple[int, int] | None) -> dict[str, Any]:
    """What holds for a client there, as one that has confined itself says: its user, and Landlock's version.

    Raises PlaceError if it cannot.
    """
    argv = [sys.executable, "-P", "-m", "core.system.confine", *(() if run_as is None else ("{}:{}".format(*run_as),))]
    document: dict[str, Any] = json.loads(place.run(argv).check(doing="giving up a client's rights").stdout)
    return document


def _document(reply: Reply) -> str:
    """What a client printed. Raises AnswerError if it did not end by itself, with exit code 0."""
    if reply.excess:
        raise AnswerError(f"killed as it printed more than {MOST_OUTPUT_BYTES:,} bytes")
    if reply.returncode is None:
        raise AnswerError(f"killed {GRACE_S:g} s after the end of its budget")
    if reply.returncode != 0:
        raise AnswerError(_ending(reply.returncode))
    return reply.stdout


def _ending(returncode: int) -> str:
    if returncode < 0:
        with contextlib.suppress(ValueError):
            return f"ended by {signal.Signals(-returncode).name}"
    return f"exit code {returncode}"
