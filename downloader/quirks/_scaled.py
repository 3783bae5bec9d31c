"""The buffer that the published code sets together with window scaling."""

from __future__ import annotations

from collections.abc import Mapping

UNSCALED = 65_535
"""Largest window without scaling [bytes] (RFC 7323)."""


def buffer_bytes(levels: Mapping[str, str]) -> int | None:
    """65,535 shifted by the window scale, e.g. 1,073,725,440 for 14; None without scaling, where nothing is set."""
    level = levels["window_scaling"]
    return UNSCALED << int(level) if level.isdecimal() and level != "0" else None
