"""99th percentile of the round-trip times by timestamps, within 0.5 %. Unit: ms."""

from analysis.connection import Connection
from analysis.kpi import Kpi, milliseconds


def _compute(connection: Connection) -> float | None:
    return milliseconds(connection.client_rtt_ts_p99_ns)


RTT_P99 = Kpi(
    name="rtt_p99", unit="ms", source="three-way matching of TSval and TSecr (RFC 7323) at the client", compute=_compute
)
