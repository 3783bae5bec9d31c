"""Throughput until the last packet of the connection, whichever side sent it."""

from analysis.measures.dataset import Record
from analysis.measures.quirks import Affects, QuirkStep, each, quirk, with_kpis


@quirk(
    source="pcap_analysis/lib/tcp_flow_info.py: FlowDuration; quic_kpis.py: QUICFlowDuration",
    affects=Affects.THROUGHPUT,
    step=QuirkStep.PACKETS,
)
@each
def whole_connection(record: Record) -> Record:
    """Throughput is over the time from the first to the last packet, closing the connection included."""
    size, duration_s = record.number("ip_bytes_from_server"), record.number("duration")
    if size is None or not duration_s or record.number("mean_throughput") is None:
        return record
    return with_kpis(record, mean_throughput=size * 8 / duration_s / 1e6)
