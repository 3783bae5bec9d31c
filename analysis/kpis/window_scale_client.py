"""Window scale shift that the client offered in its first SYN; None without the option. Unit: bit."""

from analysis.connection import Connection
from analysis.kpi import Kpi


def _compute(connection: Connection) -> int | None:
    return connection.client_window_scale


WINDOW_SCALE_CLIENT = Kpi(
    name="window_scale_client",
    unit="bit",
    source="RFC 7323, section 2.2",
    compute=_compute,
)
