"""Capture files -> connections -> KPIs, one file or whole directories, several files at once."""

from __future__ import annotations

import functools
import inspect
import numbers
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TypeVar

import upshift_native

from analysis.captures.connection import Connection
from analysis.captures.kpis import ALL as KPIS
from analysis.captures.kpis import Value
from core.errors import UsageError, not_found

Item = TypeVar("Item")
Result = TypeVar("Result")

SUFFIXES = (".pcap", ".pcapng", ".cap", ".dmp")
"""File names that are searched for in a directory, in any case, also followed by `.gz` or `.zst`."""

_FILES_AHEAD = 8
"""Files queued per worker; their results wait in memory until they are read."""


class CaptureReader:
    """A capture file that is being read: iterate once over its connections; few are in memory.

    Up to `upshift_native.MOST_CONNECTIONS` of them come in order of their first packets. Beyond that, those that are
    closed or idle longest come first, and their later packets count as new connections.

    Raises:
        UsageError: the file is missing, empty or not a capture; or the engine is of another version.
    """

    def __init__(self, path: Path, *, series: bool = False, rules: str = "4.0") -> None:
        self.path = path
        with readable(path):
            self._engine = upshift_native.ConnectionReader(path, series=series, rules=rules)
            self._first = self._engine.next_batch()

    def __iter__(self) -> Iterator[Connection]:
        batch, self._first = self._first, None
        while batch:
            try:
                yield from map(Connection.from_record, batch)
            except TypeError as error:  # new Python beside an engine that was built before
                raise UsageError(
                    "the capture engine and this Upshift are of different versions",
                    where=upshift_native.__file__,
                    remedy="run `make setup`, or install upshift and upshift-native of the same version",
                ) from error
            batch = self._engine.next_batch()

    @property
    def packets(self) -> int:
        """Frames so far, as counted by Wireshark."""
        return self._engine.packets

    @property
    def truncated(self) -> bool:
        """The file is truncated or damaged; earlier packets are valid. Known after the last connection, like these:"""
        return self._engine.truncated

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings for the user."""
        return tuple(self._engine.warnings)

    @property
    def skipped(self) -> Mapping[str, int]:
        """Packets outside connections, by reason."""
        return self._engine.skipped


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turns the engine's errors into UsageError."""
    try:
        yield
    except upshift_native.CaptureError as error:
        remedy = "name a file that tcpdump or Wireshark wrote"
        raise UsageError(f"this file {error}", where=str(path), remedy=remedy) from None


def find_captures(path: Path) -> list[Path]:
    """The file itself, or all captures below a directory in order of name. Raises UsageError if there are none."""
    if not path.exists():
        raise not_found(path, remedy="name a capture")
    if not path.is_dir():
        return [path]
    # A folder of several hosts' vantage points has links to them; no others are followed.
    roots = [path, *(entry for entry in path.glob("vantage/*") if entry.is_symlink())]
    captures = sorted(
        entry for root in roots for entry in root.rglob("*") if is_capture_name(entry.name) and entry.is_file()
    )
    if not captures:
        wanted = ", ".join(f"*{suffix}" for suffix in SUFFIXES)
        raise UsageError(
            "this directory holds no captures", where=str(path), remedy=f"captures are named {wanted} (.gz, .zst)"
        )
    return captures


def is_capture_name(name: str) -> bool:
    """Whether a file of this name counts as a capture."""
    return name.lower().removesuffix(".gz").removesuffix(".zst").endswith(SUFFIXES)


def read_many(
    paths: Iterable[Path], *, jobs: int | None = None, series: bool = False, rules: str = "4.0"
) -> Iterator[CaptureReader | UsageError]:
    """Reads files on several threads (the engine releases the GIL), in the order of the paths.

    A reader is returned when it has its first connections, at most 1,024; the rest is read on demand. A file that is
    not a capture gives its error as a value, so that one bad file does not hide the others.
    """

    def begin(path: Path) -> CaptureReader | UsageError:
        try:
            return CaptureReader(path, series=series, rules=rules)
        except UsageError as error:
            return error

    yield from in_order(begin, paths, jobs=jobs)


def in_order(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    *,
    jobs: int | None = None,
    executor: Executor | None = None,
    ahead: Callable[[], int] | None = None,
    result: Callable[[Future[Result]], Result] = Future.result,
) -> Iterator[Result]:
    """`map` with few results in memory, on threads or by an executor, which stays open.

    Args:
        jobs: threads; None for one per core.
        ahead: most tasks that are in progress or whose results wait, asked for each task; None: by the threads.
        result: waits for a task's result.
    """
    threads = jobs or os.cpu_count() or 1
    own = ThreadPoolExecutor(max_workers=threads) if executor is None else nullcontext(executor)
    with own as pool:
        waiting: deque[Future[Result]] = deque()
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) > (threads * _FILES_AHEAD if ahead is None else ahead()):
                    yield result(waiting.popleft())
            while waiting:
                yield result(waiting.popleft())
        finally:  # where somebody stops us, what has not begun need not
            for future in waiting:
                future.cancel()


def kpi_values(connection: Connection) -> dict[str, Value]:
    """Every KPI of a connection. Raises UsageError for a value that is not of the type of its column."""
    values = {}
    for name, compute, kind in _computations():
        try:
            values[name] = value = compute(connection)
        except Exception as error:
            error.args = (f"the KPI {name}: {error}",)
            raise
        if value is not None and type(value) is not kind and not _fits(value, kind):
            raise UsageError(
                f"the KPI {name} gave {value!r} ({type(value).__name__}), its function promises {kind.__name__}",
                where=inspect.unwrap(compute).__code__.co_filename,
                remedy=f"return {kind.__name__} or None, or change the annotation of the result",
            )
    return values


def _fits(value: Value, kind: type) -> bool:
    """Whether a column of this kind can hold a value of another type: a whole number as float, numpy's; no bool."""
    wider = {float: numbers.Real, int: numbers.Integral}.get(kind, kind)
    return isinstance(value, wider) and not isinstance(value, bool)


@functools.cache
def _computations() -> tuple[tuple[str, Callable[[Connection], Value], type], ...]:
    return tuple((name, kpi.compute, kpi.kind) for name, kpi in KPIS.items())
