"""The server had at least this much in flight at its peak. Unit: bytes."""

from analysis.connection import Connection
from analysis.kpi import Kpi


def _compute(connection: Connection) -> int | None:
    return connection.server_flight_lower_max


FLIGHT_LOWER_MAX = Kpi(
    name="flight_lower_max",
    unit="B",
    source="TSecr names the ACK that the sender saw last (docs/design/kpi-engine.md)",
    compute=_compute,
)
