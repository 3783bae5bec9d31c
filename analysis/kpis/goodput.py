"""TCP: mean throughput without what the server sent again, by `true_class`. QUIC: body bytes by the client's account
over the same time, as retransmissions are invisible in a capture; None until a download is joined. Unit: Mbit/s.
"""

from analysis.connection import Connection
from analysis.kpi import Kpi, megabits_per_second


def _compute(connection: Connection) -> float | None:
    if connection.protocol == "quic":
        if connection.body_bytes is None:
            return None
        return megabits_per_second(connection.body_bytes, connection.duration_s)
    useful = connection.server_ip_bytes - connection.server_retransmitted_ip_bytes
    return megabits_per_second(useful, connection.duration_s)


GOODPUT = Kpi(name="goodput", unit="Mbit/s", source="ANRW'23, section 3", compute=_compute)
