"""One host's results, copied to the control machine: the role `collect` runs this there, by the Python of Ansible.

    python -m vantage.fleet.collecting '{"host": "MUC", "folder": "/INTO/NAME", "source": "...", "over": [...]}'

    INTO/NAME/.collect/plan.json        what the results of a vantage point can need (`Needs`), written by this machine
    INTO/NAME/.collect/HOST/            what its snapshot had; the journal is the base for the next difference
    INTO/NAME/vantage/HOST/             what is verified: captures first, then the status, then the journal

rsync is given a list of names that this machine made, each checked (`offer`), and no folder: since 3.2.5 it refuses
other names that a sender sends. It makes no links, devices or FIFOs, and may not write more than was announced. What a
killed one left stays under its name, so the next one sends the rest.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import math
import os
import re
import shutil
import signal
import sqlite3
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from core.errors import IncompleteError, PlaceError, UpshiftError, UsageError, not_found
from core.files import disk
from core.files.config import build, parse_json, read_json
from core.files.disk import check_room, free_bytes, parse_size, size_text, take_lock
from core.system import process
from core.untrusted import scrub
from vantage.fleet.offer import CAPTURES, ENTRIES_BESIDE, JOURNAL, File, Needs, Offer, judged, refused

PLAN, LIST = ".collect/plan.json", "snapshot.json"

RSYNC = (
    *("rsync", "--times", "--inplace", "--no-whole-file", "--ignore-missing-args", "--timeout=60", "--fsync"),
    *("--no-recursive", "--no-dirs", "--no-relative", "--no-links", "--no-devices", "--no-specials"),
)

LEAST_RSYNC = (3, 2, 5)
"""The first that refuses names that were not asked for (CVE-2022-29154)."""

WAIT_S = 120.0
"""For an rsync that a killed collect left running: it ends 60 s after its connection does."""

CONNECT_S, LEAST_BYTES_PER_S = 900.0, 20_000
"""Longest time of a copy: so much, and what its bytes take at the lowest rate."""

CHECK_S = 600.0
"""For a journal's check: SQLite reads 500 MB in 2 s."""

MESSAGE_BYTES = 1_000_000
"""Most that a host may say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is to be copied."""

    host: str
    folder: str
    """The campaign's folder on this machine."""
    source: str
    """Its results as rsync names them, `user@address:/var/lib/upshift/NAME/results`."""
    over: tuple[str, ...] = ()
    """Options of rsync that say how the host is reached."""
    disk_limit: str | int = ""
    """The host's own; empty: the campaign's."""
    captures: bool = True
    """Whether captures are copied: without them, what hosts found in them arrives with the journal."""
    last: bool = False
    """Another snapshot has been taken, so what is not as it was on the host is a fault."""

    @property
    def home(self) -> Path:
        return Path(self.folder) / "vantage" / self.host

    @property
    def staging(self) -> Path:
        return Path(self.folder) / ".collect" / self.host


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What became of it."""

    changed: int = 0
    """Files that are new, or other than before."""
    again: bool = False
    """Something is not as the snapshot says (a capture was dropped, a disk is bad): take another, and copy again."""
    sha256: str = ""
    """SHA-256 of the snapshot.json that was used."""


def collect(job: Job, needs: Needs) -> Collected:
    """Copies what is new of a host's results, and gives it its place once all of it is verified.

    Raises:
        IncompleteError: the host sends what it may not, or less than is here, or does not answer; its files here are as
            before.
        PlaceError: this machine's disk is full, or its rsync is too old.
    """
    _check_rsync()
    (job.staging / CAPTURES).mkdir(parents=True, exist_ok=True)
    with _only_one(job) as lock:
        content = _list(job, needs, lock)
        document = parse_json(content.decode(errors="replace"), where=job.host, remedy="look at that host")
        offer = judged(document, job.host, needs)
        offered = offer.captures if job.captures else ()
        wanted = [file for file in offered if not is_same(job.home / file.path, file)]
        _check_count(job, offer, needs)
        _sweep(job.staging / CAPTURES, {Path(file.path).name for file in wanted})
        bytes_ = sum(file.bytes for file in (*offer.small, *offer.small, *wanted))
        check_room(Path(job.folder), bytes_, what=f"the results of {job.host}")
        _rsync(job, f"snapshot/vantage/{job.host}", offer.small, job.staging, lock)
        _rsync(job, f"vantage/{job.host}/{CAPTURES}", wanted, job.staging / CAPTURES, lock)
        wrong = [file for file in (*offer.small, *wanted) if not is_same(job.staging / file.path, file)]
        for file in wrong:
            _remove(job.staging / file.path)
        if wrong and job.last:
            raise refused(
                job.host,
                f"{len(wrong)} files came twice with another hash than it says, such as {wrong[0].path}",
                "look at the disks of both, then collect again",
            )
        if wrong:
            return Collected(again=True)
        if not is_database(job.staging / JOURNAL):
            raise refused(job.host, "its journal is damaged, or is none")
        if lacks := len(_done(job.home / JOURNAL) - _done(job.staging / JOURNAL)):
            raise refused(
                job.host,
                f"its journal lacks {lacks} downloads that the one here has",
                "stop the campaign on that host and remove its results, then upshift fleet run hands it the journal "
                f"from here; or move {job.home} away",
            )
        return Collected(changed=_place(job, offer, wanted), sha256=hashlib.sha256(content).hexdigest())


@contextlib.contextmanager
def _regular(path: Path) -> Iterator[io.BufferedReader]:
    """A regular file, to read. No link is followed, and no FIFO waited for. Raises OSError for anything else."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        with os.fdopen(handle, "rb", closefd=False) as opened:
            yield opened
    finally:
        os.close(handle)


