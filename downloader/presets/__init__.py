"""One file per preset of a campaign file. To add one, add a file."""

from core.registry import Registry
from downloader.preset import Preset

ALL = Registry(__name__, Preset)
