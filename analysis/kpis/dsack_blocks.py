"""D-SACK blocks that the client sent: it received something twice. Unit: blocks."""

from analysis.connection import Connection
from analysis.kpi import Kpi


def _compute(connection: Connection) -> int | None:
    return None if connection.protocol == "quic" else connection.client_dsack_blocks


DSACK_BLOCKS = Kpi(name="dsack_blocks", unit="blocks", source="RFC 2883, section 4", compute=_compute)
