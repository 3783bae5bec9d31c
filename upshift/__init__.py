"""Upshift: how much faster do downloads get when a transport option changes?"""

from core import __version__

__all__ = ["__version__"]
