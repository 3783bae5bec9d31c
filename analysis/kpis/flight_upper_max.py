"""The server had at most this much in flight at its peak. Unit: bytes."""

from analysis.connection import Connection
from analysis.kpi import Kpi


def _compute(connection: Connection) -> int | None:
    return connection.server_flight_upper_max


FLIGHT_UPPER_MAX = Kpi(
    name="flight_upper_max",
    unit="B",
    source="TSecr names the ACK that the sender saw last (docs/design/kpi-engine.md)",
    compute=_compute,
)
