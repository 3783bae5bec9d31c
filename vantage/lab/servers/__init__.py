"""One file per server kind: what it can do, and how to start it. Adding a server kind is adding a file."""

from upshift.registry import Registry
from vantage.lab.server_kind import ServerKind

ALL = Registry(__name__, ServerKind)
