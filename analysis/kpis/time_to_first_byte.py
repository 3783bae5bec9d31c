"""First SYN to the first data packet of the server's largest answer; TCP only, as QUIC hides where an answer begins.
Unit: s.
"""

from analysis.connection import Connection
from analysis.kpi import Kpi, seconds_between


def _compute(connection: Connection) -> float | None:
    return seconds_between(connection.syn_ns, connection.response_first_ns)


TIME_TO_FIRST_BYTE = Kpi(name="time_to_first_byte", unit="s", source="design, section 6", compute=_compute)
