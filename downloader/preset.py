"""The type `Preset`: configurations and comparisons that a campaign file names by one word."""

from __future__ import annotations

from dataclasses import dataclass

from core.domain import Comparison, Configuration


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A preset. Each file in `downloader/presets` has one, and the registry finds it there."""

    name: str
    """Its name in the field `configurations` of campaign files."""
    help: str
    """The question that it answers, as one sentence."""
    configurations: tuple[Configuration, ...]
    comparisons: tuple[Comparison, ...]
    """Its rows of Table 2; those of the campaign file are added."""
