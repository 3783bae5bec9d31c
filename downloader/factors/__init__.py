"""One file per kernel option. To add a factor, add a file; `ecn.py` shows how."""

from downloader.factor import Factor
from upshift.registry import Registry

ALL = Registry(__name__, Factor)
