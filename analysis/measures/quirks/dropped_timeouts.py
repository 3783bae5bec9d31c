"""Downloads that did not end in time are dropped, although what is known of them is that they were slow."""

import dataclasses

from analysis.measures.dataset import Record
from analysis.measures.quirks import Affects, QuirkStep, each, quirk
from core.domain import Failure, Outcome


@quirk(
    source="pcap_analysis/lib/quic_kpis.py: check_aioquic_success, check_quiche_success",
    affects=Affects.PAIRS,
    step=QuirkStep.CHOICE,
)
@each
def dropped_timeouts(record: Record) -> Record:
    """Downloads that hit their time budget are left out, as if they had failed."""
    d = record.download
    if d.outcome != Outcome.CENSORED or d.failure == Failure.BYTE_BUDGET:
        return record
    return dataclasses.replace(record, download=dataclasses.replace(d, outcome=Outcome.FAILED.value))
