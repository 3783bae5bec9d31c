"""Mean time from a segment of the client to the ACK that ends at it; a delayed ACK counts with its delay. Unit: ms."""

from analysis.connection import Connection
from analysis.kpi import Kpi, milliseconds


def _compute(connection: Connection) -> float | None:
    return milliseconds(connection.client_rtt_ack_mean_ns)


RTT_ACK_MEAN = Kpi(
    name="rtt_ack_mean",
    unit="ms",
    source="SEQ/ACK matching with the rule of Karn and Partridge (SIGCOMM 1987)",
    compute=_compute,
)
