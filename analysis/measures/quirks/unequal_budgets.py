"""QUIC is given 15 s, TCP 45 s.

Longer downloads become censored, as they would have been. A campaign with smaller budgets shows no difference.
"""

import dataclasses

from analysis.measures.dataset import Record
from analysis.measures.quirks import Affects, QuirkStep, each, quirk
from core.domain import Failure, Outcome, Transport

BUDGETS_S = {Transport.QUIC.value: 15.0, Transport.TCP.value: 45.0}
"""Seconds per transport."""


@quirk(
    source="downloading/lib/quic_module/quic_download.py: proc.wait(timeout=15); dl_file.py: proc.wait(timeout=45)",
    affects=Affects.PAIRS,
    step=QuirkStep.OUTCOMES,
)
@each
def unequal_budgets(record: Record) -> Record:
    """Downloads over QUIC are killed after 15 s, over TCP after 45 s."""
    d = record.download
    budget_s = BUDGETS_S.get(d.transport)
    if budget_s is None or d.outcome == Outcome.FAILED:
        return record
    ran_s = d.last_byte_s or 0.0
    if d.outcome == Outcome.CENSORED and d.failure != Failure.BYTE_BUDGET:
        ran_s = max(ran_s, d.budget_s)
    if ran_s <= budget_s:
        return record
    cut = dataclasses.replace(
        d,
        outcome=Outcome.CENSORED.value,
        failure=Failure.TIME_BUDGET.value,
        budget_s=budget_s,
        last_byte_s=None if d.last_byte_s is None else min(d.last_byte_s, budget_s),
    )
    return dataclasses.replace(record, download=cut)
