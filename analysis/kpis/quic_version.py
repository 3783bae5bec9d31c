"""Version number of the last long header; None for TCP."""

from analysis.connection import Connection
from analysis.kpi import Kpi


def _compute(connection: Connection) -> int | None:
    return connection.quic_version


QUIC_VERSION = Kpi(name="quic_version", unit="", source="RFC 9000, section 17.2", compute=_compute)
