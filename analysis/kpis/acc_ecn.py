"""Whether accurate ECN was negotiated."""

from analysis.connection import Connection
from analysis.kpi import Kpi


def _compute(connection: Connection) -> bool | None:
    return connection.acc_ecn_accepted


ACC_ECN = Kpi(name="acc_ecn", unit="", source="RFC 9768, section 3.1", compute=_compute)
