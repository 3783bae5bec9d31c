"""Table 1 counts domains of the first iteration, not downloads."""

from collections.abc import Sequence

from analysis.measures.dataset import Record
from analysis.measures.quirks import Affects, QuirkStep, quirk
from core.domain import Outcome

_ORDER = (Outcome.OK, Outcome.CENSORED, Outcome.FAILED)


@quirk(source="Table 1 of the paper", affects=Affects.TABLE1, step=QuirkStep.CHOICE)
def first_iteration(records: Sequence[Record]) -> list[Record]:
    """Table 1 counts domains of the first iteration with a successful download, not downloads."""
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
