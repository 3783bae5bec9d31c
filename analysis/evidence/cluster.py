"""Captures read by the workers of a Dask cluster: `upshift inspect --scheduler` (extra `scale`).

A task is a list of measurement runs. What a lost worker had is given to another one, and rows are the same whoever read
them. Only this client writes tables. Who reaches the ports of a scheduler or a worker can run programs there, so they
belong into a network of one's own, or behind TLS (Dask's settings of `distributed.comm.tls`).
"""

from __future__ import annotations

import functools
import itertools
import pkgutil
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, Self, TypeVar

from analysis.captures.scan import in_order
from analysis.evidence.rows import ENGINE
from core import reach
from core.errors import PlaceError, UpshiftError, UsageError, not_installed

Item = TypeVar("Item")
Result = TypeVar("Result")

RUNS = 32
"""Measurement runs of a task. One by one, 2,000 captures took five times the CPU time of threads; by 32, twice."""

RETRIES = 3
"""How often a task is tried again after a fault of a worker's place: its disk, its way to S3."""

WORKERS_S, CONNECT_S = 60.0, 10.0
"""How long no worker may be there; how long a scheduler may take to answer."""

_LOOK_S = 2.0
"""Between two looks at the workers."""

_LEAST_AHEAD, _AHEAD = 16, 2
"""Tasks in progress, or whose rows wait: at least, and for each thread of the cluster."""

_ADDRESS = re.compile(r"(tcp|tls)://(?P<host>\[[0-9a-fA-F:]+\]|[^\s/:\[\]]+):\d{1,5}")

_ENGINE = "analysis.evidence.rows:ENGINE"
"""Asked of a worker by name, as it need not have this file."""

_LOST = "the connection to the scheduler is lost"
_SAME = "install the same Upshift and upshift-native there"


class Cluster:
    """A Dask scheduler with its workers, which may come and go. A context manager.

    Args:
        address: `tcp://HOST:PORT` or `tls://HOST:PORT` of the scheduler.

    Raises:
        UsageError: this is no such address, or the extra is not installed.
        PlaceError: no scheduler answers there, none of its workers is alive, or one has another engine.
    """

    def __init__(self, address: str) -> None:
        named = _ADDRESS.fullmatch(address)
        if named is None:
            what = f"{address!r} is not the address of a Dask scheduler"
            raise UsageError(what, where="--scheduler", remedy="write tcp://HOST:8786")
        reach.check_host(named["host"].strip("[]"))
        self._address, self._client = address, _connect(address)
        self._threads, self._looked_s, self._alive_s = 0, 0.0, time.monotonic()
        try:
            self._look()
            while self._threads == 0:
                time.sleep(0.1)
                self._look()
            self._require_engine()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Gives up all tasks."""
        with suppress(Exception):  # a scheduler that is gone has nothing to give up
            self._client.close(timeout=_LOOK_S)

    def in_order(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """`map` on the cluster with few results in memory here.

        Raises:
            PlaceError: the cluster cannot go on: no scheduler, no worker, another engine, workers that are killed by
                the same task.
        """
        given = iter(items)
        batches = iter(lambda: tuple(itertools.islice(given, RUNS)), ())
        executor = self._client.get_executor(retries=RETRIES, pure=False)
        task = functools.partial(_read, function, ENGINE)
        for results in in_order(task, batches, executor=executor, ahead=self._ahead, result=self._wait):
            if isinstance(results, PlaceError):
                raise results
            yield from results

    def _ahead(self) -> int:
        if time.monotonic() - self._looked_s > _LOOK_S:
            self._look()
        return max(_LEAST_AHEAD, _AHEAD * self._threads)

    def _look(self) -> None:
        """Counts the workers' threads."""
        try:
            self._threads = sum(self._client.nthreads().values())
        except OSError:
            raise self._fault(_LOST) from None
        self._looked_s = time.monotonic()
        if self._threads:
            self._alive_s = self._looked_s
        elif self._looked_s - self._alive_s > WORKERS_S:
            raise self._fault(
                f"none of its workers has been alive for {WORKERS_S:.0f} s", f"start some: dask worker {self._address}"
            )

    def _wait(self, future: Future[Any]) -> Any:
        while True:
            try:
                result = future.result(timeout=_LOOK_S)
            except TimeoutError:
                if future.done():
                    raise
                self._look()
            except CancelledError:
                raise self._fault(_LOST) from None
            except UpshiftError:
                raise
            except Exception as error:
                from distributed import KilledWorker

                if isinstance(error, KilledWorker):
                    what = f"workers were lost over and over with the same {RUNS} captures"
                    raise self._fault(what, "read their logs: they may lack memory") from None
                self._require_engine()  # other code may fail in any way
                raise
            else:
                self._alive_s = time.monotonic()
                return result

    def _require_engine(self) -> None:
        engines = self._client.run(pkgutil.resolve_name, _ENGINE, on_error="return")
        for worker, engine in engines.items():
            if isinstance(engine, ImportError | AttributeError | ValueError):
                raise self._fault(f"the worker {worker} has no Upshift ({engine})", _SAME)
            if isinstance(engine, str) and engine != ENGINE:
                raise self._fault(_differs(worker, engine, ENGINE), _SAME)

    def _fault(self, what: str, remedy: str = "start it again, then inspect again") -> PlaceError:
        return PlaceError(what, where=self._address, remedy=remedy)


def _differs(worker: str, theirs: str, ours: str) -> str:
    return f"the worker {worker} has another engine ({theirs}; here it is {ours})"


def _read(function: Callable[[Item], Result], engine: str, items: Sequence[Item]) -> list[Result] | PlaceError:
    """What a worker does: `function` of each item. Another engine is a value, as no other worker shall be tried.

    Raises:
        PlaceError: this worker cannot see the captures: Dask tries it again.
    """
    from distributed import get_worker

    worker = get_worker().address
    if engine != ENGINE:
        return PlaceError(_differs(worker, ENGINE, engine), where="--scheduler", remedy=_SAME)
    try:
        return [function(item) for item in items]
    except PlaceError as error:
        what = f"{error.what} (seen by the worker {worker})"
        raise PlaceError(what, where=error.where, remedy=error.remedy) from None


def _connect(address: str) -> Any:
    try:
        import dask

        # What they log of lost workers would stand between our sentences.
        logs = dict.fromkeys(("distributed", "distributed.client", "tornado", "tornado.application"), "critical")
        dask.config.set({"logging": logs, "distributed.comm.timeouts.connect": CONNECT_S})
        from distributed import Client
    except ModuleNotFoundError:
        raise not_installed("distributed", "scale", where="--scheduler") from None
    try:
        return Client(address, timeout=CONNECT_S, set_as_default=False)  # type: ignore[no-untyped-call]
    except (OSError, ValueError) as error:
        remedy = f"start one there: dask scheduler --port {address.rpartition(':')[2]}"
        raise PlaceError("no Dask scheduler answers", where=address, remedy=remedy) from error