def is_same(path: Path, file: File) -> bool:
    """Whether a path is a regular file with this size and hash."""
    try:
        with _regular(path) as opened:
            if os.fstat(opened.fileno()).st_size != file.bytes:
                return False
            return hashlib.file_digest(opened, "sha256").hexdigest() == file.sha256
    except OSError:
        return False


_PLAIN = """rootpage > 0 AND (type = 'table' AND sql GLOB 'CREATE TABLE *'
    AND upper(sql) NOT GLOB '*[^A-Z0-9_]AS[^A-Z0-9_]*'
    OR type = 'index' AND (sql IS NULL OR sql GLOB 'CREATE INDEX *' OR sql GLOB 'CREATE UNIQUE INDEX *'))"""
"""What SQLite itself writes for tables and indexes. The text is the host's: what has another form may be anything, as
`CREATE/**/VIRTUAL TABLE` is. A column `AS (expression)` is computed where it is read, by the check already, and one
call of a function may take months, in which SQLite asks for no deadline."""


def is_database(path: Path) -> bool:
    """Whether a file is a sound SQLite database of tables alone: a damaged one would stop what reads all journals of a
    campaign, and views, virtual tables and computed columns are programs of the one who wrote them.
    """
    deadline = time.monotonic() + CHECK_S
    try:
        with _opened(path) as db:
            db.set_progress_handler(lambda: time.monotonic() > deadline, 100_000)
            strange = db.execute(f"SELECT 1 FROM sqlite_master WHERE ({_PLAIN}) IS NOT 1").fetchone()  # noqa: S608
            # SQLite takes what is missing of the last page for zeros, and quick_check does not notice. Statements, not
            # their table-valued functions: a table of the host's may have the name of one.
            pages = [db.execute(f"PRAGMA page_{word}").fetchone()[0] for word in ("size", "count")]
            is_whole = math.prod(pages) == path.stat().st_size
            return strange is None and is_whole and db.execute("PRAGMA quick_check(1)").fetchone() == ("ok",)
    except (sqlite3.Error, OSError):
        return False


def _opened(path: Path) -> contextlib.closing[sqlite3.Connection]:
    """A database that nobody writes."""
    return contextlib.closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True))


def _done(path: Path) -> set[tuple[object, object]]:
    """Number and start of a journal's downloads, as a new one is another; none where it is missing or damaged."""
    try:
        with _opened(path) as db:
            return set(db.execute("SELECT plan, json_extract(record, '$.started_at') FROM downloads"))
    except sqlite3.Error:
        return set()


def _check_rsync() -> None:
    version = re.search(r"version v?(\d+)\.(\d+)\.(\d+)", process.run(["rsync", "--version"]).stdout)
    if version is None or tuple(map(int, version.groups())) < LEAST_RSYNC:
        least = ".".join(map(str, LEAST_RSYNC))
        raise PlaceError(f"the rsync of this machine is older than {least}", remedy=f"install rsync {least} or newer")


@contextlib.contextmanager
def _only_one(job: Job) -> Iterator[int]:
    """A lock of the host's files here; rsync has it, too, so it outlives a killed collect until rsync ends."""
    with (job.staging / ".lock").open("a") as handle:
        if not take_lock(handle.fileno(), within_s=WAIT_S):
            what = "another collect of this host is still running"
            raise IncompleteError(what, where=job.host, remedy="wait for it")
        yield handle.fileno()


def _list(job: Job, needs: Needs, lock: int) -> bytes:
    """The content of the host's `snapshot.json`, which is read once: the host may change it at any time."""
    path = job.staging / LIST
    _remove(path)
    _rsync(job, "snapshot", [File(path=LIST, bytes=needs.list_bytes, sha256="")], job.staging, lock)
    try:
        with _regular(path) as opened:
            content = opened.read(needs.list_bytes)
    except OSError:
        most = size_text(needs.list_bytes)
        raise refused(job.host, f"it has no snapshot.json that is a file of at most {most}") from None
    # Each value of a list has a comma, and empty ones take 24 times their text in memory.
    if content.count(b",") > 4 * (needs.captures + ENTRIES_BESIDE):
        raise refused(job.host, f"its snapshot.json lists more than the plan's {needs.captures} captures")
    return content


def _check_count(job: Job, offer: Offer, needs: Needs) -> None:
    """A host that lists other captures each time must not fill the disk."""
    folder = job.home / CAPTURES
    here = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if len(here | {Path(file.path).name for file in offer.captures}) > needs.captures:
        raise refused(job.host, f"its captures, with those that are here, are more than the plan's {needs.captures}")


