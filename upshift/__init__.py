"""Upshift: how much faster do downloads get when a transport option changes?"""

__version__ = "0.1.0"
