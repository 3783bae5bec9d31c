"""The downloads of campaign folders as columns: one array per quantity, with an element per download. Pure.

A campaign may have millions of downloads, and an object for each would take 10 kB. Text is stored as codes; what
identifies a measurement run is stored once per run. The rows may be in any order.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from core.domain import Failure, Outcome

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Codes = npt.NDArray[np.signedinteger[Any]]
Mask = npt.NDArray[np.bool_]

Job = TypeVar("Job")
Result = TypeVar("Result")

Flags = npt.NDArray[np.int8]
"""Yes (1), no (0), or unknown (-1)."""


@dataclass(frozen=True, slots=True, eq=False)
class Texts:
    """A column of texts."""

    codes: Codes
    """Index into `names` per row; -1: empty."""
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, rows: Codes | Mask) -> Texts:
        return Texts(self.codes[rows], self.names)

    def are(self, *texts: str) -> Mask:
        """The rows with one of these texts."""
        return self.select(lambda name: name in texts)

    def select(self, wanted: Callable[[str], bool]) -> Mask:
        """The rows with a text that is wanted; empty ones are not."""
        return self.map([wanted(name) for name in self.names], empty=False)

    def map(self, values: Sequence[bool] | Sequence[int] | Codes | Mask, *, empty: int) -> npt.NDArray[Any]:
        """The value of each row, from those of the names."""
        # The last element is that of the code -1.
        return np.append(np.asarray(values), empty)[self.codes] if self.names else np.full(len(self), empty)

    def filled(self, text: str) -> Texts:
        """The same with this text in rows that are empty, or have the empty text."""
        names = self.names if text in self.names else (*self.names, text)
        return Texts(np.where((self.codes < 0) | self.are(""), names.index(text), self.codes), names)

    def present(self) -> set[str]:
        """The texts that occur."""
        counts = np.bincount(self.codes[self.codes >= 0], minlength=len(self.names))
        return {self.names[code] for code in np.flatnonzero(counts)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """The ceiling of one client at one vantage point."""

    mbit_s: float | None
    """Highest rate of body bytes [Mbit/s]; None if unknown."""
    fault: str | None = None
    """Why it is unknown."""
    too_low: bool = False
    """Other programs used the CPUs while it was measured."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Runs:
    """Measurement runs: downloads are compared only within one."""

    folder: Ints
    """Index into `Dataset.folders`: the same names in two folders are two measurement runs."""
    vantage: Texts
    """Its names are sorted."""
    iteration: Ints
    domain: Texts
    """Its names are sorted."""
    url: Texts

    def __len__(self) -> int:
        return len(self.folder)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Downloads:
    """All downloads, folder by folder in the order of the files. See `core.domain.Download` for the columns."""

    runs: Runs
    run: Codes
    """Index into `runs`."""
    configuration: Texts
    client: Texts
    transport: Texts
    provider: Texts
    asn: Texts
    """Origin AS of the server's address, as text; its names are sorted."""
    is_warmup: Mask
    position: Codes
    """Within the measurement run, from 1; warm-ups have less."""
    outcome: Texts
    failure: Texts
    failure_code: Texts
    last_byte_s: Floats
    """NaN: not reached."""
    budget_s: Floats
    void_reason: Texts
    host_disturbance: Texts
    treatment_ok: Flags
    treatment_reason: Texts
    slow_handshake: Flags
    cache_state: Texts
    identity_flags: Texts
    cpu_bound: Flags
    """See `ceilings.cpu_bound`."""
    starved: Flags
    """See `ceilings.starved`."""
    ceiling: Codes
    """Index into `ceilings`: what is known of its client's highest rate at its vantage point."""
    ceilings: tuple[Ceiling, ...]
    has_rate: Mask
    """Whether it has a delivery rate (`ceilings.delivery_rates`)."""
    has_kpis: Mask
    """Whether a connection of the capture is known to be its own."""
    near_ceiling: Flags
    """See `ceilings.near_ceiling`."""

    def __len__(self) -> int:
        return len(self.run)

    @property
    def is_void(self) -> Mask:
        """Whether its measurement run stayed void."""
        return self.void_reason.codes >= 0

    @property
    def is_disturbed(self) -> Mask:
        """Whether its measurement run stayed void, or the host disturbed it."""
        return self.is_void | (self.host_disturbance.codes >= 0)

    @property
    def accepted(self) -> Flags:
        """Whether it may enter a speed-up: as `Download.accepted`."""
        return np.where(self.is_disturbed, 0, self.treatment_ok).astype(np.int8)

    def usable(self, *, unproven: bool) -> Mask:
        """Whether its treatment is proven (or, with `unproven`, not disproved) and nothing disturbed it."""
        counts: Mask = self.accepted != 0 if unproven else self.accepted == 1
        return counts

    @property
    def ended_at_byte(self) -> Mask:
        """Whether the byte budget ended it: after the same byte in all of a measurement run."""
        return self.outcome.are(Outcome.CENSORED) & self.failure.are(Failure.BYTE_BUDGET)

    def any_of_run(self, rows: Mask) -> Mask:
        """The runs in which one of these downloads is."""
        runs = np.zeros(len(self.runs), dtype=np.bool_)
        runs[self.run[rows]] = True
        return runs


def counts(*columns: tuple[Codes, int], where: Mask | None = None) -> Ints:
    """How many rows have each combination of codes: an array with one dimension per column.

    Args:
        columns: codes from 0, and their number.
        where: the rows to count; None for all.
    """
    shape = tuple(size for _, size in columns)
    key: Any = np.zeros(1, dtype=np.int64) if where is None else np.zeros(int(np.count_nonzero(where)), dtype=np.int64)
    for codes, size in columns:
        key = key * size + (codes if where is None else codes[where])
    return np.bincount(key, minlength=int(np.prod(shape))).reshape(shape)


def numbered(columns: Sequence[npt.NDArray[Any]]) -> Ints:
    """Numbers the combinations of integers from 0: equal rows, and only those, have equal numbers."""
    key = np.zeros(len(columns[0]), dtype=np.int64)
    if not len(key):
        return key
    size = 1
    for column in columns:
        values = column.astype(np.int64) - int(column.min()) if _width(column) < 1 << 31 else _dense(column)
        width = int(values.max()) + 1
        if size * width >= 1 << 63:
            key = _dense(key)
            size = int(key.max()) + 1
        key = key * width + values
        size *= width
    return _dense(key)


def _width(column: npt.NDArray[Any]) -> int:
    return int(column.max()) - int(column.min()) + 1


def _dense(values: npt.NDArray[Any]) -> Ints:
    return np.unique(values, return_inverse=True)[1]


def rows_by_code(codes: Codes, size: int) -> list[Ints]:
    """The rows of each code from 0, in their order."""
    order = np.argsort(codes, kind="stable")
    return np.split(order, np.searchsorted(codes[order], np.arange(size + 1)))[1:-1]


def on_all_cores(function: Callable[[Job], Result], jobs: Iterable[Job]) -> list[Result]:
    """The results of the jobs, in their order. numpy sorts outside Python's lock, so threads use all cores."""
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        results = list(pool.map(function, jobs))
    release_memory()  # Each thread has its own.
    return results


def release_memory() -> None:
    """Gives back what pyarrow and the C library keep; a C library other than glibc decides itself."""
    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))
