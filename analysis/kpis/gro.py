"""Whether the host merged packets before they were captured: packet counts are then too small."""

from analysis.connection import Connection
from analysis.kpi import Kpi


def _compute(connection: Connection) -> bool:
    return connection.gro


GRO = Kpi(name="gro", unit="", source="design, section 6", compute=_compute)
