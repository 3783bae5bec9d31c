"""An initial receive buffer of up to 1 GiB, set together with window scaling and never restored.

So window scaling is compared together with the initial buffer, and configurations without it that come later have that
buffer, too: whatever follows WS or ALL in the published order.
"""

from __future__ import annotations

from collections.abc import Mapping

from core.domain import Sysctl
from downloader.factors.rmem import TCP_RMEM
from downloader.quirks import Settings, TrafficQuirk, buffer_bytes


def _settings(levels: Mapping[str, str], settings: Settings) -> Settings:
    others = tuple(one for one in settings if one.name != TCP_RMEM)
    size = buffer_bytes(levels)
    if size is None:
        return others
    return (*others, *(Sysctl(name=TCP_RMEM, field=index, value=str(size)) for index in (1, 2)))


INITIAL_BUFFER = TrafficQuirk(
    name="initial-buffer",
    help="Window scaling sets tcp_rmem's initial and largest size to 65,535 << shift; nothing restores them.",
    source="downloading/startDownloads.py: configure_ws, configure_client_tcp_stack",
    settings=_settings,
)
