"""Smallest time from a segment of the client (its SYN among them) to the ACK that ends at it. Unit: ms."""

from analysis.connection import Connection
from analysis.kpi import Kpi, milliseconds


def _compute(connection: Connection) -> float | None:
    return milliseconds(connection.client_rtt_ack_min_ns)


RTT_ACK_MIN = Kpi(
    name="rtt_ack_min",
    unit="ms",
    source="SEQ/ACK matching with the rule of Karn and Partridge (SIGCOMM 1987)",
    compute=_compute,
)
