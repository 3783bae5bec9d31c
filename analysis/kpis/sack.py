"""Whether both SYNs permit SACK."""

from analysis.connection import Connection
from analysis.kpi import Kpi


def _compute(connection: Connection) -> bool | None:
    return connection.sack_accepted


SACK = Kpi(name="sack", unit="", source="RFC 2018, section 2", compute=_compute)
