"""Files that are written atomically: to a temporary file in the same folder, flushed to disk unless said otherwise, and
renamed."""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path


@contextmanager
def whole_file(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """A temporary path in the same folder that is renamed to `path` if the block succeeds, else removed."""
    with whole_files(path, durable=durable) as (temporary,):
        yield temporary


@contextmanager
def whole_files(*paths: Path, durable: bool = True) -> Iterator[tuple[Path, ...]]:
    """Like `whole_file` for files that belong together: all are complete and on disk before the first is renamed.

    They are renamed in the order of `paths`, so the one that makes the others valid should be last.

    Args:
        durable: wait for the disk, so that a power cut leaves the old or the new file. Else readers still see one of
            them, but a power cut may leave an empty file.
    """
    temporaries = tuple(path.with_name(f".{path.name}.{os.getpid()}.part") for path in paths)
    with ExitStack() as stack:
        for path, temporary in zip(paths, temporaries, strict=True):
            path.parent.mkdir(parents=True, exist_ok=True)
            _remove_remains(path)
            stack.callback(temporary.unlink, missing_ok=True)
        yield temporaries
        for temporary in temporaries if durable else ():
            with temporary.open("rb") as handle:
                os.fsync(handle.fileno())
        for path, temporary in zip(paths, temporaries, strict=True):
            temporary.replace(path)


def _remove_remains(path: Path) -> None:
    """Removes temporary files of this file that killed processes left behind."""
    for part in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
        owner = part.name.split(".")[-2]
        if owner.isdecimal() and not Path(f"/proc/{owner}").exists():
            part.unlink(missing_ok=True)


def write_text(path: Path, text: str, *, durable: bool = True) -> None:
    """Writes a text file atomically (`durable`: see `whole_files`)."""
    with whole_file(path, durable=durable) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, document: object) -> None:
    """Writes a JSON file atomically."""
    write_text(path, json_text(document))


def json_text(document: object) -> str:
    """A JSON document in the format of our files."""
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
