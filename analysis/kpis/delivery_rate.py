"""Rate at which the answer arrived: its payload after the first packet, over the time from its first to its last
data packet (TLS records and HTTP headers included). QUIC: body bytes over the time from the first to the last
packet of the server after its handshake; None until a download is joined. Unit: Mbit/s.
"""

from analysis.connection import Connection
from analysis.kpi import Kpi, megabits_per_second, seconds_between


def _compute(connection: Connection) -> float | None:
    if connection.protocol == "quic":
        if connection.body_bytes is None:
            return None
        elapsed_s = seconds_between(connection.quic_server_short_ns, connection.server_last_data_ns)
        return megabits_per_second(connection.body_bytes, elapsed_s)
    elapsed_s = seconds_between(connection.response_first_ns, connection.response_last_ns)
    return megabits_per_second(connection.response_bytes - connection.response_first_bytes, elapsed_s)


DELIVERY_RATE = Kpi(name="delivery_rate", unit="Mbit/s", source="design, section 6", compute=_compute)
