"""IPv6 packets without their header of 40 bytes (RFC 8200, section 3)."""

from analysis.measures.dataset import Record
from analysis.measures.quirks import Affects, QuirkStep, each, quirk, with_kpis

HEADER = 40
"""Bytes that `ipv6.plen` leaves out; IPv4's `ip.len` has its header in it."""


@quirk(
    source="pcap_analysis/lib/tcp_flow_info.py and quic_kpis.py: sums of ip.len and ipv6.plen",
    affects=Affects.THROUGHPUT,
    step=QuirkStep.PACKETS,
)
@each
def ipv6_payload(record: Record) -> Record:
    """Of an IPv6 packet the 40 bytes of its header are not counted; of an IPv4 packet they are."""
    if ":" not in (record.download.server_ip or ""):
        return record
    changed: dict[str, float | None] = {}
    for side in ("client", "server"):
        size, packets = record.number(f"ip_bytes_from_{side}"), record.number(f"packets_from_{side}")
        if size and packets is not None:
            changed[f"ip_bytes_from_{side}"] = size - HEADER * packets
            throughput = record.number("mean_throughput")
            if side == "server" and throughput is not None:
                changed["mean_throughput"] = throughput * (size - HEADER * packets) / size
    return with_kpis(record, **changed)
