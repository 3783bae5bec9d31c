"""Fast and spurious retransmissions counted twice.

Wireshark sets `tcp.analysis.retransmission` on them, too (versions 4.0.17 and 4.4.18), and the published code adds the
three counts.
"""

from analysis.measures.dataset import Record
from analysis.measures.quirks import Affects, QuirkStep, each, quirk, with_kpis


@quirk(
    source="pcap_analysis/lib/tcp_kpis.py: TCPRetransmissionStats.total_retransmissions",
    affects=Affects.COUNTS,
    step=QuirkStep.COUNTS,
)
@each
def double_retransmissions(record: Record) -> Record:
    """Fast and spurious retransmissions are counted twice."""
    again = record.number("true_retransmissions")
    fast, spurious = record.number("ws_fast_retransmissions"), record.number("ws_spurious_retransmissions")
    if again is None or fast is None or spurious is None:
        return record
    return with_kpis(record, true_retransmissions=again + fast + spurious)
