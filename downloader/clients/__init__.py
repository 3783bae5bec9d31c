"""One file per client: how to call it, and how to read its answer. Adding a client is adding a file."""

from downloader.client import Client
from upshift.registry import Registry

ALL = Registry(__name__, Client)
