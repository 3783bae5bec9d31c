"""One file per quirk of the published pipeline. To add one, add a file; `both_directions.py` shows how."""

from analysis.measures.quirk import Quirk
from core.registry import Registry

ALL = Registry(__name__, Quirk)
