"""MSS option of the client's first SYN. Unit: bytes."""

from analysis.connection import Connection
from analysis.kpi import Kpi


def _compute(connection: Connection) -> int | None:
    return connection.client_mss


MSS_CLIENT = Kpi(name="mss_client", unit="B", source="RFC 9293, section 3.7.1", compute=_compute)
