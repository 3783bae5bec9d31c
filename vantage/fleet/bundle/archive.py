"""Files -> manifest -> archive, and back: `python -m vantage.fleet.bundle.archive BUNDLE` checks one. The same
files give the same bytes.
"""

from __future__ import annotations

import hashlib
import io
import json
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from core.files import disk

MANIFEST = "manifest.json"

CPU = "x86_64"


def manifest(files: Mapping[str, Path], *, python: str, glibc: tuple[int, int]) -> dict[str, Any]:
    """The document that describes a bundle.

    Args:
        files: name in the bundle -> file.
        python: version, such as `3.12`.
        glibc: the oldest that its binaries run on.

    Returns:
        `release`: 12 hex digits of the SHA-256 over all else; `python`; `cpu`; `glibc`; `files`: name -> SHA-256.
    """
    hashes = {name: _sha256(path) for name, path in sorted(files.items())}
    content = {"python": python, "cpu": CPU, "glibc": list(glibc), "files": hashes}
    return {"release": _release(content), **content}


def _release(content: Mapping[str, Any]) -> str:
    told = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(told.encode()).hexdigest()[:12]


def archive_name(document: Mapping[str, Any]) -> str:
    """The file name of a bundle."""
    return f"upshift-bundle-{document['release']}-py{document['python']}-{CPU}.tar"


def write_archive(files: Mapping[str, Path], document: Mapping[str, Any], folder: Path) -> Path:
    """Writes a bundle into a folder, atomically, and removes others for the same Python; returns its path."""
    target = folder / archive_name(document)
    with disk.whole_file(target) as part, tarfile.open(part, "w", format=tarfile.GNU_FORMAT) as archive:
        _add(archive, MANIFEST, disk.json_text(document).encode())
        for name, path in sorted(files.items()):
            _add(archive, name, path.read_bytes())
    for other in folder.glob(f"upshift-bundle-*-py{document['python']}-{CPU}.tar"):
        if other != target:
            other.unlink()
    return target


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    """Adds a file that belongs to root and has no time."""
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), 0o644
    archive.addfile(entry, io.BytesIO(content))


def is_whole(bundle: Path) -> bool:
    """Whether a bundle has every file that its manifest names, by hash, and is the release that its name says."""
    try:
        with tarfile.open(bundle) as archive:
            found = {entry.name: archive.extractfile(entry) for entry in archive if entry.isfile()}
            told = json.loads((found.pop(MANIFEST) or io.BytesIO()).read())
            hashes = {name: hashlib.sha256(file.read()).hexdigest() for name, file in found.items() if file}
        content = {key: told[key] for key in ("python", "cpu", "glibc", "files")}
    except (OSError, tarfile.TarError, ValueError, KeyError, TypeError):
        return False
    return hashes == told["files"] and _release(content) == told["release"] and archive_name(told) == bundle.name


def _sha256(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


if __name__ == "__main__":
    raise SystemExit(0 if is_whole(Path(sys.argv[1])) else 1)
