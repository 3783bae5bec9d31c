"""Seconds of sleep around every download, in which idle caches and radio links cool down."""

from core.domain import Transport
from downloader.quirks import TrafficQuirk

PAUSES = TrafficQuirk(
    name="pauses",
    help="Sleeps 1 s before and 5 s after each download over TCP, 5 s before and after each one over QUIC.",
    source="downloading/lib/cfg.py: sleep_before, sleep_after, sleep_between; dl_file.py; quic_module/util/capture.py",
    # TCP, after: 1 s until the statistics are read, 1 s sleep_after, 3 s sleep_between.
    pauses_s={Transport.TCP: (1.0, 5.0), Transport.QUIC: (5.0, 5.0)},
)
