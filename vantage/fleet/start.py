"""The inventory that a new fleet starts with."""

from __future__ import annotations

from pathlib import Path

from core.errors import UsageError
from core.files import disk
from vantage.fleet import runs

INVENTORY = "hosts.yml"


def write_inventory(folder: Path) -> Path:
    """Copies the example inventory into a folder and returns its path. Raises UsageError if the folder has one."""
    path = folder / INVENTORY
    if path.exists():
        raise UsageError("there is an inventory already", where=str(path), remedy="name another folder, or edit it")
    text = (runs.files() / "inventories" / "example" / INVENTORY).read_text(encoding="utf-8")
    folder.mkdir(parents=True, exist_ok=True)
    disk.write_text(path, text)
    return path
