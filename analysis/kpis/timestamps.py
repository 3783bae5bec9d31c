"""Whether both SYNs have timestamps."""

from analysis.connection import Connection
from analysis.kpi import Kpi


def _compute(connection: Connection) -> bool | None:
    return connection.timestamps_accepted


TIMESTAMPS = Kpi(
    name="timestamps",
    unit="",
    source="RFC 7323, section 3.2",
    compute=_compute,
)
