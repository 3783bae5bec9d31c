"""Configurations over TCP from their levels alone."""

from __future__ import annotations

import json
from collections.abc import Mapping

from core.domain import Configuration
from downloader.campaign.configurations import recorded


def over_tcp(levels: Mapping[str, str]) -> Configuration:
    return Configuration(name="any", client="requests", levels=levels)


def levels_text(levels: Mapping[str, str]) -> str:
    """The column `levels` of a download with these levels."""
    return json.dumps(dict(recorded(over_tcp(levels)).levels))
