"""Mean time between edges of the spin bit in the server's packets; None where it does not spin. Unit: ms."""

from analysis.connection import Connection
from analysis.kpi import Kpi, milliseconds


def _compute(connection: Connection) -> float | None:
    return milliseconds(connection.quic_spin_rtt_mean_ns)


SPIN_RTT_MEAN = Kpi(name="spin_rtt_mean", unit="ms", source="RFC 9000, section 17.4", compute=_compute)
