"""Every download has the same weight: runs of one domain count as independent.

Shares are the same, as each pair counts once in them anyway. Intervals, tests and the median are of domains; here each
measurement run is its own domain.
"""

import dataclasses

from analysis.measures.dataset import Record
from analysis.measures.quirks import Affects, QuirkStep, each, quirk


@quirk(
    source="Table 2 of the paper: shares of all downloads, without intervals",
    affects=Affects.INTERVALS,
    step=QuirkStep.WEIGHT,
)
@each
def equal_weight(record: Record) -> Record:
    """Every pair of downloads counts as independent, also those of one domain."""
    d = record.download
    cluster = " ".join((d.domain, str(record.folder), d.campaign, d.vantage, str(d.iteration), d.url))
    return dataclasses.replace(record, download=dataclasses.replace(d, domain=cluster))
