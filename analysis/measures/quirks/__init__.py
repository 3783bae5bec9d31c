"""Quirks of the published ANRW'23 pipeline, which one reading of our data can imitate one by one. Pure.

One file per quirk; to add one, add a file. `both_directions.py` shows how. Each is a change of the records (downloads
with their KPIs) from which tables are made. The source of each is the published code,
github.com/tumi8/active-tcp-and-quic-measurements at commit 9faf8f4. What needs other packets than were sent is no quirk
of this kind: see `published_quirks` in docs/method/published-way.md.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum

from analysis.measures.dataset import Dataset, Record, Value
from core.registry import Registry

Change = Callable[[Sequence[Record]], list[Record]]


class Affects(StrEnum):
    """What a quirk moves; the vocabulary is closed."""

    THROUGHPUT = "throughput"
    """Mean throughputs, and so Table 2 by `--metric throughput`."""
    PAIRS = "pairs"
    """Which downloads Table 2 compares."""
    INTERVALS = "intervals"
    """Intervals, tests and medians of Table 2, not its shares."""
    COUNTS = "counts"
    """Retransmissions, ECE and CWR of each configuration."""
    TABLE1 = "table1"
    """Table 1 only."""


class QuirkStep(IntEnum):
    """The order in which several quirks are applied, so that the order of the options does not matter."""

    PACKETS = 1
    """How single packets are counted."""
    RATES = 2
    """Rates of these counts."""
    COUNTS = 3
    """Sums of these counts."""
    OUTCOMES = 4
    """How downloads end."""
    CHOICE = 5
    """Which downloads are compared."""
    WEIGHT = 6
    """What the downloads weigh."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingQuirk:
    """One way in which the published pipeline differs."""

    name: str
    """For `--quirk`."""
    help: str
    """What the published code does, as one sentence."""
    source: str
    """File and function of the published code."""
    affects: Affects
    step: QuirkStep
    change: Change
    """Records as they are -> as the published code would see them. Records that it does not concern stay the same
    objects."""


def quirk(*, source: str, affects: Affects, step: QuirkStep) -> Callable[[Change], ReadingQuirk]:
    """Makes a quirk of a function of all records, or of `each`: its name is that for `--quirk`, with hyphens, and its
    docstring the help."""

    def make(change: Change) -> ReadingQuirk:
        return ReadingQuirk(
            name=change.__name__.replace("_", "-"),
            help=" ".join((change.__doc__ or "").split()),
            source=source,
            affects=affects,
            step=step,
            change=change,
        )

    return make


def with_quirks(data: Dataset, quirks: Iterable[ReadingQuirk]) -> Dataset:
    """The dataset as read with these quirks, for any order of them."""
    chosen = set(quirks)
    if not chosen:
        return data
    records: Sequence[Record] = data.records
    for quirk in sorted(chosen, key=lambda one: (one.step, one.name)):
        records = quirk.change(records)
    return data.with_records(records)


def each(change: Callable[[Record], Record]) -> Change:
    """The change of every record by itself."""

    @functools.wraps(change)
    def of_all(records: Sequence[Record]) -> list[Record]:
        return [change(record) for record in records]

    return of_all


def with_kpis(record: Record, **kpis: Value) -> Record:
    """The record with other values of some KPIs."""
    return dataclasses.replace(record, kpis={**record.kpis, **kpis})


ALL = Registry(__name__, ReadingQuirk)
