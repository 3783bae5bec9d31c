"""Number of round-trip times by timestamps. Unit: samples."""

from analysis.connection import Connection
from analysis.kpi import Kpi


def _compute(connection: Connection) -> int:
    return connection.client_rtt_ts_count


RTT_SAMPLES = Kpi(
    name="rtt_samples",
    unit="samples",
    source="three-way matching of TSval and TSecr (RFC 7323) at the client",
    compute=_compute,
)
