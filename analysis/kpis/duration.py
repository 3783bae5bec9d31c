"""First to last packet of the connection. Unit: s."""

from analysis.connection import Connection
from analysis.kpi import Kpi


def _compute(connection: Connection) -> float:
    return connection.duration_s


DURATION = Kpi(name="duration", unit="s", source="design, section 6", compute=_compute)
