"""Window scale shift that the server answered; None without the option. Unit: bit."""

from analysis.connection import Connection
from analysis.kpi import Kpi


def _compute(connection: Connection) -> int | None:
    return connection.server_window_scale


WINDOW_SCALE_SERVER = Kpi(
    name="window_scale_server",
    unit="bit",
    source="RFC 7323, section 2.2",
    compute=_compute,
)
