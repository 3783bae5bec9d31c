"""The client's window at its first request: the other limit of a server's first flight."""

from analysis.captures.connection import Connection
from analysis.captures.kpi import kpi

SEGMENT_BYTES = 1460
"""Payload of a segment over Ethernet and IPv4 without options, in which the window is counted as well."""


@kpi(unit="B", source="RFC 7323, section 2.3", tcp_only=True)
def request_window(connection: Connection) -> int | None:
    """Window that the client announced with its first data (request, or ClientHello), after scaling."""
    return connection.client.first_data_window


@kpi(unit="segments", source="IW-in-the-wild paper, Table I", tcp_only=True)
def request_window_segments(connection: Connection) -> int | None:
    """The same in whole segments of 1460 bytes: a larger initial window of the server does not fit."""
    window = connection.client.first_data_window
    return None if window is None else window // SEGMENT_BYTES
