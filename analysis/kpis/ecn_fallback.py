"""Whether the client gave up ECN in a repeated SYN."""

from analysis.connection import Connection
from analysis.kpi import Kpi


def _compute(connection: Connection) -> bool | None:
    return connection.ecn_fallback


ECN_FALLBACK = Kpi(name="ecn_fallback", unit="", source="RFC 3168, section 6.1.1.1", compute=_compute)
