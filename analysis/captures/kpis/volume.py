"""How much was captured, and reasons for counts that are too small."""

from analysis.captures.connection import Connection
from analysis.captures.kpis import kpi

_COUNT = "Upshift: count over the captured packets"


@kpi(unit="packets", source=_COUNT)
def packets_from_client(connection: Connection) -> int:
    """Packets that the client sent and that reached the capture."""
    return connection.client.packets


@kpi(unit="packets", source=_COUNT)
def packets_from_server(connection: Connection) -> int:
    """Packets that the server sent and that reached the capture."""
    return connection.server.packets


@kpi(unit="B", source=_COUNT)
def ip_bytes_from_client(connection: Connection) -> int:
    """IP bytes that the client sent and that reached the capture: IPv4 total length, IPv6 payload length + 40."""
    return connection.client.ip_bytes


@kpi(unit="B", source=_COUNT)
def ip_bytes_from_server(connection: Connection) -> int:
    """IP bytes that the server sent and that reached the capture: IPv4 total length, IPv6 payload length + 40."""
    return connection.server.ip_bytes


@kpi(source="Upshift: packets larger than the MSS or the Ethernet frame")
def gro(connection: Connection) -> bool:
    """Whether the host merged packets before they were captured: packet counts are then too small, and IP bytes and the
    rates of them by the merged packets' headers: of TCP by up to 3.5 % (IPv6: 4.8 %).
    """
    return connection.gro


@kpi(source="Upshift: the capture file's own structure")
def truncated(connection: Connection) -> bool:
    """Whether the capture file is truncated or damaged."""
    return connection.truncated
