"""The journals of a campaign's folder, read: `vantage/NAME/journal.sqlite` has what was recorded, and how far it is.

The downloader writes them (`downloader.execution.journal`), and keeps tables of its own in them.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import zstandard

from core.domain import Download, Outcome, Superseded, VoidReason
from core.domain.download import Counts
from core.errors import FREE_SPACE, PlaceError, UsageError, not_found
from core.files.config import MOST_JSON_BYTES, parse_json
from core.files.disk import check_room
from core.files.schemas import build

SCHEMA = 3
"""Version of the tables and of the records in them. Version 2 lacks the failure codes; it is read, too."""

_READ = (2, SCHEMA)

FILE_NAME = "journal.sqlite"


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureFindings:
    """What an inspection found in the capture of a measurement run."""

    text: str
    """For `upshift inspect`, in its own form: proof and KPIs of each download."""
    clean: bool
    """Every download is ok, undisturbed and proven to have had its options."""
    lost: bool = False
    """The capture could not be read to its end, so it is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedFindings:
    """The findings of a capture as the journal has them."""

    text: str
    """As in `CaptureFindings`."""
    dropped: bool
    """The capture was dropped on purpose, so these are all that there is."""


def is_own(capture: str, vantage: str) -> bool:
    """Whether a capture's path is below the folder of its vantage point: a journal from a host may name anything."""
    first, second, *rest = [*capture.split("/"), "", ""]
    return (first, second) == ("vantage", vantage) and ".." not in rest and "\0" not in capture


