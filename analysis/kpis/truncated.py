"""Whether the capture file is cut or damaged."""

from analysis.connection import Connection
from analysis.kpi import Kpi


def _compute(connection: Connection) -> bool:
    return connection.truncated


TRUNCATED = Kpi(name="truncated", unit="", source="design, section 6", compute=_compute)
