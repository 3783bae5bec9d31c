"""Every iteration of a domain is compared with the domain's first QUIC run."""

import dataclasses
from collections.abc import Sequence

from analysis.measures.dataset import Record
from analysis.measures.quirks import Affects, QuirkStep, quirk
from core.domain import Transport


@quirk(source="pcap_analysis/lib/quic_kpis.py: QUICRESULTs (paths[0])", affects=Affects.PAIRS, step=QuirkStep.CHOICE)
def first_quic_run(records: Sequence[Record]) -> list[Record]:
    """Of a domain's QUIC runs only the first is read; the TCP downloads of all iterations are paired with it."""
    first: dict[tuple[object, ...], Record] = {}
    for record in records:
        if record.download.transport == Transport.QUIC:
            known = first.setdefault(_series(record), record)
            if record.download.iteration < known.download.iteration:
                first[_series(record)] = record
    return [_instead(record, first.get(_series(record), record)) for record in records]


def _series(record: Record) -> tuple[object, ...]:
    """Identifies the downloads that differ in their iteration only."""
    folder, campaign, vantage, _, domain, url = record.run
    return folder, campaign, vantage, domain, url, record.download.configuration


def _instead(record: Record, first: Record) -> Record:
    if first.download.iteration == record.download.iteration:
        return record
    return dataclasses.replace(first, download=dataclasses.replace(first.download, iteration=record.download.iteration))
