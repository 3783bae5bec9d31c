"""SYNs that the client sent; more than one means a loss. Unit: packets."""

from analysis.connection import Connection
from analysis.kpi import Kpi


def _compute(connection: Connection) -> int | None:
    return None if connection.protocol == "quic" else connection.client_syn_packets


SYN_PACKETS = Kpi(name="syn_packets", unit="packets", source="RFC 9293, section 3.5", compute=_compute)
