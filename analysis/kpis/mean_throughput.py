"""IP bytes from the server, over the time from the first to the last packet of the connection (both directions).
IPv6 counts payload length + 40; the published code left the 40 out. Unit: Mbit/s.
"""

from analysis.connection import Connection
from analysis.kpi import Kpi, megabits_per_second


def _compute(connection: Connection) -> float | None:
    return megabits_per_second(connection.server_ip_bytes, connection.duration_s)


MEAN_THROUGHPUT = Kpi(name="mean_throughput", unit="Mbit/s", source="ANRW'23, section 3", compute=_compute)
