"""The client's window, at its first request and at most, and how much the server had in flight."""

from typing import TypeVar

from analysis.captures.connection import Connection
from analysis.captures.kpis import kpi

_FLIGHT = "TSecr identifies the last ACK that the sender saw (docs/design/kpi-engine.md)"
_Number = TypeVar("_Number", int, float)


def _of_scaled(connection: Connection, value: _Number | None) -> _Number | None:
    """What was computed with windows; None where the SYNs that tell their scale are not in the capture."""
    return None if connection.window_scale_accepted is None else value


@kpi(unit="B", source="RFC 7323, section 2.3", tcp_only=True)
def largest_window(connection: Connection) -> int | None:
    """Largest window that the client announced, after scaling. None, as for what else windows tell, where the SYNs with
    their scale are not in the capture.
    """
    return _of_scaled(connection, connection.client.largest_window)


@kpi(unit="B", source=_FLIGHT)
def flight_lower_max(connection: Connection) -> int | None:
    """Lower bound of the most bytes that the server had in flight; more than 65,535 needs a scaled window."""
    return connection.server.flight_lower_max


@kpi(unit="B", source=_FLIGHT)
def flight_upper_max(connection: Connection) -> int | None:
    """Upper bound of the most bytes that the server had in flight."""
    return connection.server.flight_upper_max


@kpi(unit="frames", source="RFC 9000, sections 19.12 and 19.13")
def quic_data_blocked(connection: Connection) -> int | None:
    """DATA_BLOCKED and STREAM_DATA_BLOCKED frames: how often the server reported that the client's window blocked it.
    As reported by a QUIC client that counts them.
    """
    return connection.quic_data_blocked


@kpi(unit="1", source=_FLIGHT)
def window_limited_share(connection: Connection) -> float | None:
    """Share of the server's data packets that may have come within two segments of the client's window (an upper
    bound).
    """
    return _of_scaled(connection, connection.server.window_limited_share)


SEGMENT_BYTES = 1460
"""Payload of a segment over Ethernet and IPv4 without options, in which the window is counted as well."""


@kpi(unit="B", source="RFC 7323, section 2.3", tcp_only=True)
def request_window(connection: Connection) -> int | None:
    """Window that the client announced with its first data (request, or ClientHello), after scaling."""
    return _of_scaled(connection, connection.client.first_data_window)


@kpi(unit="segments", source="IW-in-the-wild paper, Table I", tcp_only=True)
def request_window_segments(connection: Connection) -> int | None:
    """The same in whole segments of 1460 bytes: a larger initial window of the server does not fit."""
    window = _of_scaled(connection, connection.client.first_data_window)
    return None if window is None else window // SEGMENT_BYTES
