"""Server segments that were sent again. Unit: packets."""

from analysis.connection import Connection
from analysis.kpi import Kpi


def _compute(connection: Connection) -> int | None:
    return None if connection.protocol == "quic" else connection.server_true_retransmission


TRUE_RETRANSMISSIONS = Kpi(
    name="true_retransmissions",
    unit="packets",
    source="IP-ID order, TSval order, time (docs/design/kpi-engine.md)",
    compute=_compute,
)
