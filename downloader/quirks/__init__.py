"""One file per quirk of the published code that needs other traffic. To add one, add a file; `pauses.py` shows how."""

from downloader.quirk import Quirk
from upshift.registry import Registry

ALL = Registry(__name__, Quirk)
