"""Largest window that the client announced, as the wire means it. Unit: bytes."""

from analysis.connection import Connection
from analysis.kpi import Kpi


def _compute(connection: Connection) -> int | None:
    return None if connection.protocol == "quic" else connection.client_largest_window


LARGEST_WINDOW = Kpi(name="largest_window", unit="B", source="RFC 7323, section 2.3", compute=_compute)
