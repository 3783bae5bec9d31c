"""Retransmissions by Wireshark's verdict: what it calls out of order is none, some reordered segments are.

At the receiver, a retransmission that arrives within a round trip of later data looks like a reordered segment.
"""

from analysis.measures.dataset import Record
from analysis.measures.quirks import Affects, QuirkStep, each, quirk, with_kpis

VERDICTS = ("ws_retransmissions", "ws_fast_retransmissions", "ws_spurious_retransmissions")
"""KPIs of which each segment is in at most one."""


@quirk(
    source="pcap_analysis/lib/lib.py: get_retransmission_count_from_df, get_packet_loss",
    affects=Affects.COUNTS,
    step=QuirkStep.PACKETS,
)
@each
def wireshark_verdicts(record: Record) -> Record:
    """A segment is a retransmission if Wireshark says so; what it calls out of order is not counted."""
    counts = [record.number(name) for name in VERDICTS]
    if any(count is None for count in counts):
        return record
    return with_kpis(record, true_retransmissions=sum(count for count in counts if count is not None))
