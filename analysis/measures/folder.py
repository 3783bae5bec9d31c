"""A campaign folder's documents, as analysis needs them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.files.config import read_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """One campaign folder."""

    path: Path
    environment: Mapping[str, Any] | None
    """`environment.json`, if present."""
    lab: Mapping[str, Any] | None
    """`lab.json` (see docs/design/house.md), for a campaign that ran in a lab."""
    composition: Mapping[str, Any] | None = None
    """`targets/composition.json`, the report of `upshift targets compose`, if present."""
    windows: Mapping[str, Any] | None = None
    """`targets/windows.json`: domain -> what `upshift survey iw` found, if the targets have it."""

    @property
    def published_quirks(self) -> tuple[str, ...]:
        """Names of quirks of the published code with which it was measured (`downloader.quirks`)."""
        campaign = (self.environment or {}).get("campaign")
        found = campaign.get("published_quirks") if isinstance(campaign, dict) else None
        return tuple(map(str, found)) if isinstance(found, list) else ()


def read_folder(path: Path) -> Folder:
    """The documents beside the downloads. Raises UsageError for one that is not valid JSON."""

    def document(name: str) -> Mapping[str, Any] | None:
        file = path / name
        return read_json(file) if file.exists() else None

    return Folder(
        path=path,
        environment=document("environment.json"),
        lab=document("lab.json"),
        composition=document("targets/composition.json"),
        windows=document("targets/windows.json"),
    )
