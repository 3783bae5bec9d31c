"""One file per kernel option. To add a factor, add a file; `ecn.py` shows how."""

from core.registry import Registry
from downloader.factor import Factor

ALL = Registry(__name__, Factor)
