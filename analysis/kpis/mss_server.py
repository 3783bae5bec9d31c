"""MSS option of the server's SYN-ACK. Unit: bytes."""

from analysis.connection import Connection
from analysis.kpi import Kpi


def _compute(connection: Connection) -> int | None:
    return connection.server_mss


MSS_SERVER = Kpi(name="mss_server", unit="B", source="RFC 9293, section 3.7.1", compute=_compute)
