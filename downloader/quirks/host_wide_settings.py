"""Default and largest receive buffer of all sockets of the host, set together with window scaling.

UDP sockets have them, too: a QUIC client that asks for no buffer of its own gets that of the configuration before it.
"""

from __future__ import annotations

from collections.abc import Mapping

from core.domain import Sysctl
from downloader.quirks import Settings, TrafficQuirk, buffer_bytes


def _settings(levels: Mapping[str, str], settings: Settings) -> Settings:
    size = buffer_bytes(levels)
    if size is None:
        return settings
    return (*settings, *(Sysctl(name=f"net.core.rmem_{which}", value=str(size)) for which in ("default", "max")))


HOST_WIDE_SETTINGS = TrafficQuirk(
    name="host-wide-settings",
    help="Window scaling sets net.core.rmem_default and rmem_max of the whole host to 65,535 << shift.",
    source="downloading/startDownloads.py: configure_ws",
    settings=_settings,
    on_host=True,
)
