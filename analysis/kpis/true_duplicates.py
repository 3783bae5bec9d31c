"""Server packets that the network or the capture doubled. Unit: packets."""

from analysis.connection import Connection
from analysis.kpi import Kpi


def _compute(connection: Connection) -> int | None:
    return None if connection.protocol == "quic" else connection.server_true_duplicate


TRUE_DUPLICATES = Kpi(
    name="true_duplicates",
    unit="packets",
    source="IP-ID order, TSval order, time (docs/design/kpi-engine.md)",
    compute=_compute,
)