class JournalReader:
    """A journal, for reading: nothing is changed. Use from one thread at a time."""

    _read_only: ClassVar[bool] = True

    def __init__(self, path: Path) -> None:
        """Opens an existing journal.

        Raises:
            UsageError: it is not a journal, or of a version that cannot be used.
        """
        self.path = path
        self._db = _connect(path, read_only=self._read_only)
        try:
            if not self._read_only:
                self._db.execute("PRAGMA page_size = 8192")  # of a new file: of 4 KiB a record would fill half
                self._db.execute("PRAGMA foreign_keys = ON")
                self._db.execute("PRAGMA journal_mode = WAL")
                self._db.execute("PRAGMA synchronous = NORMAL")
                self._db.execute("PRAGMA wal_autocheckpoint = 125")  # a log of 1 MB: it counts for the disk's limit
            self._version: int = self._db.execute("PRAGMA user_version").fetchone()[0]
        except sqlite3.OperationalError:  # disk full, no permission: an error of the disk, not of the file
            self._db.close()
            raise
        except sqlite3.DatabaseError as error:
            self._db.close()
            raise UsageError(f"not a valid journal ({error})", where=str(path), remedy="use another --out") from None
        if self._version not in (0, *_READ):
            self._db.close()
            what = f"the journal is of version {self._version}, this Upshift reads {SCHEMA}"
            remedy = "update Upshift" if self._version > SCHEMA else "use the Upshift that wrote it"
            raise UsageError(what, where=str(path), remedy=remedy)

    def meta(self, key: str) -> str | None:
        """A value that belongs to the whole journal."""
        row = next(self._select("SELECT value FROM meta WHERE key = ?", key), None)
        return None if row is None else str(row[0])

    def document(self, key: str) -> dict[str, Any]:
        """A value that is a JSON object; an empty one where there is none. Raises UsageError for anything else."""
        remedy = "copy it again, or move its folder away"
        return parse_json(self.meta(key) or "{}", where=str(self.path), remedy=remedy)

    @property
    def db(self) -> sqlite3.Connection:
        """The open file, for tables of whoever writes it."""
        return self._db

    @property
    def is_empty(self) -> bool:
        """Whether a kill left it before its plan was written."""
        return self._version == 0

    def findings(self, capture: str) -> RecordedFindings | None:
        """What an inspection right after the measurement run found in its capture; None if there was none.

        Raises ValueError or ZstdError for what nobody's journal has.
        """
        query = "SELECT findings, dropped FROM captures WHERE path = ? AND findings NOT NULL"
        row = next(self._select(query, capture), None)
        if row is None:
            return None
        # The size is the writer's word, and what decompresses believes it.
        if not 0 <= zstandard.frame_content_size(row[0]) <= MOST_JSON_BYTES:
            raise ValueError(f"findings of more than {MOST_JSON_BYTES >> 20} MiB")
        return RecordedFindings(text=zstandard.ZstdDecompressor().decompress(row[0]).decode(), dropped=bool(row[1]))

    def attempt(self, number: int, attempt: int) -> list[Download]:
        """The downloads of an attempt that were finished: recorded, or superseded, in the order of the plan."""
        rows = self._db.execute(
            "SELECT id, record FROM plan JOIN downloads ON plan = id"
            " WHERE run = ?1 AND json_extract(record, '$.attempts') = ?2"
            " UNION ALL SELECT plan.id, record FROM plan JOIN superseded ON plan = plan.id"
            " WHERE run = ?1 AND attempt = ?2 ORDER BY 1",
            (number, attempt),
        )
        return [build(Download, json.loads(record)) for _, record in rows]

    def voids(self, number: int) -> int:
        """How often a run has been void so far."""
        return int(self._db.execute("SELECT voids FROM runs WHERE number = ?", (number,)).fetchone()[0])

    def void_attempts(self, number: int) -> set[int]:
        """The attempts of a run that were void; their captures are named in `superseded`."""
        rows = self._db.execute(
            "SELECT DISTINCT attempt FROM superseded WHERE plan IN (SELECT id FROM plan WHERE run = ?) AND reason != ?",
            (number, VoidReason.INTERRUPTED.value),
        )
        return {row[0] for row in rows}

    def capture_paths(self) -> list[str]:
        """Paths of the captures of recorded runs and void attempts, dropped ones too, in order of name.

        Only those below the journal's own folder: files that others name by a journal are not touched.
        """
        named = "SELECT json_extract(record, '$.capture') AS capture FROM"
        query = f"{named} downloads UNION {named} superseded ORDER BY capture"
        home = self.path.parent.name
        return [row[0] for row in self._select(query) if isinstance(row[0], str) and is_own(row[0], home)]

    def copy(self, to: Path) -> None:
        """Copies the journal as of now, whoever writes in it, as one file without a log (SQLite's backup)."""
        with contextlib.closing(sqlite3.connect(to, isolation_level=None)) as made:
            self._db.backup(made)
            made.execute("PRAGMA journal_mode = DELETE")

    def downloads(self) -> Iterator[Download]:
        """The recorded downloads in the order of the plan, so those of a measurement run follow each other."""
        for (record,) in self._select("SELECT record FROM downloads ORDER BY plan"):
            yield build(Download, json.loads(record))

    def is_done(self, number: int) -> bool:
        """Whether a run is recorded."""
        return bool(self._db.execute("SELECT state = 'done' FROM runs WHERE number = ?", (number,)).fetchone()[0])

    def recorded_runs(self) -> int:
        """How many measurement runs are recorded."""
        return sum(row[0] for row in self._select("SELECT COUNT(*) FROM runs WHERE state = 'done'"))

    def void_reasons(self) -> dict[str, int]:
        """Void reason -> how many recorded measurement runs have it."""
        query = (
            "SELECT void_reason, COUNT(*) FROM runs WHERE state = 'done' AND void_reason NOT NULL GROUP BY void_reason"
        )
        return dict(self._select(query))

    def times(self) -> Iterator[dict[str, float]]:
        """Where the time of each attempt of a recorded or void run went: part -> seconds. None in older journals."""
        if next(self._select("SELECT 1 FROM sqlite_master WHERE name = 'times'"), None):
            for (parts,) in self._select("SELECT parts FROM times ORDER BY run, attempt"):
                yield json.loads(parts)

    def planned_runs(self) -> int:
        """How many measurement runs the plan has."""
        return sum(row[0] for row in self._select("SELECT COUNT(*) FROM runs"))

    def superseded(self) -> Iterator[Superseded]:
        """The downloads of void and interrupted attempts, in the order in which they were discarded."""
        for attempt, why, detail, record in self._select(
            "SELECT attempt, reason, detail, record FROM superseded ORDER BY id"
        ):
            yield build(Superseded, {**json.loads(record), "attempt": attempt, "reason": why, "detail": detail})

    def _select(self, query: str, *values: str) -> Iterator[Any]:
        """Rows of a query; none if a kill happened before the plan was written."""
        return iter(()) if self.is_empty else self._db.execute(query, values)

    def counts(self) -> Counts:
        """The journal's progress."""
        outcomes = dict(self._db.execute("SELECT outcome, COUNT(*) FROM downloads GROUP BY outcome").fetchall())
        planned = self._db.execute("SELECT COUNT(*) FROM plan").fetchone()[0]
        runs = self._db.execute(
            "SELECT TOTAL(voids), TOTAL(attempts - voids - (state = 'done' AND void_reason IS NULL)"
            " - (state = 'running')) FROM runs"
        ).fetchone()
        return Counts(
            planned=planned,
            ok=outcomes.get(Outcome.OK, 0),
            failed=outcomes.get(Outcome.FAILED, 0),
            censored=outcomes.get(Outcome.CENSORED, 0),
            causes=self._causes(),
            void_runs=int(runs[0]),
            interrupted_runs=int(runs[1]),
        )

    def _causes(self) -> dict[str, int]:
        """Cause of failure or censoring -> downloads, most frequent first."""
        return dict(
            self._db.execute(
                "SELECT json_extract(record, '$.failure') AS cause, COUNT(*) FROM downloads"
                " WHERE outcome != ? AND cause IS NOT NULL GROUP BY cause ORDER BY COUNT(*) DESC, cause",
                (Outcome.OK,),
            )
        )

    def close(self) -> None:
        """Closes the file."""
        self._db.close()


