"""Share of the server's data packets that may have come within two segments of the client's window (an upper bound).
Unit: a share.
"""

from analysis.connection import Connection
from analysis.kpi import Kpi


def _compute(connection: Connection) -> float | None:
    return connection.server_window_limited_share


WINDOW_LIMITED_SHARE = Kpi(
    name="window_limited_share",
    unit="1",
    source="TSecr names the ACK that the sender saw last (docs/design/kpi-engine.md)",
    compute=_compute,
)
