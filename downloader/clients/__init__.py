"""One file per client: how to call it, and how to parse its result. To add a client, add a file."""

from downloader.client import Client
from upshift.registry import Registry

ALL = Registry(__name__, Client)
