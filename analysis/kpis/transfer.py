"""First to last data packet of the server's largest answer; TCP only. Unit: s."""

from analysis.connection import Connection
from analysis.kpi import Kpi, seconds_between


def _compute(connection: Connection) -> float | None:
    return seconds_between(connection.response_first_ns, connection.response_last_ns)


TRANSFER = Kpi(name="transfer", unit="s", source="design, section 6", compute=_compute)
