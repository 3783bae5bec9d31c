"""Zero window probes of the server. Unit: packets."""

from analysis.connection import Connection
from analysis.kpi import Kpi


def _compute(connection: Connection) -> int | None:
    return None if connection.protocol == "quic" else connection.server_ws_zero_window_probe


WS_ZERO_WINDOW_PROBES = Kpi(
    name="ws_zero_window_probes", unit="packets", source="Wireshark 4.0, epan/dissectors/packet-tcp.c", compute=_compute
)
