"""One file per server kind: its roles, and how to start it. To add a server kind, add a file."""

from core.registry import Registry
from vantage.server_kind import ServerKind

ALL = Registry(__name__, ServerKind)
