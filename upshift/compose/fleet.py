"""`upshift fleet`: the commands of `vantage.fleet`, and those that need a campaign, too."""

from __future__ import annotations

from vantage.fleet.cli import app

__all__ = ["app"]
