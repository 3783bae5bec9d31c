"""A campaign's folder as it can be copied while the campaign runs.

    DIR/snapshot/snapshot.json           what there is to copy, with hashes
    DIR/snapshot/vantage/NAME/...        the journal, by SQLite's backup, and the status
    DIR/snapshot/campaign.json ...       what tables and reports read besides
    DIR/snapshot/snapshot.sha256         SHA-256 of the files above, as `sha256sum --check` reads it
    DIR/snapshot/captures.sha256         SHA-256 of the captures to which the journals refer; paths start at DIR
    DIR/snapshot/captures.list           their paths alone, for `rsync --files-from`

A capture to which a journal refers is complete and never changes, so it is hashed once.
"""

from __future__ import annotations

import contextlib
import filecmp
import hashlib
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from core.errors import PlaceError, UsageError
from core.files import campaign_json, disk
from core.files.config import parse_json, read_bytes
from core.files.disk import free_bytes, take_lock
from core.files.journal import FILE_NAME, JournalReader, open_journals
from downloader.control.status import FILE_NAME as STATUS
from downloader.execution.journal import Journal, another_plan

FOLDER, DOCUMENT = "snapshot", "snapshot.json"

SCHEMA = 1

MOST_LIST_BYTES = 1 << 30
"""Most bytes of a list of captures: a million of them have 240 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """A file that a collected folder has."""

    path: str
    """Where it is, from the campaign's folder; in a collected folder without the leading `snapshot/`."""
    bytes: int
    sha256: str
    modified_ns: int
    """Unix time of its last change [ns]: a capture that has not changed since is not read again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What there is to copy."""

    schema: int
    plan_sha256: str | None
    files: tuple[Copied, ...]

    @property
    def captures(self) -> tuple[Copied, ...]:
        """The captures among the files."""
        return tuple(file for file in self.files if not file.path.startswith(f"{FOLDER}/"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Freed:
    """What was removed."""

    captures: int
    bytes: int


def take(folder: Path) -> Snapshot:
    """Makes or renews the snapshot of a campaign's folder, which another process may be writing.

    Raises:
        UsageError: the folder holds no campaign, or parts of several.
        PlaceError: another snapshot of it is being made; the disk is full.
    """
    with open_journals(folder) as journals, _only_one(folder):
        if not journals:
            raise UsageError("its journals have no plan yet", where=str(folder), remedy="run `upshift run` again")
        known = {file.path: file for file in _earlier(folder)}
        home = folder / FOLDER
        captures: list[Copied] = []
        for name, journal in journals.items():
            copy = home / "vantage" / name / FILE_NAME
            if free_bytes(folder) < journal.path.stat().st_size:  # no room for two copies
                copy.unlink(missing_ok=True)
            with _unless_same(copy) as part:
                journal.copy(part)
            with contextlib.closing(JournalReader(copy)) as copied:
                captures += _captures(folder, copied, known)
        digests = {journal.meta("plan_hash") for journal in journals.values()}
        if len(digests) > 1:
            raise UsageError("its vantage points have different plans", where=str(folder))
        copies = [home / "vantage" / name / FILE_NAME for name in journals] + _small_files(folder, list(journals))
        copied_files = [_described(folder, path, {}) for path in copies]
        snapshot = Snapshot(schema=SCHEMA, plan_sha256=digests.pop(), files=(*copied_files, *captures))
        _write(home, snapshot)
        return snapshot


def free(folder: Path, verified: Path, *, sha256: str | None = None) -> Freed:
    """Removes captures that were verified elsewhere; what was found in them stays in the journal.

    The copies of the journals are removed first: on a full disk the journals need room to say what is dropped.

    Args:
        verified: a `snapshot.json` whose files have arrived. A capture that has changed since, or that the journal has
            not entered, stays.
        sha256: the file's hash; None: whatever it has.

    Raises:
        UsageError: the folder holds no campaign, or `verified` is not a snapshot, or another than was meant.
    """
    arrived = {file.path: file for file in _read(verified, sha256)}
    for copy in (folder / FOLDER).glob(f"vantage/*/{FILE_NAME}"):
        copy.unlink()
    with open_journals(folder) as journals:
        paths = [journal.path for journal in journals.values()]
    count = size = 0
    for path in paths:
        with contextlib.closing(Journal(path)) as journal:
            for name in journal.capture_paths():
                file, there = arrived.get(name), folder / name
                with contextlib.suppress(FileNotFoundError):  # dropped, perhaps just now
                    if file is not None and _described(folder, there, arrived) == file and journal.captures.knows(name):
                        journal.captures.drop(name)  # first in the journal, so that a kill never makes it a lost one
                        there.unlink(missing_ok=True)
                        count, size = count + 1, size + file.bytes
    return Freed(captures=count, bytes=size)


def restore(folder: Path, collected: Path, vantage: str, *, plan_sha256: str | None = None) -> bool:
    """Gives a vantage point without results the journal that was collected from an earlier host of its name.

    Its captures were collected, too: here they count as dropped, as what was found in them is in the journal.

    Args:
        collected: that journal.
        plan_sha256: hash of the plan that it has to be of; None: of any.

    Returns:
        False if the vantage point has a journal, which is not touched.

    Raises:
        UsageError: it is not a journal, or one of another plan.
    """
    target = folder / "vantage" / vantage / FILE_NAME
    if target.exists():
        return False
    with disk.whole_file(target) as part:
        shutil.copyfile(collected, part)
        with contextlib.closing(Journal(part)) as journal:
            if journal.is_empty:
                raise UsageError("this journal has no plan", where=str(collected), remedy="collect it again")
            if plan_sha256 not in (None, journal.meta("plan_hash")):
                raise another_plan(collected, [])
            journal.captures.drop_all()
    return True


@contextlib.contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    (folder / FOLDER).mkdir(exist_ok=True)
    with (folder / FOLDER / ".lock").open("a") as handle:
        if not take_lock(handle.fileno()):
            raise PlaceError("another snapshot is being made", where=str(folder), remedy="wait for it")
        yield


@contextlib.contextmanager
def _unless_same(path: Path) -> Iterator[Path]:
    """Like `disk.whole_file`; a file that is as it was keeps its time, so that nobody copies it again."""
    with disk.whole_file(path) as part:
        yield part
        if path.exists() and filecmp.cmp(path, part, shallow=False):
            shutil.copystat(path, part)


def _captures(folder: Path, journal: JournalReader, known: Mapping[str, Copied]) -> Iterator[Copied]:
    """The captures to which a journal refers, save those that were dropped."""
    for name in journal.capture_paths():
        with contextlib.suppress(FileNotFoundError):  # dropped, perhaps just now
            yield _described(folder, folder / name, known)


def _small_files(folder: Path, vantage_points: list[str]) -> list[Path]:
    """Copies what is small; the status belongs to the vantage point, as a collected folder has many."""
    copies = {name: name for name in (campaign_json.FILE_NAME, *campaign_json.BESIDE)}
    if len(vantage_points) == 1:
        copies[STATUS] = f"vantage/{vantage_points[0]}/{STATUS}"
    made = []
    for source, name in copies.items():
        target = folder / FOLDER / name
        if not (folder / source).exists():
            target.unlink(missing_ok=True)
            continue
        with _unless_same(target) as part:
            shutil.copyfile(folder / source, part)
        made.append(target)
    return made


def _described(folder: Path, path: Path, known: Mapping[str, Copied]) -> Copied:
    state, name = path.stat(), path.relative_to(folder).as_posix()
    before = known.get(name)
    if before is not None and (before.bytes, before.modified_ns) == (state.st_size, state.st_mtime_ns):
        return before
    with path.open("rb") as handle:
        digest = hashlib.file_digest(handle, "sha256").hexdigest()
    return Copied(path=name, bytes=state.st_size, sha256=digest, modified_ns=state.st_mtime_ns)


def _write(home: Path, snapshot: Snapshot) -> None:
    captures, below = snapshot.captures, f"{FOLDER}/"
    own = [file for file in snapshot.files if file.path.startswith(below)]
    sums = [f"{file.sha256}  {file.path.removeprefix(below)}\n" for file in own]
    disk.write_text(home / "snapshot.sha256", "".join(sums))
    disk.write_text(home / "captures.sha256", "".join(f"{file.sha256}  {file.path}\n" for file in captures))
    disk.write_text(home / "captures.list", "".join(f"{file.path}\n" for file in captures))
    disk.write_json(home / DOCUMENT, asdict(snapshot))


def _earlier(folder: Path) -> list[Copied]:
    """The files of the snapshot before; none if there is none, or none that can be read."""
    path = folder / FOLDER / DOCUMENT
    try:
        return _read(path) if path.exists() else []
    except UsageError:
        return []


def _read(path: Path, sha256: str | None = None) -> list[Copied]:
    content = read_bytes(path, most_bytes=MOST_LIST_BYTES)
    if sha256 not in (None, hashlib.sha256(content).hexdigest()):
        raise UsageError("this snapshot is another than was verified", where=str(path), remedy="copy it again")
    document = parse_json(content.decode(errors="replace"), where=str(path), remedy="take another snapshot")
    try:
        if document["schema"] == SCHEMA:
            return [Copied(**file) for file in document["files"]]
    except (KeyError, TypeError):
        pass
    raise UsageError("this is not a snapshot", where=str(path), remedy="name a snapshot.json of upshift snapshot")