def _connect(path: Path, *, read_only: bool) -> sqlite3.Connection:
    if not read_only:
        return sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=30.0)
    # A journal whose log is empty can be read on a read-only file system, such as a mounted archive; with
    # `immutable` SQLite does not make the files that it needs for a log (https://sqlite.org/wal.html, read-only).
    log = path.with_name(f"{path.name}-wal")
    alone = not os.access(path.parent, os.W_OK) and not (log.exists() and log.stat().st_size)
    uri = f"{path.resolve().as_uri()}?mode=ro{'&immutable=1' if alone else ''}"
    return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=30.0)


_BESIDE_BYTES = 100_000
"""What SQLite needs beside a journal, whose shared memory has 32 kB."""


@contextlib.contextmanager
def open_journals(folder: Path) -> Iterator[Mapping[str, JournalReader]]:
    """Vantage point -> its journal, open for reading, in order of name; none without a plan, which a kill may leave.

    Raises:
        UsageError: the folder holds no journal, or one that cannot be read.
        PlaceError: the disk is full: even a journal that is only read needs some bytes beside it.
    """
    paths = sorted(folder.glob(f"vantage/*/{FILE_NAME}"))
    if not paths:
        remedy = "name the --out of an upshift run"
        if not folder.is_dir():
            raise not_found(folder, "folder", remedy=remedy)
        raise UsageError("this folder holds no campaign", where=str(folder), remedy=remedy)
    with contextlib.ExitStack() as stack:
        journals: dict[str, JournalReader] = {}
        try:
            for path in paths:
                journal = JournalReader(path)
                stack.callback(journal.close)
                if not journal.is_empty:
                    journals[path.parent.name] = journal
            yield journals
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:  # what it began to write is gone by now
                what = "the disk is full: no room for journals and their copies"
                raise PlaceError(what, where=str(folder), remedy=FREE_SPACE) from None
            check_room(folder, _BESIDE_BYTES, what="its journals' locks and copies")
            raise UsageError(
                f"a journal cannot be read ({error})", where=str(folder), remedy="copy the whole folder again"
            ) from None


def environment(journals: Mapping[str, JournalReader]) -> dict[str, Any]:
    """The document `environment.json`: the campaign, its plan, and the environment of each vantage point."""
    document: dict[str, Any] = {"schema": 1}
    for journal in journals.values():
        document |= {"campaign": journal.document("campaign"), "plan_sha256": journal.meta("plan_hash")}
    places = {name: journal.document("environment") for name, journal in journals.items()}
    runs = {
        name: {"recorded_runs": journal.recorded_runs(), "planned_runs": journal.planned_runs()}
        for name, journal in journals.items()
    }
    stopping = {name: journal.document("stopping") for name, journal in journals.items()}
    rules = {name: {**state, **runs[name]} for name, state in stopping.items() if state.get("rule")}
    return document | {"vantage_points": places} | ({"stopping": rules} if rules else {})
