"""IP bytes that the client sent and that reached the capture: IPv4 total length, IPv6 payload length + 40. Unit:
bytes.
"""

from analysis.connection import Connection
from analysis.kpi import Kpi


def _compute(connection: Connection) -> int:
    return connection.client_ip_bytes


IP_BYTES_FROM_CLIENT = Kpi(
    name="ip_bytes_from_client",
    unit="B",
    source="design, section 6",
    compute=_compute,
)
