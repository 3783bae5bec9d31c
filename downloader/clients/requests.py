"""`requests`: HTTP/1.1 over TLS over TCP, forced to one address. The client of all TCP configurations."""

from __future__ import annotations

from core.domain import Transport
from downloader.client import Client

REQUESTS = Client(
    name="requests",
    help="HTTP/1.1 over TCP by Python's requests with forcediphttpsadapter.",
    transport=Transport.TCP,
    http="1.1",
    program="downloader.programs.requests_get",
    packages=("requests", "urllib3", "forcediphttpsadapter"),
)
