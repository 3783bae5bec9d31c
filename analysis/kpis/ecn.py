"""Whether ECN was negotiated, classic or accurate."""

from analysis.connection import Connection
from analysis.kpi import Kpi


def _compute(connection: Connection) -> bool | None:
    return connection.ecn_accepted


ECN = Kpi(name="ecn", unit="", source="RFC 3168, section 6.1.1", compute=_compute)
