"""SYNs among the counts of ECE and CWR.

There the flags request ECN and echo nothing: an ECN-setup SYN has both, an ECN-setup SYN-ACK has ECE (RFC 3168, section
6.1.1). Of a connection that fell back to SYNs without ECN the first SYN had them. Repeated SYN-ACKs are not known.
"""

from analysis.measures.dataset import Record
from analysis.measures.quirks import Affects, QuirkStep, each, quirk, with_kpis


@quirk(source="pcap_analysis/lib/tcp_options.py: get_ecn_stats", affects=Affects.COUNTS, step=QuirkStep.COUNTS)
@each
def syn_flags(record: Record) -> Record:
    """The SYNs that negotiate ECN are among the counts of ECE and CWR."""
    ece, cwr = record.number("ece_segments"), record.number("cwr_segments")
    if ece is None or cwr is None or not record.kpis.get("ecn_requested"):
        return record
    syns = 1 if record.kpis.get("ecn_fallback") else record.number("syn_packets") or 1
    return with_kpis(record, ece_segments=ece + syns + bool(record.kpis.get("ecn")), cwr_segments=cwr + syns)
