"""Both directions counted for QUIC, but only the server's bytes for TCP."""

from analysis.measures.dataset import Record
from analysis.measures.quirks import Affects, QuirkStep, each, quirk, with_kpis
from core.domain import Transport


@quirk(
    source="pcap_analysis/lib/quic_kpis.py: QUICRESULT.flowrate; tcp_flow_info.py: TCPFlowCharacteristics.flowrate",
    affects=Affects.THROUGHPUT,
    step=QuirkStep.RATES,
)
@each
def both_directions(record: Record) -> Record:
    """QUIC's throughput counts the bytes of client and server, TCP's only those of the server."""
    server, client = record.number("ip_bytes_from_server"), record.number("ip_bytes_from_client")
    throughput = record.number("mean_throughput")
    if record.download.transport != Transport.QUIC or not server or client is None or throughput is None:
        return record
    return with_kpis(record, mean_throughput=throughput * (server + client) / server)