def _rsync(job: Job, below: str, files: Sequence[File], into: Path, lock: int) -> None:
    """Copies files of one folder of the host into one of this machine; those that it does not have are left out."""
    if not files:
        return
    names, messages = job.staging / ".names", job.staging / ".messages"
    names.write_text("".join(f"{Path(file.path).name}\n" for file in files), encoding="ascii")
    messages.write_bytes(b"")
    largest, total = max(file.bytes for file in files), sum(file.bytes for file in files)
    limits = [f"--max-size={largest}", f"--files-from={names}"]
    argv = [*RSYNC, *job.over, *limits, f"{job.source}/{below}/", f"{into}/"]
    most_there = _used(into) + total + MESSAGE_BYTES
    most_s = CONNECT_S + total / LEAST_BYTES_PER_S
    began, looked_s = time.monotonic(), 0.0
    with process.start(
        ["prlimit", f"--fsize={max(largest, MESSAGE_BYTES)}", "--", *argv], stderr=messages, pass_fds=[lock]
    ) as child:
        while child.returncode is None:
            time.sleep(max(0.05, 10 * looked_s))
            looked = time.monotonic()
            if _used(into) > most_there:
                raise refused(job.host, "it sends more than it announced")
            if messages.stat().st_size >= MESSAGE_BYTES:
                raise refused(job.host, f"it says more than {size_text(MESSAGE_BYTES)}")
            if looked - began > most_s:
                raise refused(job.host, f"it took longer than {most_s:.0f} s", "collect again")
            looked_s = time.monotonic() - looked
        code = child.returncode
    # 24: a file vanished while it was read, as the campaign had no room left for it; the verification tells.
    if code not in (0, 24):
        raise _failed(job, code, messages)


def _failed(job: Job, code: int, messages: Path) -> UpshiftError:
    if free_bytes(job.staging) < MESSAGE_BYTES:
        where = size_text(free_bytes(job.staging))
        return PlaceError(
            f"the disk of {job.folder} is full: {where} are free",
            where=job.host,
            remedy="free some space there, then collect again: what has arrived stays",
        )
    if code in (-signal.SIGXFSZ, 128 + signal.SIGXFSZ):
        return refused(job.host, "it sends more than it announced")
    with messages.open(encoding="utf-8", errors="replace") as handle:
        lines = (scrub(handle.readline(1000)) for _ in range(100))
        first = next((line for line in lines if line), f"rsync ended with exit code {code}")
    return IncompleteError(f"not collected ({first})", where=job.host, remedy="collect again")


def _used(folder: Path) -> int:
    used = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                used += entry.stat(follow_symlinks=False).st_size
    return used


def _sweep(folder: Path, names: set[str]) -> None:
    """Removes what is not wanted any more."""
    for path in folder.iterdir():
        if path.name not in names or not stat.S_ISREG(path.lstat().st_mode):
            _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _place(job: Job, offer: Offer, wanted: Sequence[File]) -> int:
    """Gives verified files their place, returns how many are new. No journal refers to a capture that is missing.

    All is on disk afterwards, as the host may remove its captures then: rsync waits for their content, we for names.
    """
    (job.home / CAPTURES).mkdir(parents=True, exist_ok=True)
    for file in wanted:
        (job.staging / file.path).replace(job.home / file.path)
    _sync(job.home / CAPTURES)  # also names that a killed collect gave
    changed = len(wanted)
    for file in reversed(offer.small):  # the journal last
        if not is_same(job.home / file.path, file):
            with disk.whole_file(job.home / file.path) as part:
                shutil.copyfile(job.staging / file.path, part)
            changed += 1
    _sync(job.home)
    return changed


def _sync(folder: Path) -> None:
    """Waits until the names in a folder are on disk (fsync(2): a file's own fsync does not care for its name)."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_needs(job: Job) -> Needs:
    """What the plan of this machine says of any host. Raises UsageError without one."""
    path = Path(job.folder) / PLAN
    if not path.exists():
        raise not_found(path, remedy="give upshift fleet collect, which writes it")
    needs = build(read_json(path), Needs, where=str(path))
    try:
        return replace(needs, disk_bytes=parse_size(job.disk_limit)) if job.disk_limit else needs
    except ValueError as error:
        raise UsageError(str(error), where=f"campaign_disk_limit of {job.host}", remedy="write 20 GB") from None


def main(text: str) -> int:
    """Prints what became of it as JSON, or one sentence on standard error, and returns the exit code."""
    job = build(json.loads(text), Job, where="the argument")
    try:
        copied = collect(job, read_needs(job))
    except (UpshiftError, OSError) as error:
        if isinstance(error, OSError):
            what = ": ".join(filter(None, (error.strerror, error.filename)))
            error = PlaceError(what, where=job.host, remedy="collect again")
        sys.stderr.write(f"upshift: {error.sentence()}\n")
        return error.exit_code
    sys.stdout.write(json.dumps({"changed": copied.changed, "again": copied.again, "sha256": copied.sha256}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
