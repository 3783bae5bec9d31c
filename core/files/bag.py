"""A folder as a BagIt bag (RFC 8493): the payload below `data/`, with SHA-256 of every file beside it.

Anybody can check a bag without us: `sha256sum --check manifest-sha256.txt`, or any BagIt program.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from core.errors import UsageError
from core.files import disk
from core.files.config import read_text

PAYLOAD = "data"

_DECLARATION = "BagIt-Version: 1.0\nTag-File-Character-Encoding: UTF-8\n"
_MANIFEST, _TAG_MANIFEST = "manifest-sha256.txt", "tagmanifest-sha256.txt"
_TAG_FILES = ("bagit.txt", "bag-info.txt", _MANIFEST)

MOST_MANIFEST_BYTES = 1 << 30
"""Size limit of a manifest: some millions of files."""


def write(folder: Path, info: Mapping[str, str]) -> None:
    """Makes a bag of a folder whose payload is complete. `bagit.txt`, which declares it, is written last.

    Args:
        info: what `bag-info.txt` says (RFC 8493, section 2.2.2); the size of the payload is added.
    """
    files = sorted(_payload(folder))
    octets = sum((folder / name).stat().st_size for name in files)
    entries = {**info, "Payload-Oxum": f"{octets}.{len(files)}"}
    disk.write_text(folder / _MANIFEST, "".join(f"{_sha256(folder / name)}  {_escaped(name)}\n" for name in files))
    disk.write_text(folder / "bag-info.txt", "".join(f"{name}: {value}\n" for name, value in entries.items()))
    named = {"bagit.txt": hashlib.sha256(_DECLARATION.encode()).hexdigest()}
    named |= {name: _sha256(folder / name) for name in ("bag-info.txt", _MANIFEST)}
    disk.write_text(folder / _TAG_MANIFEST, "".join(f"{digest}  {name}\n" for name, digest in named.items()))
    disk.write_text(folder / "bagit.txt", _DECLARATION)


def verify(folder: Path) -> Iterator[tuple[str, str | None]]:
    """Every file of a bag in order of name, and what is wrong with it: changed, missing, or in no manifest.

    Raises:
        UsageError: this is not a bag, or a manifest of it cannot be read.
    """
    if not (folder / "bagit.txt").is_file():
        raise UsageError("this is not an archive (bagit.txt is missing)", where=str(folder), remedy="name its folder")
    expected = _read_manifest(folder / _TAG_MANIFEST)
    for missing in set(_TAG_FILES) - set(expected):
        raise UsageError(f"{missing} is not named in it", where=str(folder / _TAG_MANIFEST), remedy="copy it again")
    if (folder / _MANIFEST).is_file():
        expected |= _read_manifest(folder / _MANIFEST)
    there = {*_payload(folder), *(name for name in expected if (folder / name).is_file())}
    for name in sorted({*expected, *there}):
        what, path = None, folder / name
        if name not in there or not path.exists():  # a link to nowhere, as of a clone without its content
            what = "missing"
        elif not path.is_file():  # nothing that waits, or never ends, is read
            what = "not a file"
        elif name not in expected:
            what = "in no manifest"
        elif _sha256(path) != expected[name]:
            # No hash of a bag is of the tag manifest, so it may be what was changed.
            what = f"changed (or {_TAG_MANIFEST})" if name in _TAG_FILES else "changed"
        yield name, what


def _payload(folder: Path) -> Iterator[str]:
    """Paths of the payload's files from the bag's folder."""
    for path in (folder / PAYLOAD).rglob("*"):
        if path.is_symlink() or not path.is_dir():
            yield path.relative_to(folder).as_posix()


def _escaped(name: str) -> str:
    """A path as manifests have it (RFC 8493, section 2.1.3)."""
    return name.replace("%", "%25").replace("\n", "%0A").replace("\r", "%0D")


def _read_manifest(path: Path) -> dict[str, str]:
    expected = {}
    for number, line in enumerate(read_text(path, most_bytes=MOST_MANIFEST_BYTES).splitlines(), 1):
        digest, _, name = line.partition("  ")
        plain = name.replace("%0D", "\r").replace("%0A", "\n").replace("%25", "%")
        if len(digest) != 64 or not name or plain.startswith("/") or ".." in plain.split("/"):
            raise UsageError(f"line {number} is not valid", where=str(path), remedy="copy the archive again")
        expected[plain] = digest
    return expected


def _sha256(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
