"""IP bytes that the server sent and that reached the capture: IPv4 total length, IPv6 payload length + 40. Unit:
bytes.
"""

from analysis.connection import Connection
from analysis.kpi import Kpi


def _compute(connection: Connection) -> int:
    return connection.server_ip_bytes


IP_BYTES_FROM_SERVER = Kpi(
    name="ip_bytes_from_server",
    unit="B",
    source="design, section 6",
    compute=_compute,
)
