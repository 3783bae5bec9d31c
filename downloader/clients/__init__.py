"""One file per client: how to call it, and how to parse its result. To add a client, add a file."""

from core.registry import Registry
from downloader.client import Client

ALL = Registry(__name__, Client)
