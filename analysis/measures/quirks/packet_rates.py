"""Retransmission rates as shares of packets, where the paper speaks of shares of data."""

from analysis.measures.dataset import Record
from analysis.measures.quirks import Affects, QuirkStep, each, quirk, with_kpis


@quirk(source="pcap_analysis/lib/lib.py: get_packet_loss", affects=Affects.COUNTS, step=QuirkStep.RATES)
@each
def packet_rates(record: Record) -> Record:
    """The retransmission rate is a share of the server's packets, ACKs and handshake included, not of its data."""
    again, packets = record.number("true_retransmissions"), record.number("packets_from_server")
    if again is None or not packets:
        return record
    return with_kpis(record, retransmission_rate=again / packets)
