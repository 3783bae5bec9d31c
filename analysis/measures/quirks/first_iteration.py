"""Table 1 counts domains of the first iteration, not downloads."""

from collections.abc import Sequence

from analysis.measures.dataset import Record
from analysis.measures.quirks import Affects, QuirkStep, ReadingQuirk
from core.domain import Outcome

_ORDER = (Outcome.OK, Outcome.CENSORED, Outcome.FAILED)


def _change(records: Sequence[Record]) -> list[Record]:
    measured = [record for record in records if not record.is_warmup]
    iterations: dict[tuple[int, str], int] = {}
    for record in measured:
        key = (record.folder, record.download.vantage)
        iterations[key] = min(iterations.get(key, record.download.iteration), record.download.iteration)
    best: dict[tuple[object, ...], Record] = {}
    for record in measured:
        d = record.download
        if d.iteration == iterations[record.folder, d.vantage]:
            known = best.setdefault((d.vantage, d.transport, d.domain), record)
            if _rank(record) < _rank(known):
                best[d.vantage, d.transport, d.domain] = record
    return list(best.values())


def _rank(record: Record) -> int:
    return _ORDER.index(Outcome(record.download.outcome))


FIRST_ITERATION = ReadingQuirk(
    name="first-iteration",
    help="Table 1 counts domains of the first iteration with a successful download, not downloads.",
    source="Table 1 of the paper",
    affects=Affects.TABLE1,
    step=QuirkStep.CHOICE,
    change=_change,
)
