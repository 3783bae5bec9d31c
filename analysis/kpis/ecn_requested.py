"""Whether the first SYN asked for ECN."""

from analysis.connection import Connection
from analysis.kpi import Kpi


def _compute(connection: Connection) -> bool | None:
    return connection.ecn_requested


ECN_REQUESTED = Kpi(name="ecn_requested", unit="", source="RFC 3168, section 6.1.1", compute=_compute)
