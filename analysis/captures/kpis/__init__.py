"""The KPIs, one file per family: each is a pure function of a connection's record, with its unit and source."""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from analysis.captures.connection import Connection
from core.registry import Registry

Value = float | int | str | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Kpi:
    """A figure of one connection: a pure function of its record."""

    name: str
    """Column of `downloads.parquet` and key in JSON."""
    unit: str
    """Unit; empty without a unit, `1` for shares."""
    meaning: str
    """What it measures, in one paragraph."""
    source: str
    """Source of the definition."""
    compute: Callable[[Connection], Value]
    """The value; None if it cannot be determined. The annotation of its result is the type of the column."""

    @property
    def kind(self) -> type:
        """The type of the values: `float`, `int`, `str` or `bool`."""
        hint: Any = typing.get_type_hints(self.compute)["return"]
        kinds = [part for part in typing.get_args(hint) or (hint,) if part is not types.NoneType]
        if len(kinds) != 1 or kinds[0] not in (float, int, str, bool):
            raise TypeError(
                f"KPI {self.name}: its function must be annotated to return float, int, str or bool, or None"
            )
        return typing.cast(type, kinds[0])


def kpi(*, source: str, unit: str = "", tcp_only: bool = False) -> Callable[[Callable[[Connection], Value]], Kpi]:
    """Makes a KPI of a function: its name is the column, its docstring the meaning. `tcp_only`: None for QUIC."""

    def make(compute: Callable[[Connection], Value]) -> Kpi:
        @functools.wraps(compute)
        def of_tcp(connection: Connection) -> Value:
            return None if connection.protocol == "quic" else compute(connection)

        return Kpi(
            name=compute.__name__,
            unit=unit,
            meaning=" ".join((compute.__doc__ or "").split()),
            source=source,
            compute=of_tcp if tcp_only else compute,
        )

    return make


def milliseconds(duration_ns: float | None) -> float | None:
    """ns to ms."""
    return None if duration_ns is None else duration_ns / 1e6


def nanoseconds_between(start_ns: int | None, end_ns: int | None) -> int | None:
    """The time between two instants, None if one is missing or the capture's clock was set back in between."""
    return None if start_ns is None or end_ns is None or end_ns < start_ns else end_ns - start_ns


def seconds_between(start_ns: int | None, end_ns: int | None) -> float | None:
    """`nanoseconds_between` in s."""
    duration_ns = nanoseconds_between(start_ns, end_ns)
    return None if duration_ns is None else duration_ns / 1e9


def megabits_per_second(size_bytes: float, duration_s: float | None) -> float | None:
    """A rate [Mbit/s, 10^6 bit/s]; None if the time is 0."""
    return None if duration_s is None or duration_s <= 0 else size_bytes * 8 / duration_s / 1e6


ALL = Registry(__name__, Kpi)
"""KPI name -> `Kpi`, in order of name."""
