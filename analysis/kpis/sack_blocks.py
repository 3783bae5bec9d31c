"""SACK blocks that the client sent, D-SACK blocks apart. Unit: blocks."""

from analysis.connection import Connection
from analysis.kpi import Kpi


def _compute(connection: Connection) -> int | None:
    return None if connection.protocol == "quic" else connection.client_sack_blocks


SACK_BLOCKS = Kpi(name="sack_blocks", unit="blocks", source="RFC 2018, section 3", compute=_compute)
