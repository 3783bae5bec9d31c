"""One file per quirk of the published code that needs other traffic. To add one, add a file; `pauses.py` shows how."""

from core.registry import Registry
from downloader.quirk import Quirk

ALL = Registry(__name__, Quirk)
