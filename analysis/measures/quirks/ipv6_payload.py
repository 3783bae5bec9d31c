"""IPv6 packets without their header of 40 bytes (RFC 8200, section 3)."""

import ipaddress

from analysis.measures.dataset import Record
from analysis.measures.quirks import Affects, QuirkStep, ReadingQuirk, each, with_kpis

HEADER = 40
"""Bytes that `ipv6.plen` leaves out; IPv4's `ip.len` has its header in it."""


def _change(record: Record) -> Record:
    if not _is_ipv6(record.download.server_ip):
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


def _is_ipv6(address: str | None) -> bool:
    try:
        return address is not None and ipaddress.ip_address(address).version == 6
    except ValueError:
        return False


IPV6_PAYLOAD = ReadingQuirk(
    name="ipv6-payload",
    help="Of an IPv6 packet the 40 bytes of its header are not counted; of an IPv4 packet they are.",
    source="pcap_analysis/lib/tcp_flow_info.py and quic_kpis.py: sums of ip.len and ipv6.plen",
    affects=Affects.THROUGHPUT,
    step=QuirkStep.PACKETS,
    change=each(_change),
)
