"""Server segments that others overtook. Unit: packets."""

from analysis.connection import Connection
from analysis.kpi import Kpi


def _compute(connection: Connection) -> int | None:
    return None if connection.protocol == "quic" else connection.server_true_reordered


TRUE_REORDERED = Kpi(
    name="true_reordered",
    unit="packets",
    source="IP-ID order, TSval order, time (docs/design/kpi-engine.md)",
    compute=_compute,
)
