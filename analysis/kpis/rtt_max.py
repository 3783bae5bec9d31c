"""Largest round-trip time by timestamps. Unit: ms."""

from analysis.connection import Connection
from analysis.kpi import Kpi, milliseconds


def _compute(connection: Connection) -> float | None:
    return milliseconds(connection.client_rtt_ts_max_ns)


RTT_MAX = Kpi(
    name="rtt_max", unit="ms", source="three-way matching of TSval and TSecr (RFC 7323) at the client", compute=_compute
)
